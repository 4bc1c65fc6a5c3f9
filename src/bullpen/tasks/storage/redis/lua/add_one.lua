-- Add one plain task, as `add_plain.lua` defines it. This is the most frequent call, so the usual case is written out
-- here.
-- KEYS: a tag. ARGV: channel, queue, the words of `rows.plain_state`, id, body. Returns the same as `add.lua`.
-- Repeats `model.task.new_as_kept`. Held by AddingTests.
-- WITH clock
local tag, now = KEYS[1], server_time()
local instant, eta = string.format('%.17g', now), ARGV[4] == '' and now or tonumber(ARGV[4])
local state = ARGV[5] .. cmsgpack.pack(eta) .. ARGV[6] .. cmsgpack.pack(now) .. ARGV[7]
local id, body = ARGV[8], ARGV[9]
if redis.call('HSETNX', tag .. ':state', id, state) == 0 then return {instant, {}, {1, id}} end
redis.call('HSET', tag .. ':body', id, body)
redis.call('ZADD', tag .. ':ids', 0, id)
redis.call('ZADD', tag .. ':ready:' .. ARGV[3], ARGV[4] == '' and instant or ARGV[4], id)
local unlisted = {}
if redis.call('HINCRBY', tag .. ':counts', 'pending', 1) == 1 and redis.call('ZCARD', tag .. ':ids') == 1 then
    -- WITH common queue_list
    if not list_queue(tag) then unlisted = {1} end
end
redis.call('PUBLISH', ARGV[1], 'w' .. ARGV[2])
return {instant, unlisted, {}}
