-- Import whole tasks, except those whose id or unique key exists. A repeated call returns fewer ids, but does no
-- harm.
-- KEYS: a tag. ARGV: channel, queue, then id, state, body, result, dependencies and steps of each. Returns the ids that were
-- imported. Held by MovingTests.
-- WITH clock common indexes queue_list
local tag, channel, name = KEYS[1], ARGV[1], ARGV[2]
local queue, bodies, all, kept, notify, now = changes(tag), {}, {}, {}, false, server_time()
for i = 3, #ARGV, 6 do
    local id, task = ARGV[i], cmsgpack.unpack(ARGV[i + 1])
    local key = task[UNIQUE_KEY]
    local has_its_key = has_key(task) or (key ~= '' and task[UNIQUE_UNTIL] > now)
    if redis.call('HEXISTS', tag .. ':state', id) == 0 and not (has_its_key and holder(tag, key, now)) then
        enter(queue, id, task)
        flush(queue)
        if has_its_key then redis.call('HSET', tag .. ':unique', key, id) end
        if task[HAS_RESULT] then redis.call('HSET', tag .. ':result', id, ARGV[i + 3]) end
        if task[DEPENDS_ON] > 0 then redis.call('HSET', tag .. ':depends_on', id, ARGV[i + 4]) end
        if task[STEPS] > 0 then many('HSET', tag .. ':steps:' .. id, cmsgpack.unpack(ARGV[i + 5])) end
        bodies[#bodies + 1] = id
        bodies[#bodies + 1] = ARGV[i + 2]
        all[#all + 1] = 0
        all[#all + 1] = id
        kept[#kept + 1] = id
        notify = notify or task[STATUS] == 'pending'
    end
end
many('HSET', tag .. ':body', bodies)
many('ZADD', tag .. ':ids', all)
if #kept > 0 then list_queue(tag) end
if notify then redis.call('PUBLISH', channel, 'w' .. name) end
return kept
