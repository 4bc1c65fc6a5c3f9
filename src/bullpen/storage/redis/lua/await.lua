-- KEYS: a tag. ARGV: id, runs. Says that somebody waits; 1 if there is nothing to wait for, 0 if there is, -1 if
-- there is no such task.
local task = read(KEYS[1], {ARGV[1]})[1]
if not task then return -1 end
if is_final(task[STATUS]) or task[RUNS] > tonumber(ARGV[2]) then return 1 end
if not task[AWAITED] then
    task[AWAITED] = true
    redis.call('HSET', KEYS[1] .. ':state', ARGV[1], cmsgpack.pack(task))
end
return 0
