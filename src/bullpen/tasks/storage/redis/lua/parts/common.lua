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

-- Replace a state that scripts cannot use, or that contradicts the indexes, because another program has written it. The
-- stored bytes stay in :damaged.
-- The indexes tell the status, the priority and the concurrency key; other fields that are sound stay. The new state
-- says that it is unreadable, so no worker runs the task.
local function replace_damaged(tag, id, state, old)
    local task, key, priority = DEFAULT_STATE, '', nil
    for i, usual in ipairs(task) do
        local value = type(old) == 'table' and old[i]
        if type(value) == type(usual) and (type(value) ~= 'number' or value - value == 0) then task[i] = value end
    end
    if task[ATTEMPT] < 0 or task[ATTEMPT] > MAX_COUNT or task[ATTEMPT] % 1 ~= 0 then task[ATTEMPT] = 0 end
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
    task[AWAITED], task[UNREADABLE] = true, 'state: it was damaged; the key :damaged has it'
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
    if was == 'failed' then redis.call('ZADD', tag .. ':failed', 0, id) end
    redis.call('HSETNX', tag .. ':damaged', id, state)
    redis.call('HSET', tag .. ':state', id, cmsgpack.pack(task))
    return task
end

-- The task of a stored state, if it has the types that scripts rely on. A comparison with another type raises, and is
-- cheaper than to ask for the type.
local function sound(state)
    local t = cmsgpack.unpack(state)
    local status, priority, awaited = t[STATUS], t[PRIORITY], t[AWAITED]
    if (status == 'pending' or status == 'running' or is_final(status)) and priority >= 0 and priority <= 9
        and priority % 1 == 0 and t[ATTEMPT] >= 0 and t[ATTEMPT] <= MAX_COUNT and t[ATTEMPT] % 1 == 0 and t[ETA] < NEVER and t[COMPLETED_RUNS] >= 0
        and t[CREATED_AT] < NEVER and t[FINISHED_AT] < NEVER and t[EXPIRES] < NEVER and t[RESULT_TTL] < NEVER
        and t[FAILURE_TTL] < NEVER and t[UNIQUE_UNTIL] < NEVER and t[WAITS_FOR] < NEVER and t[DEPENDS_ON] >= 0 and t[UNIQUE_KEY] >= ''
        and t[CONCURRENCY_KEY] >= '' and t[NEXT_TASK_ID] >= '' and type(t[ERRORS]) == 'table'
        and (awaited == false or awaited == true or awaited >= '')
        -- A table with a gap would be packed as a map.
        and t[FAILURES] and t[CRASHES] and t[WORKER] and t[CLAIM_ID] and t[STARTED_AT] and t[RESULT_DROPPED]
        and t[PROGRESS] and t[SCHEDULED_AT] and t[HOLD] and t[PLACE] and t[FORMAT] and t[UNREADABLE] and t[STEPS] >= 0 and t[AWAITS] >= ''
        and t[CANCEL_REQUESTED] ~= nil and t[HAS_RESULT] ~= nil and t[KEEPS_KEY] ~= nil and t[RUN_ALWAYS] ~= nil
        and t[MANY] ~= nil then
        local sum = t[ATTEMPT] + t[ETA] + t[COMPLETED_RUNS] + t[CREATED_AT] + t[FINISHED_AT] + t[EXPIRES]
            + t[RESULT_TTL] + t[FAILURE_TTL] + t[UNIQUE_UNTIL] + t[WAITS_FOR] + t[DEPENDS_ON]
        return sum - sum == 0 and t  -- neither NaN nor infinite
    end
    return nil
end

local function unpacked(tag, id, state)
    local ok, task = pcall(sound, state)
    if ok and task then return task end
    return replace_damaged(tag, id, state, select(2, pcall(cmsgpack.unpack, state)))
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
