-- KEYS: a tag. ARGV: lease, then id and attempt of each. Returns 0 for what is lost, 1 for what is held, 2 for what is
-- held and to be cancelled.
-- WITH clock basics anyway moves
local tag, until_then = KEYS[1], exact(now() + tonumber(ARGV[1]))
write_anyway(tag .. ':state')
local ids, answers, queue = {}, {}, changes(KEYS[1])
for i = 2, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
for i, task in ipairs(read(tag, ids)) do
    if not task or task[STATUS] ~= 'running' or task[ATTEMPT] ~= tonumber(ARGV[2 * i + 1]) then
        answers[i] = 0
    else
        put(queue.added, ':running', until_then, ids[i])
        answers[i] = task[CANCEL_REQUESTED] and 2 or 1
    end
end
flush(queue)
return answers
