-- The sorted sets and counts in which the state of a task puts it. A task leaves them with its old state and enters
-- them with its new one.

-- Collected writes to one queue. `flush` writes them, removals before additions, and results first: if that fails because
-- of their key, the tasks still run.
local function changes(tag)
    return {tag = tag, states = {}, results = {}, added = {}, removed = {}, counts = {}}
end

local function put(lists, name, word, other)
    local list = lists[name]
    if not list then
        list = {}
        lists[name] = list
    end
    list[#list + 1] = word
    list[#list + 1] = other
end

local function flush(queue)
    local tag = queue.tag
    many('HSET', tag .. ':result', queue.results)
    for name, ids in pairs(queue.removed) do many('ZREM', tag .. name, ids) end
    for name, pairs_of in pairs(queue.added) do many('ZADD', tag .. name, pairs_of) end
    many('HSET', tag .. ':state', queue.states)
    for status, count in pairs(queue.counts) do
        if count ~= 0 then redis.call('HINCRBY', tag .. ':counts', status, count) end
    end
    queue.states, queue.results, queue.added, queue.removed, queue.counts = {}, {}, {}, {}, {}
end

-- Running tasks are not counted: their set has their number.
local function count(queue, status, by)
    if status ~= 'running' then queue.counts[status] = (queue.counts[status] or 0) + by end
end

-- Whether a task holds its unique key, apart from `unique_until`: `model.unique.has_key`.
local function has_key(task)
    local status = task[STATUS]
    if task[UNIQUE_KEY] == '' then return false end
    if status == 'pending' then return task[KEEPS_KEY] or task[ATTEMPT] == 0 end
    return status == 'running' and task[KEEPS_KEY]
end

-- The id and the task that hold a unique key, or nil.
local function holder(tag, key, now)
    local id = redis.call('HGET', tag .. ':unique', key)
    local task = id and read(tag, {id})[1]
    if task and (has_key(task) or task[UNIQUE_UNTIL] > now) then return id, task end
    return nil
end

-- Take a task out of the indexes of its state.
local function leave(queue, id, task)
    local status = task[STATUS]
    count(queue, status, -1)
    if task[AWAITS] ~= '' then put(queue.removed, ':awaiting', task[AWAITS] .. '\0' .. id) end
    if task[CONCURRENCY_KEY] ~= '' and not is_final(status) and not is_schedule(id) then
        put(queue.removed, ':order:' .. task[CONCURRENCY_KEY], id)
    end
    if status == 'pending' then
        local priority, key = task[PRIORITY], task[CONCURRENCY_KEY]
        put(queue.removed, (key == '' and ':ready:' or ':keyed:') .. priority, id)
        if key ~= '' and is_schedule(id) then
            put(queue.removed, ':regular:' .. priority, id)
        elseif key ~= '' then
            local by_key = queue.tag .. ':keyed:' .. priority .. ':' .. key
            redis.call('ZREM', by_key, id)
            if redis.call('EXISTS', by_key) == 0 then redis.call('SREM', queue.tag .. ':keys:' .. priority, key) end
        end
        if task[EXPIRES] > 0 then put(queue.removed, ':expiring', id) end
    elseif status == 'running' then
        put(queue.removed, ':running', id)
        local key = task[CONCURRENCY_KEY]
        if key ~= '' and redis.call('HINCRBY', queue.tag .. ':busy', key, -1) <= 0 then
            redis.call('HDEL', queue.tag .. ':busy', key)
        end
    else
        put(queue.removed, ':finished', id)
        if status == 'failed' then put(queue.removed, ':failed', id) end
    end
end

-- Put a task into the indexes of its state. `lease_until`: of a running task. Returns the packed state.
local function enter(queue, id, task, lease_until)
    local status = task[STATUS]
    count(queue, status, 1)
    if task[AWAITS] ~= '' and not is_final(status) then put(queue.added, ':awaiting', 0, task[AWAITS] .. '\0' .. id) end
    if task[CONCURRENCY_KEY] ~= '' and not is_final(status) and not is_schedule(id) then
        put(queue.added, ':order:' .. task[CONCURRENCY_KEY], exact(task[CREATED_AT]), id)
    end
    if status == 'pending' then
        local priority, key, eta = task[PRIORITY], task[CONCURRENCY_KEY], exact(task[ETA])
        put(queue.added, (key == '' and ':ready:' or ':keyed:') .. priority, eta, id)
        if key ~= '' and is_schedule(id) then
            put(queue.added, ':regular:' .. priority, eta, id)
        elseif key ~= '' then
            redis.call('ZADD', queue.tag .. ':keyed:' .. priority .. ':' .. key, eta, id)
            redis.call('SADD', queue.tag .. ':keys:' .. priority, key)
        end
        if task[EXPIRES] > 0 then put(queue.added, ':expiring', exact(task[EXPIRES]), id) end
    elseif status == 'running' then
        put(queue.added, ':running', lease_until, id)
        if task[CONCURRENCY_KEY] ~= '' then redis.call('HINCRBY', queue.tag .. ':busy', task[CONCURRENCY_KEY], 1) end
    else
        local ttl = status == 'failed' and task[FAILURE_TTL] or task[RESULT_TTL]
        local prune_at = ttl < 0 and 'inf' or exact(math.max(task[FINISHED_AT] + ttl, task[UNIQUE_UNTIL]))
        put(queue.added, ':finished', prune_at, id)
        if status == 'failed' then put(queue.added, ':failed', 0, id) end
    end
    if has_key(task) then redis.call('HSET', queue.tag .. ':unique', task[UNIQUE_KEY], id) end
    local packed = cmsgpack.pack(task)
    local states = queue.states
    states[#states + 1] = id
    states[#states + 1] = packed
    return packed
end

-- Drop the kept steps of a task: it runs again from its beginning, or is deleted.
local function drop_steps(tag, id, task)
    redis.call('DEL', tag .. ':steps:' .. id)
    task[STEPS] = 0
end

-- Notify the clients that wait for a task: one by its own channel, several by that of all.
local function publish_end(channel, id, task)
    if task[AWAITED] then
        redis.pcall('PUBLISH', task[AWAITED] == true and channel .. ':ends' or task[AWAITED], 'r' .. id)
    end
end

local function error_json(kind, task, now, message)
    return '{"kind":"' .. kind .. '","attempt":' .. task[ATTEMPT] .. ',"at":' .. exact(now) .. ',"message":'
        .. cjson.encode(message) .. '}'
end

local function add_error(task, new)
    local errors = task[ERRORS]
    errors[#errors + 1] = new
    if #errors > ERRORS_KEPT then table.remove(errors, 1) end
end
