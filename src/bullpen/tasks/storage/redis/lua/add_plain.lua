-- Add plain tasks to one queue: tasks without keys, deadline, dependencies or schedule. It takes half the time of
-- `add.lua`.
-- KEYS: a tag. ARGV: channel, queue, the words of `rows.plain_state`, then id and body of each. Returns the same as
-- `add.lua`.
-- Repeats `model.task.new_as_kept`. Held by AddingTests and TogetherTests.
-- WITH clock common queue_list
local tag, now, first = KEYS[1], server_time(), 8
local eta = ARGV[4] == '' and now or tonumber(ARGV[4])
local state, score = ARGV[5] .. cmsgpack.pack(eta) .. ARGV[6] .. cmsgpack.pack(now) .. ARGV[7], exact(eta)
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
        and redis.call('ZCARD', tag .. ':ids') == count and not list_queue(tag) then unlisted = {1} end
    redis.call('PUBLISH', ARGV[1], 'w' .. ARGV[2])
end
return {exact(now), unlisted, others}
