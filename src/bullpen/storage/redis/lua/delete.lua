-- KEYS: a tag. ARGV: ids. Forgets the final ones; how many.
-- WITH clock basics moves places links forgetting
local gone, gone_tasks, seen = {}, {}, {}
for i, task in ipairs(read(KEYS[1], ARGV)) do
    if may_go(KEYS[1], task) and not seen[ARGV[i]] then
        gone[#gone + 1], gone_tasks[#gone + 1], seen[ARGV[i]] = ARGV[i], task, true
    end
end
forget(KEYS[1], gone, gone_tasks)
return #gone
