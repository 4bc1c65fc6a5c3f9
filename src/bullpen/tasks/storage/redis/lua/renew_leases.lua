-- Renew the leases of attempts.
-- KEYS: a tag. ARGV: lease, then id and attempt of each. Returns for each 0 if the attempt has lost its task, 1 if it
-- holds it, 2 if it holds it and a cancellation is requested. Held by LeaseTests.
-- WITH clock common write_when_full indexes
local tag, until_then = KEYS[1], exact(server_time() + tonumber(ARGV[1]))
allow_writes_when_full(tag .. ':state')
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
