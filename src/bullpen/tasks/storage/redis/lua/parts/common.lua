-- What most scripts need. `scripts.py` replaces names in capitals that are not set here.

local NEVER = 1e300

-- A number with all its digits. Formatting is slower than a lookup, and most numbers of a script are the same.
local written = {}
local function exact(number)
    local word = written[number]
    if not word then
        word = string.format('%.17g', number)
        written[number] = word
    end
    return word
end

local function is_final(status)
    return status == 'success' or status == 'failed' or status == 'cancelled'
end

-- Schedules have no place in the order of their concurrency key.
local function is_schedule(id)
    return string.sub(id, 1, #SCHEDULES) == SCHEDULES
end

-- One command with many words, in parts: Lua's `unpack` takes a limited number.
local function many(command, key, words)
    for i = 1, #words, 4000 do
        redis.call(command, key, unpack(words, i, math.min(i + 3999, #words)))
    end
end

local function values(key, ids)
    local found = {}
    for i = 1, #ids, 4000 do
        local some = redis.call('HMGET', key, unpack(ids, i, math.min(i + 3999, #ids)))
        for j = 1, #some do found[i + j - 1] = some[j] end
    end
    return found
end

-- Replace a state that scripts cannot use, because another program has written it. The stored bytes stay in :damaged.
-- The indexes tell the status, the priority and the concurrency key; other fields that are sound stay. The new state
-- says that it is unreadable, so no worker runs the task.
local function replace_damaged(tag, id, state, old)
    local task, key, priority = DEFAULT_STATE, '', nil
    for i, usual in ipairs(task) do
        local value = type(old) == 'table' and old[i]
        if type(value) == type(usual) and (type(value) ~= 'number' or value - value == 0) then task[i] = value end
    end
    for i, problem in ipairs(task[ERRORS]) do
        if type(problem) ~= 'string' then task[ERRORS] = {} break end
    end
    local keys, is_running = redis.call('HKEYS', tag .. ':busy'), redis.call('ZSCORE', tag .. ':running', id)
    for p = 0, 9 do
        for _, name in ipairs({':ready:', ':keyed:', ':regular:'}) do
            if redis.call('ZREM', tag .. name .. p, id) == 1 then priority = p end
        end
        for _, name in ipairs(redis.call('SMEMBERS', tag .. ':keys:' .. p)) do
            keys[#keys + 1] = name
            redis.call('ZREM', tag .. ':keyed:' .. p .. ':' .. name, id)
        end
    end
    for _, name in ipairs(keys) do
        if redis.call('ZSCORE', tag .. ':order:' .. name, id) then key = name end
    end
    local was = is_running and 'running' or priority and 'pending' or 'failed'
    task[STATUS], task[PRIORITY], task[CONCURRENCY_KEY] = was, priority or 0, key
    task[AWAITED], task[UNREADABLE] = true, 'state: it was no state of a task; the key :damaged has it'
    task[DEPENDS_ON] = redis.call('HEXISTS', tag .. ':depends_on', id)
    if task[ETA] < 0 then task[ETA] = 0 end
    if was == 'running' then
        redis.call('ZADD', tag .. ':running', 0, id)  -- its attempt is unknown, so its worker cannot settle it
    elseif was == 'pending' then
        redis.call('ZADD', tag .. (key == '' and ':ready:' or ':keyed:') .. priority, exact(task[ETA]), id)
        if key ~= '' then
            redis.call('ZADD', tag .. ':keyed:' .. priority .. ':' .. key, exact(task[ETA]), id)
            redis.call('SADD', tag .. ':keys:' .. priority, key)
        end
    end
    redis.call('HSETNX', tag .. ':damaged', id, state)
    redis.call('HSET', tag .. ':state', id, cmsgpack.pack(task))
    return task
end

-- The task of a stored state. The types are those that scripts rely on.
local function unpacked(tag, id, state)
    local ok, task = pcall(cmsgpack.unpack, state)
    if ok and type(task) == 'table' and type(task[ATTEMPT]) == 'number' and type(task[PRIORITY]) == 'number'
        and type(task[ETA]) == 'number' and type(task[COMPLETED_RUNS]) == 'number'
        and type(task[CREATED_AT]) == 'number' and type(task[FINISHED_AT]) == 'number'
        and type(task[EXPIRES]) == 'number' and type(task[RESULT_TTL]) == 'number'
        and type(task[UNIQUE_UNTIL]) == 'number' and type(task[WAITS_FOR]) == 'number'
        and type(task[DEPENDS_ON]) == 'number' and type(task[UNIQUE_KEY]) == 'string'
        and type(task[CONCURRENCY_KEY]) == 'string' and type(task[NEXT_TASK_ID]) == 'string'
        and type(task[ERRORS]) == 'table' and type(task[AWAITED]) ~= 'table' and type(task[AWAITED]) ~= 'number'
        and (task[STATUS] == 'pending' or task[STATUS] == 'running' or is_final(task[STATUS]))
        and task[PRIORITY] >= 0 and task[PRIORITY] <= 9 and task[PRIORITY] % 1 == 0 then
        local sum = task[ATTEMPT] + task[ETA] + task[COMPLETED_RUNS] + task[CREATED_AT] + task[FINISHED_AT]
            + task[EXPIRES] + task[RESULT_TTL] + task[UNIQUE_UNTIL] + task[WAITS_FOR] + task[DEPENDS_ON]
        if sum - sum == 0 then return task end  -- neither NaN nor infinite
    end
    return replace_damaged(tag, id, state, ok and task)
end

-- The tasks of some ids; false for an id that does not exist.
local function read(tag, ids)
    local tasks = values(tag .. ':state', ids)
    for i = 1, #ids do tasks[i] = tasks[i] and unpacked(tag, ids[i], tasks[i]) end
    return tasks
end

local function publish_work(channel, tag)
    redis.call('PUBLISH', channel, 'w' .. string.match(tag, ':([^:}]*)}?$'))
end
