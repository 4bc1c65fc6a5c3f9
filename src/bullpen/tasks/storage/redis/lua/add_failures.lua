-- Add failures to those of a day. The example is that of the latest failure.
-- KEYS: a day of failures. ARGV: when it is deleted, then for each row its field and {count, first, last, example}, as
-- JSON. Repeated after a lost reply, it counts twice. Repeats `model.failure_groups.merged`. Held by HistoryTests.
for i = 2, #ARGV, 2 do
    local field, value = ARGV[i], ARGV[i + 1]
    local there = redis.call('HGET', KEYS[1], field)
    local ok, old = pcall(cjson.decode, there or '')
    -- A row that another program has damaged starts again.
    if ok and type(old) == 'table' and type(old[1]) == 'number' and type(old[2]) == 'number'
        and type(old[3]) == 'number' and type(old[4]) == 'string' and old[1] >= 0 and old[1] <= MAX_COUNTED then
        local new = cjson.decode(value)
        local example = old[3] > new[3] and old[4] or new[4]
        value = string.format('[%d,%.6f,%.6f,%s]', old[1] + new[1], math.min(old[2], new[2]), math.max(old[3], new[3]),
            cjson.encode(example))
    end
    redis.call('HSET', KEYS[1], field, value)
end
redis.call('EXPIREAT', KEYS[1], ARGV[1])
