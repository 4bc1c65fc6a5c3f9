-- KEYS: a tag. ARGV: id, attempt, progress.
-- WITH clock basics anyway
local task = read(KEYS[1], {ARGV[1]})[1]
if not task or task[STATUS] ~= 'running' or task[ATTEMPT] ~= tonumber(ARGV[2]) then return 0 end
task[PROGRESS] = ARGV[3]
write_anyway(KEYS[1] .. ':state')
redis.call('HSET', KEYS[1] .. ':state', ARGV[1], cmsgpack.pack(task))
return 1
