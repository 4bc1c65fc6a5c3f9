-- Add counts to the history.
-- KEYS: a block of the history. ARGV: when it is deleted, then for each row its field and its vectors, as JSON.
-- Repeated after a lost reply, it counts twice. Held by HistoryTests.
local function sum_of(a, b)
    for place, count in ipairs(b) do a[place] = (a[place] or 0) + count end
    return a
end

for i = 2, #ARGV, 2 do
    local field, given = ARGV[i], cjson.decode(ARGV[i + 1])
    local there = redis.call('HGET', KEYS[1], field)
    if there then
        for n, vector in ipairs(cjson.decode(there)) do given[n] = sum_of(vector, given[n]) end
    end
    local words = {}
    for n, vector in ipairs(given) do words[n] = '[' .. table.concat(vector, ',') .. ']' end
    redis.call('HSET', KEYS[1], field, '[' .. table.concat(words, ',') .. ']')
end
redis.call('EXPIREAT', KEYS[1], ARGV[1])
