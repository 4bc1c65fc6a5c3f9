-- KEYS: tags. Returns in how many seconds something may start, '' if that is not known.
-- WITH clock basics picks
return soonest_start(KEYS, now())
