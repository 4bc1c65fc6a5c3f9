-- KEYS: a tag. ARGV: id, runs, the channel of whoever waits. Says that somebody does; returns 0 if there is something to
-- wait for, else the task, if there is one.
-- WITH clock basics anyway shown
local task = read(KEYS[1], {ARGV[1]})[1]
if not task or is_final(task[STATUS]) or task[RUNS] > tonumber(ARGV[2]) then return show(KEYS[1], {ARGV[1]}) end
if task[AWAITED] ~= ARGV[3] and task[AWAITED] ~= true then
    task[AWAITED] = task[AWAITED] and true or ARGV[3]
    write_anyway(KEYS[1] .. ':state')
    redis.call('HSET', KEYS[1] .. ':state', ARGV[1], cmsgpack.pack(task))
end
return 0
