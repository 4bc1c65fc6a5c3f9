-- What most scripts begin with. Names in capitals that are not set here stand for what scripts.py says.

local NEVER = 1e300

-- To write a number takes longer than to find what was written before, as most are the same.
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

-- Whether it runs again and again: then it has no place in the order of its concurrency key.
local function is_schedule(id)
    return string.sub(id, 1, #SCHEDULES) == SCHEDULES
end

-- One command for many words; Lua cannot hand over any number of them at once.
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

-- Tasks by their ids; false for what is not there.
local function read(tag, ids)
    local tasks = values(tag .. ':state', ids)
    for i = 1, #ids do tasks[i] = tasks[i] and cmsgpack.unpack(tasks[i]) end
    return tasks
end

local function tell_work(channel, tag)
    redis.call('PUBLISH', channel, 'w' .. string.match(tag, ':([^:}]*)}?$'))
end
