-- KEYS: a tag. ARGV: {id, status, attempt, eta} of each, and their bodies. Forgets those that are still so; which. Safe to
-- repeat, but for the answer.
-- WITH clock basics moves places forgetting
local tag, gone, gone_tasks, seen = KEYS[1], {}, {}, {}
for i, one in ipairs(cmsgpack.unpack(ARGV[1])) do
    local id, task = one[1], read(tag, {one[1]})[1]
    if task and not seen[id] and task[STATUS] == one[2] and task[ATTEMPT] == one[3] and task[ETA] == one[4]
        and redis.call('HGET', tag .. ':body', id) == ARGV[i + 1] then
        gone[#gone + 1], gone_tasks[#gone + 1], seen[id] = id, task, true
    end
end
forget(tag, gone, gone_tasks)
return gone
