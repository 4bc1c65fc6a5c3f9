-- Delete tasks that are still as they were read. A repeated call returns fewer ids, but does no harm.
-- KEYS: a tag. ARGV: {id, status, attempt, eta} of each, then their bodies. Returns the ids that were deleted.
-- Held by MovingTests.
-- WITH clock common indexes queue_list delete_tasks
local tag, gone, gone_tasks, seen = KEYS[1], {}, {}, {}
for i, one in ipairs(cmsgpack.unpack(ARGV[1])) do
    local id, task = one[1], read(tag, {one[1]})[1]
    if task and not seen[id] and task[STATUS] == one[2] and task[ATTEMPT] == one[3] and task[ETA] == one[4]
        and redis.call('HGET', tag .. ':body', id) == ARGV[i + 1] then
        gone[#gone + 1], gone_tasks[#gone + 1], seen[id] = id, task, true
    end
end
delete_tasks(tag, gone, gone_tasks)
return gone
