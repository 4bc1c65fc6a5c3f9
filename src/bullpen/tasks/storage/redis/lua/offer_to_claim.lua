-- Offer to claim the next task of some queues for a worker that waits. No offer is made if a task may start now.
-- KEYS: tags. ARGV: the offer as `parts/offers.lua` has it, for how many seconds it stands.
-- Returns the time, and in how many seconds a task may start or '' if no time is known.
-- Held by tests/contracts/test_redis_storage.py.
-- WITH clock common queue_list pick
local now = server_time()
local soonest = soonest_start(KEYS, now)
for _, tag in ipairs(KEYS) do
    if redis.call('EXISTS', tag .. ':ids') == 0 then list_queue(tag) end
    redis.call('ZREMRANGEBYSCORE', tag .. ':offers', '-inf', '(' .. exact(now))
    if soonest ~= '0' then redis.call('ZADD', tag .. ':offers', exact(now + tonumber(ARGV[2])), ARGV[1]) end
end
return {exact(now), soonest}
