-- New tasks of one queue that are like most: without a key, a time by which to start, or others that wait. To know that
-- saves half of the time. KEYS: a tag. ARGV: channel, queue, what `rows.plain_state` tells, then the id and body of each.
-- Returns what `ADD` does.
-- WITH clock basics places
local tag, moment, first = KEYS[1], now(), 8
local eta = ARGV[4] == '' and moment or tonumber(ARGV[4])
local state, score = ARGV[5] .. cmsgpack.pack(eta) .. ARGV[6] .. cmsgpack.pack(moment) .. ARGV[7], exact(eta)
local states, bodies, ids, waiting, unlisted, others = tag .. ':state', {}, {}, {}, {}, {}
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
    redis.call('PUBLISH', ARGV[1], 'w' .. ARGV[2])
end
return {exact(moment), unlisted, others}
