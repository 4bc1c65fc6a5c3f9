-- New tasks of one queue that are like most: without a key, a time by which to start, or others that wait. To know that
-- saves half of the time. KEYS: a tag. ARGV: channel, queue, what `rows.plain_state` tells, then the id and body of each.
-- Returns what `ADD` does.
local tag, moment, first = KEYS[1], now(), 8
local eta = ARGV[4] == '' and moment or tonumber(ARGV[4])
local state, score = ARGV[5] .. cmsgpack.pack(eta) .. ARGV[6] .. cmsgpack.pack(moment) .. ARGV[7], exact(eta)
local states, bodies, ids, waiting, unlisted, others = tag .. ':state', {}, {}, {}, {}, {}

-- One that is due, where nothing else waits and nothing is limited, goes to a worker that waits without ever waiting
-- itself: as `hand_over` would do it, with half of the commands.
local is_offered = #ARGV == first + 1 and redis.call('EXISTS', tag .. ':offers') == 1
if is_offered and eta <= moment then
    local pending, offer = redis.call('HGET', tag .. ':counts', 'pending'), nil
    if (not pending or pending == '0') and redis.call('EXISTS', tag .. ':limits') == 0 then
        offer = redis.call('ZRANGEBYSCORE', tag .. ':offers', exact(moment), 'inf', 'LIMIT', 0, 1)[1]
    end
    local channel, worker, lease, claim_id, tags = unpack(offer and cmsgpack.unpack(offer) or {})
    if offer and #tags == 1 and redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
        local id, body, task, lease_until = ARGV[first], ARGV[first + 1], cmsgpack.unpack(state), exact(moment + lease)
        task[STATUS], task[ATTEMPT], task[WORKER], task[CLAIM_ID] = 'running', task[ATTEMPT] + 1, worker, claim_id
        task[STARTED_AT] = moment
        local packed = cmsgpack.pack(task)
        if redis.call('HSETNX', states, id, packed) == 1 then
            redis.call('HSET', tag .. ':body', id, body)
            redis.call('ZADD', tag .. ':ids', 0, id)
            redis.call('ZADD', tag .. ':running', lease_until, id)
            redis.call('HINCRBY', tag .. ':counts', 'running', 1)
            redis.call('ZREM', tag .. ':offers', offer)
            if redis.call('ZCARD', tag .. ':ids') == 1 and not note(tag) then unlisted = {1} end
            local news = as_news({'1', id, packed, body, false, false, lease_until}, 7)
            redis.call('PUBLISH', channel, 'c' .. claim_id .. news)
            return {exact(moment), unlisted, others}
        end
    end
end

for i = first, #ARGV, 2 do
    local id, n = ARGV[i], #ids
    if redis.call('HSETNX', states, id, state) == 1 then
        bodies[n + 1], bodies[n + 2] = id, ARGV[i + 1]
        ids[n + 1], ids[n + 2] = 0, id
        waiting[n + 1], waiting[n + 2] = score, id
    else
        others[#others + 1] = (i - first) / 2 + 1
        others[#others + 1] = id
    end
end
local count = #ids / 2
if count > 0 then
    many('HSET', tag .. ':body', bodies)
    many('ZADD', tag .. ':ids', ids)
    many('ZADD', tag .. ':ready:' .. ARGV[3], waiting)
    if redis.call('HINCRBY', tag .. ':counts', 'pending', count) == count
        and redis.call('ZCARD', tag .. ':ids') == count and not note(tag) then unlisted = {1} end
    local handed
    if is_offered then
-- SELDOM
        handed = hand_over(tag, moment)
    end
    if handed ~= ids[2] then redis.call('PUBLISH', ARGV[1], 'w' .. ARGV[2]) end
end
return {exact(moment), unlisted, others}
