-- Save the progress of a running attempt.
-- KEYS: a tag. ARGV: id, attempt, progress. Returns 0 if the attempt does not hold the task any more, else 1.
-- Held by LeaseTests.
-- WITH clock common write_when_full
local task = read(KEYS[1], {ARGV[1]})[1]
if not task or task[STATUS] ~= 'running' or task[ATTEMPT] ~= tonumber(ARGV[2]) then return 0 end
task[PROGRESS] = ARGV[3]
allow_writes_when_full(KEYS[1] .. ':state')
redis.call('HSET', KEYS[1] .. ':state', ARGV[1], cmsgpack.pack(task))
return 1
