-- Where queues and tasks are.

-- The key of the list of all queues, the name of this one, and what is before and behind it in the tag.
local function listed(tag)
    local head, name, tail = string.match(tag, '^(.*):([^:}]*)(}?)$')
    return string.sub(head, 1 + #tail) .. ':queues', name, head .. ':', tail
end

-- Have a queue in the list of all. Returns false if that is on another node of a cluster.
local function note(tag)
    local list, name = listed(tag)
    return type(redis.pcall('SADD', list, name)) == 'number'
end

-- A queue without tasks, limits or workers that wait is in no list. Whatever comes into one notes it again.
local function leave_list_if_unused(tag)
    if redis.call('EXISTS', tag .. ':ids', tag .. ':limits') > 0 then return end
    if redis.call('ZCOUNT', tag .. ':offers', exact(now()), 'inf') > 0 then return end
    local list, name = listed(tag)
    if type(redis.pcall('SREM', list, name)) == 'number' then
        redis.call('DEL', tag .. ':counts', tag .. ':starts', tag .. ':offers')
    end
end

-- A task that may be in another queue than the one that `tag` is of. What is on another node of a cluster is out of
-- reach, and is not linked to anything here.
local function find(tag, id)
    local task = read(tag, {id})[1]
    if task then return tag, task end
    local list, _, head, tail = listed(tag)
    for _, name in ipairs(redis.pcall('SMEMBERS', list)) do
        local other = head .. name .. tail
        local state = redis.pcall('HGET', other .. ':state', id)
        if type(state) == 'string' then return other, cmsgpack.unpack(state) end
    end
    return nil
end
