-- Repair what another program has damaged, after a script or a command has failed because of it. Keys of the wrong type
-- are moved to a key with `:aside` at its end. The tasks of a queue whose id no client can write get an id that can be
-- named, and fail. All indexes of a queue are built anew from the states of its tasks.
-- KEYS: a tag, or a key without a queue. ARGV: the type that the key must have; '' for a tag.
-- Held by tests/contracts/test_redis_storage.py.
-- WITH clock common indexes queue_list
local tag, now = KEYS[1], server_time()

local function move_aside(key, kind)
    local found = redis.call('TYPE', key).ok
    if found == 'none' or found == kind then return false end
    local same_slot = string.find(key, '{', 1, true) and key or '{' .. key .. '}'
    redis.call('RENAME', key, same_slot .. ':aside')
    return true
end

-- The limits and the pause are unknown then, so no task starts until an operator sets them again.
local function move_limits_aside(key)
    if move_aside(key, 'hash') then redis.call('HSET', key, 'max_running', 'unknown') end
end

if ARGV[1] ~= '' then
    if string.match(tag, ':limits$') then move_limits_aside(tag) else move_aside(tag, ARGV[1]) end
    return 0
end

for _, name in ipairs({':body', ':state', ':result', ':depends_on', ':damaged', ':unique', ':busy', ':counts'}) do
    move_aside(tag .. name, 'hash')
end
for _, name in ipairs({':ids', ':running', ':finished', ':failed', ':expiring', ':starts', ':awaiting'}) do
    move_aside(tag .. name, 'zset')
end
move_limits_aside(tag .. ':limits')

-- The indexes, with the leases, which only an index has.
local indexes = {':ids', ':running', ':finished', ':failed', ':expiring', ':awaiting', ':busy', ':counts'}
local keys, leases = {}, {}
local ids, running = redis.call('HKEYS', tag .. ':state'), redis.call('ZRANGE', tag .. ':running', 0, -1, 'WITHSCORES')
for i = 1, #running, 2 do leases[running[i]] = running[i + 1] end
for _, key in ipairs(redis.call('HKEYS', tag .. ':busy')) do keys[key] = true end
for priority = 0, 9 do
    move_aside(tag .. ':keys:' .. priority, 'set')
    for _, key in ipairs(redis.call('SMEMBERS', tag .. ':keys:' .. priority)) do keys[key] = true end
    for _, name in ipairs({':ready:', ':keyed:', ':regular:'}) do
        move_aside(tag .. name .. priority, 'zset')
        indexes[#indexes + 1] = name .. priority
    end
    indexes[#indexes + 1] = ':keys:' .. priority
end
local function move_index_of_key_aside(key)
    move_aside(tag .. ':order:' .. key, 'zset')
    for priority = 0, 9 do move_aside(tag .. ':keyed:' .. priority .. ':' .. key, 'zset') end
end
for key in pairs(keys) do move_index_of_key_aside(key) end

local tasks = read(tag, ids)
for i in ipairs(ids) do
    local key = tasks[i][CONCURRENCY_KEY]
    if key ~= '' and not keys[key] then
        keys[key] = true
        move_index_of_key_aside(key)
    end
end
for key in pairs(keys) do
    indexes[#indexes + 1] = ':order:' .. key
    for priority = 0, 9 do indexes[#indexes + 1] = ':keyed:' .. priority .. ':' .. key end
end
for _, name in ipairs(indexes) do redis.call('DEL', tag .. name) end

-- An id that the command line cannot name, and that a worker could not settle.
local function name_task(id, task)
    local named = 'unreadable-' .. string.gsub(id, '.', function(byte) return string.format('%02x', string.byte(byte)) end)
    for _, name in ipairs({':state', ':body', ':result', ':depends_on', ':damaged'}) do
        local value = redis.call('HGET', tag .. name, id)
        if value then
            redis.call('HSET', tag .. name, named, value)
            redis.call('HDEL', tag .. name, id)
        end
    end
    if not is_final(task[STATUS]) then
        task[STATUS], task[FINISHED_AT], task[CLAIM_ID] = 'failed', now, ''
        add_error(task, error_json('poison', task, now, 'its stored id was no text'))
    end
    if task[STEPS] > 0 then drop_steps(tag, id, task) end
    task[UNREADABLE] = 'id: it was no text'
    return named
end

local queue, all = changes(tag), {}
for i, id in ipairs(ids) do
    local task = tasks[i]
    if not string.match(id, '^[!-~]+$') then id = name_task(id, task) end
    if task[STEPS] > 0 then move_aside(tag .. ':steps:' .. id, 'hash') end
    enter(queue, id, task, leases[id] or '0')
    if task[UNIQUE_KEY] ~= '' and task[UNIQUE_UNTIL] > now then redis.call('HSET', tag .. ':unique', task[UNIQUE_KEY], id) end
    all[#all + 1] = 0
    all[#all + 1] = id
    if i % 1000 == 0 then flush(queue) end
end
flush(queue)
many('ZADD', tag .. ':ids', all)
if redis.call('EXISTS', tag .. ':ids', tag .. ':limits') > 0 then list_queue(tag) end
return #ids
