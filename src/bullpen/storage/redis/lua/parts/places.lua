-- Where tasks are.

-- A task that may be in another queue than the one that `tag` is of. What is on another node of a cluster is out of
-- reach, and is not linked to anything here.
local function find(tag, id)
    local task = read(tag, {id})[1]
    if task then return tag, task end
    local head, tail = string.match(tag, '^(.*):[^:}]*(}?)$')
    local queues = redis.pcall('SMEMBERS', string.sub(head, 1 + #tail) .. ':queues')
    for _, name in ipairs(queues) do
        local other = head .. ':' .. name .. tail
        local state = redis.pcall('HGET', other .. ':state', id)
        if type(state) == 'string' then return other, cmsgpack.unpack(state) end
    end
    return nil
end
