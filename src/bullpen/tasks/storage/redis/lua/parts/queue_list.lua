-- The list of all queues, and finding a task in any of them.

-- The key of the list, the name of this queue, and what stands before and after the name in the tag.
local function list_of(tag)
    local head, name, tail = string.match(tag, '^(.*):([^:}]*)(}?)$')
    return string.sub(head, 1 + #tail) .. ':queues', name, head .. ':', tail
end

-- Add a queue to the list. Returns false if the list is on another node of a cluster.
local function list_queue(tag)
    local list, name = list_of(tag)
    return type(redis.pcall('SADD', list, name)) == 'number'
end

-- Remove a queue without tasks and limits from the list. The next script that writes to it lists it again.
local function unlist_if_unused(tag)
    if redis.call('EXISTS', tag .. ':ids', tag .. ':limits') > 0 then return end
    local list, name = list_of(tag)
    redis.call('DEL', tag .. ':counts', tag .. ':starts')
    redis.pcall('SREM', list, name)  -- on a cluster, the list may be on another node; then `prune` removes it
end

-- Find a task, first in the queue of `tag`. Queues on another node of a cluster are out of reach; no task here depends
-- on theirs.
local function find(tag, id)
    local task = read(tag, {id})[1]
    if task then return tag, task end
    local list, _, head, tail = list_of(tag)
    for _, name in ipairs(redis.pcall('SMEMBERS', list)) do
        local other = head .. name .. tail
        local state = redis.pcall('HGET', other .. ':state', id)
        if type(state) == 'string' then return other, unpacked(other, id, state) end
    end
    return nil
end
