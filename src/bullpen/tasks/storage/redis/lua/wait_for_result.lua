-- Mark a task as awaited, unless it has ended: no end is missed between the look and the mark.
-- KEYS: a tag. ARGV: id, completed runs, the channel of the waiting client.
-- Returns 0 if the client has to wait, else the row of the task, if it exists. Held by WaitingTests.
-- WITH clock common write_when_full task_rows
local task = read(KEYS[1], {ARGV[1]})[1]
if not task or is_final(task[STATUS]) or task[COMPLETED_RUNS] > tonumber(ARGV[2]) then
    return rows_of(KEYS[1], {ARGV[1]})
end
if task[AWAITED] ~= ARGV[3] and task[AWAITED] ~= true then
    task[AWAITED] = task[AWAITED] and true or ARGV[3]
    allow_writes_when_full(KEYS[1] .. ':state')
    redis.call('HSET', KEYS[1] .. ':state', ARGV[1], cmsgpack.pack(task))
end
return 0
