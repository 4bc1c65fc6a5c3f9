-- One new task that is like most, as `ADD_PLAIN` wants them: what is added most of all. So what it mostly takes is written out
-- here. KEYS: a tag. ARGV: channel, queue, what `rows.plain_state` tells, id, body. Returns what `ADD` does.
-- WITH clock
local tag, moment = KEYS[1], now()
local instant, eta = string.format('%.17g', moment), ARGV[4] == '' and moment or tonumber(ARGV[4])
local state = ARGV[5] .. cmsgpack.pack(eta) .. ARGV[6] .. cmsgpack.pack(moment) .. ARGV[7]
local id, body = ARGV[8], ARGV[9]
local offer = redis.call('ZRANGEBYSCORE', tag .. ':offers', instant, 'inf', 'LIMIT', 0, 1)[1]

-- If it is due, nothing else waits, and nothing is limited, it goes to a worker that waits without ever waiting itself: as
-- `hand_over` would do it. A queue with an offer is in the list of all.
if offer and eta <= moment and #body < MOST_NEWS - 1000 and (redis.call('HGET', tag .. ':counts', 'pending') or '0') == '0'
    and redis.call('EXISTS', tag .. ':limits') == 0 then
    local channel, worker, lease, claim_id, tags = unpack(cmsgpack.unpack(offer))
    local task, lease_until = cmsgpack.unpack(state), string.format('%.17g', moment + lease)
    task[STATUS], task[ATTEMPT], task[WORKER], task[CLAIM_ID] = 'running', 1, worker, claim_id
    task[STARTED_AT] = moment
    local packed = cmsgpack.pack(task)
    if #tags == 1 and redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0  -- else the worker has gone
        and redis.call('HSETNX', tag .. ':state', id, packed) == 1 then
        redis.call('HSET', tag .. ':body', id, body)
        redis.call('ZADD', tag .. ':ids', 0, id)
        redis.call('ZADD', tag .. ':running', lease_until, id)
        redis.call('ZREM', tag .. ':offers', offer)
        local news = '\0001:1' .. #id .. ':' .. id .. #packed .. ':' .. packed .. #body .. ':' .. body .. '-1:-1:'
            .. #lease_until .. ':' .. lease_until
        redis.call('PUBLISH', channel, 'c' .. claim_id .. news)
        return {instant, {}, {}}
    end
end

if redis.call('HSETNX', tag .. ':state', id, state) == 0 then return {instant, {}, {1, id}} end
redis.call('HSET', tag .. ':body', id, body)
redis.call('ZADD', tag .. ':ids', 0, id)
redis.call('ZADD', tag .. ':ready:' .. ARGV[3], ARGV[4] == '' and instant or ARGV[4], id)
local is_first = redis.call('HINCRBY', tag .. ':counts', 'pending', 1) == 1 and redis.call('ZCARD', tag .. ':ids') == 1
if offer or is_first then
    -- WITH basics moves places picks claims shown news offers
    local unlisted = is_first and not note(tag) and {1} or {}
    if not offer or hand_over(tag, moment) ~= id then redis.call('PUBLISH', ARGV[1], 'w' .. ARGV[2]) end
    return {instant, unlisted, {}}
end
redis.call('PUBLISH', ARGV[1], 'w' .. ARGV[2])
return {instant, {}, {}}
