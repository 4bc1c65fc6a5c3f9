-- Keep an event, unless one of this name exists whose time to live is not over. The client wakes the tasks that wait for
-- it; should it die before, :looks tells that another client has to.
-- KEYS: the events. ARGV: name, payload, seconds to live, a member of :looks, channel, the list of queues ('' on a
-- cluster, where it may be on another node). Returns 1 if the event is new, then the names in that list.
-- Held by EventTests.
-- WITH clock
local now = server_time()
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local ends = stored and tonumber(string.match(stored, '^%S+ (%S+) ') or '')
local is_new = not ends or ends <= now
if is_new then
    local instant, last = string.format('%.17g', now), string.format('%.17g', math.min(now + tonumber(ARGV[3]), LAST_DAY))
    redis.call('HSET', KEYS[1], ARGV[1], instant .. ' ' .. last .. ' ' .. ARGV[2])
    redis.call('ZADD', KEYS[1] .. ':ends', last, ARGV[1])
end
redis.call('ZADD', KEYS[1] .. ':looks', now, ARGV[4])
redis.pcall('PUBLISH', ARGV[5], 'e' .. ARGV[1])
local listed = ARGV[6] ~= '' and redis.pcall('SMEMBERS', ARGV[6]) or {}
return {is_new and 1 or 0, listed.err and {} or listed}
