-- A task leaves the sets that its state has put it into, and enters others.

-- What is to be written to a queue. `flush` does it: what leaves a set goes before what enters one.
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
    for name, ids in pairs(queue.removed) do many('ZREM', tag .. name, ids) end
    for name, pairs_of in pairs(queue.added) do many('ZADD', tag .. name, pairs_of) end
    many('HSET', tag .. ':state', queue.states)
    many('HSET', tag .. ':result', queue.results)
    for status, count in pairs(queue.counts) do
        if count ~= 0 then redis.call('HINCRBY', tag .. ':counts', status, count) end
    end
    queue.states, queue.results, queue.added, queue.removed, queue.counts = {}, {}, {}, {}, {}
end

-- Those that run are as many as their set has.
local function count(queue, status, by)
    if status ~= 'running' then queue.counts[status] = (queue.counts[status] or 0) + by end
end

-- Whether a task has its unique key, `unique_until` apart.
local function has_key(task)
    local status = task[STATUS]
    if task[UNIQUE_KEY] == '' then return false end
    if status == 'pending' then return task[KEEPS_KEY] or task[ATTEMPT] == 0 end
    return status == 'running' and task[KEEPS_KEY]
end

-- The task that has a unique key.
local function holder(tag, key, moment)
    local id = redis.call('HGET', tag .. ':unique', key)
    local task = id and read(tag, {id})[1]
    if task and (has_key(task) or task[UNIQUE_UNTIL] > moment) then return id, task end
    return nil
end

-- Take a task out of everything that its state has put it into.
local function leave(queue, id, task)
    local status = task[STATUS]
    count(queue, status, -1)
    if task[CONCURRENCY_KEY] ~= '' and not is_final(status) and not is_schedule(id) then
        put(queue.removed, ':order:' .. task[CONCURRENCY_KEY], id)
    end
    if status == 'pending' then
        local priority, key = task[PRIORITY], task[CONCURRENCY_KEY]
        put(queue.removed, (key == '' and ':ready:' or ':keyed:') .. priority, id)
        if key ~= '' and is_schedule(id) then
            put(queue.removed, ':regular:' .. priority, id)
        elseif key ~= '' then
            local line = queue.tag .. ':keyed:' .. priority .. ':' .. key
            redis.call('ZREM', line, id)
            if redis.call('EXISTS', line) == 0 then redis.call('SREM', queue.tag .. ':keys:' .. priority, key) end
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
    end
end

-- … and put it into what its state wants. `lease_until`: of one that runs. Returns the state as it is written.
local function enter(queue, id, task, lease_until)
    local status = task[STATUS]
    count(queue, status, 1)
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
        local prune_at = task[RESULT_TTL] < 0 and 'inf'
            or exact(math.max(task[FINISHED_AT] + task[RESULT_TTL], task[UNIQUE_UNTIL]))
        put(queue.added, ':finished', prune_at, id)
    end
    if has_key(task) then redis.call('HSET', queue.tag .. ':unique', task[UNIQUE_KEY], id) end
    local packed = cmsgpack.pack(task)
    local states = queue.states
    states[#states + 1] = id
    states[#states + 1] = packed
    return packed
end

-- Whoever waits for a task hears that it has ended. `news`: the task itself, unless that is not at hand.
local function tell_end(channel, id, task, news)
    if task[AWAITED] == true then
        redis.call('PUBLISH', channel .. ':ends', 'r' .. id)
    elseif task[AWAITED] then
        redis.call('PUBLISH', task[AWAITED], 'r' .. id .. (news or ''))
    end
end

local function problem(kind, task, moment, message)
    return '{"kind":"' .. kind .. '","attempt":' .. task[ATTEMPT] .. ',"at":' .. exact(moment) .. ',"message":'
        .. cjson.encode(message) .. '}'
end

local function add_error(task, new)
    local errors = task[ERRORS]
    errors[#errors + 1] = new
    if #errors > ERRORS_KEPT then table.remove(errors, 1) end
end
