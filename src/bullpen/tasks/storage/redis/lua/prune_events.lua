-- Delete events whose time to live is over.
-- KEYS: the events. ARGV: seconds, then the names of events that no task awaits. Returns the names of events whose time is
-- over, and the members of :looks that are older than these seconds: their clients died. Held by EventTests.
-- WITH clock
local now = server_time()
for i = 2, #ARGV do
    local stored = redis.call('HGET', KEYS[1], ARGV[i])
    local ends = stored and tonumber(string.match(stored, '^%S+ (%S+) ') or '')
    if not ends or ends <= now then
        redis.call('HDEL', KEYS[1], ARGV[i])
        redis.call('ZREM', KEYS[1] .. ':ends', ARGV[i])
    end
end
return {
    redis.call('ZRANGEBYSCORE', KEYS[1] .. ':ends', '-inf', now, 'LIMIT', 0, 500),
    redis.call('ZRANGEBYSCORE', KEYS[1] .. ':looks', '-inf', now - ARGV[1], 'LIMIT', 0, 500),
}
