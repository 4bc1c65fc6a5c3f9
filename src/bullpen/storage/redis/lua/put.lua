-- KEYS: the tag. ARGV: channel, queue, and for each task its id, state, body, result and the ids of those that it
-- follows. Returns the ids of those that were kept. Safe to repeat, but for the answer.
-- WITH clock basics moves places
local tag, channel, name = KEYS[1], ARGV[1], ARGV[2]
local queue, bodies, all, kept, is_told, moment = changes(tag), {}, {}, {}, false, now()
for i = 3, #ARGV, 5 do
    local id, task = ARGV[i], cmsgpack.unpack(ARGV[i + 1])
    local key = task[UNIQUE_KEY]
    local has_its_key = has_key(task) or (key ~= '' and task[UNIQUE_UNTIL] > moment)
    if redis.call('HEXISTS', tag .. ':state', id) == 0 and not (has_its_key and holder(tag, key, moment)) then
        enter(queue, id, task)
        flush(queue)
        if has_its_key then redis.call('HSET', tag .. ':unique', key, id) end
        if task[HAS_RESULT] then redis.call('HSET', tag .. ':result', id, ARGV[i + 3]) end
        if task[FOLLOWS] > 0 then redis.call('HSET', tag .. ':follows', id, ARGV[i + 4]) end
        bodies[#bodies + 1] = id
        bodies[#bodies + 1] = ARGV[i + 2]
        all[#all + 1] = 0
        all[#all + 1] = id
        kept[#kept + 1] = id
        is_told = is_told or task[STATUS] == 'pending'
    end
end
many('HSET', tag .. ':body', bodies)
many('ZADD', tag .. ':ids', all)
if #kept > 0 then note(tag) end
if is_told then redis.call('PUBLISH', channel, 'w' .. name) end
return kept
