-- Add counts to the history.
-- KEYS: a block of the history. ARGV: when it is deleted, then for each row its field and its vectors, as JSON.
-- Repeated after a lost reply, it counts twice. Held by HistoryTests.
-- A count that another program has damaged starts again at 0.
local function sum_of(there, given)
    local sum = {}
    for place = 1, math.max(type(there) == 'table' and #there or 0, #given) do
        local before = type(there) == 'table' and there[place]
        local is_count = type(before) == 'number' and before >= 0 and before <= MAX_COUNTED and before % 1 == 0
        sum[place] = (is_count and before or 0) + (given[place] or 0)
    end
    return sum
end

for i = 2, #ARGV, 2 do
    local field, given = ARGV[i], cjson.decode(ARGV[i + 1])
    local there = redis.call('HGET', KEYS[1], field)
    local ok, vectors = pcall(cjson.decode, there or '')
    local words = {}
    for n, vector in ipairs(given) do
        local sum = sum_of(ok and type(vectors) == 'table' and vectors[n], vector)
        for place, count in ipairs(sum) do sum[place] = string.format('%.0f', count) end
        words[n] = '[' .. table.concat(sum, ',') .. ']'
    end
    redis.call('HSET', KEYS[1], field, '[' .. table.concat(words, ',') .. ']')
end
redis.call('EXPIREAT', KEYS[1], ARGV[1])
