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

-- The tasks of some ids; false for an id that does not exist.
local function read(tag, ids)
    local tasks = values(tag .. ':state', ids)
    for i = 1, #ids do tasks[i] = tasks[i] and cmsgpack.unpack(tasks[i]) end
    return tasks
end

local function publish_work(channel, tag)
    redis.call('PUBLISH', channel, 'w' .. string.match(tag, ':([^:}]*)}?$'))
end
