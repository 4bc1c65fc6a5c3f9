-- Add one plain task, as `add_plain.lua` defines it. This is the most frequent call, so the usual case is written out
-- here.
-- KEYS: a tag. ARGV: channel, queue, the words of `rows.plain_state`, id, body. Returns the same as `add.lua`.
-- Repeats `model.task.new_as_kept` and, for a waiting worker, `model.task.claimed`. Held by AddingTests and
-- tests/contracts/test_redis_storage.py.
-- WITH clock
local tag, now = KEYS[1], server_time()
local instant, eta = string.format('%.17g', now), ARGV[4] == '' and now or tonumber(ARGV[4])
local state = ARGV[5] .. cmsgpack.pack(eta) .. ARGV[6] .. cmsgpack.pack(now) .. ARGV[7]
local id, body = ARGV[8], ARGV[9]
local offer = redis.call('ZRANGEBYSCORE', tag .. ':offers', instant, 'inf', 'LIMIT', 0, 1)[1]

-- If the task is due, no other task is pending and the queue has no limits, claim it for a waiting worker at once, as
-- `claim_for_offer` would. A queue with an offer is in the list of queues.
if offer and eta <= now and #body < MAX_ATTACHMENT - 1000 and (redis.call('HGET', tag .. ':counts', 'pending') or '0') == '0'
    and redis.call('EXISTS', tag .. ':limits') == 0 then
    local channel, worker, lease, claim_id, tags = unpack(cmsgpack.unpack(offer))
    local task, lease_until = cmsgpack.unpack(state), string.format('%.17g', now + lease)
    task[STATUS], task[ATTEMPT], task[WORKER], task[CLAIM_ID] = 'running', 1, worker, claim_id
    task[STARTED_AT] = now
    local packed = cmsgpack.pack(task)
    if #tags == 1 and redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0  -- else the worker is gone
        and redis.call('HSETNX', tag .. ':state', id, packed) == 1 then
        redis.call('HSET', tag .. ':body', id, body)
        redis.call('ZADD', tag .. ':ids', 0, id)
        redis.call('ZADD', tag .. ':running', lease_until, id)
        redis.call('ZREM', tag .. ':offers', offer)
        local attachment = '\0001:1' .. #id .. ':' .. id .. #packed .. ':' .. packed .. #body .. ':' .. body .. '-1:-1:'
            .. #lease_until .. ':' .. lease_until
        redis.call('PUBLISH', channel, 'c' .. claim_id .. attachment)
        return {instant, {}, {}}
    end
end

if redis.call('HSETNX', tag .. ':state', id, state) == 0 then return {instant, {}, {1, id}} end
redis.call('HSET', tag .. ':body', id, body)
redis.call('ZADD', tag .. ':ids', 0, id)
redis.call('ZADD', tag .. ':ready:' .. ARGV[3], ARGV[4] == '' and instant or ARGV[4], id)
local is_first = redis.call('HINCRBY', tag .. ':counts', 'pending', 1) == 1 and redis.call('ZCARD', tag .. ':ids') == 1
if offer or is_first then
    -- WITH common indexes queue_list pick claim task_rows attachment offers
    local unlisted = is_first and not list_queue(tag) and {1} or {}
    if not offer or claim_for_offer(tag, now) ~= id then redis.call('PUBLISH', ARGV[1], 'w' .. ARGV[2]) end
    return {instant, unlisted, {}}
end
redis.call('PUBLISH', ARGV[1], 'w' .. ARGV[2])
return {instant, {}, {}}
