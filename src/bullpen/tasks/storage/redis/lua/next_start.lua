-- Tell when the next task may start, within the limits of its queue.
-- KEYS: tags. Returns seconds, or '' if no time is known. Held by WaitingTests.
-- WITH clock common pick
return soonest_start(KEYS, server_time())
