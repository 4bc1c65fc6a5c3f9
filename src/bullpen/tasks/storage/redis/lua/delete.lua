-- Delete finished tasks whose result no other task waits for.
-- KEYS: a tag. ARGV: ids. Returns how many were deleted. Held by PeopleTests.
-- WITH clock common indexes queue_list dependencies delete_tasks
local gone, gone_tasks, seen = {}, {}, {}
for i, task in ipairs(read(KEYS[1], ARGV)) do
    if may_be_deleted(KEYS[1], task) and not seen[ARGV[i]] then
        gone[#gone + 1], gone_tasks[#gone + 1], seen[ARGV[i]] = ARGV[i], task, true
    end
end
delete_tasks(KEYS[1], gone, gone_tasks)
return #gone
