-- Keep a step of a running attempt.
-- KEYS: a tag. ARGV: id, attempt, name, step. Returns 0 if the attempt does not hold the task any more, else 1.
-- Held by StepTests.
-- WITH clock common write_when_full
local task = read(KEYS[1], {ARGV[1]})[1]
if not task or task[STATUS] ~= 'running' or task[ATTEMPT] ~= tonumber(ARGV[2]) then return 0 end
allow_writes_when_full(KEYS[1] .. ':state')
redis.call('HSET', KEYS[1] .. ':steps:' .. ARGV[1], ARGV[3], ARGV[4])
if task[STEPS] == 0 then
    task[STEPS] = 1
    redis.call('HSET', KEYS[1] .. ':state', ARGV[1], cmsgpack.pack(task))
end
return 1
