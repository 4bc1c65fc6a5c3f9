-- Read the earliest pending tasks of a queue.
-- KEYS: a tag. ARGV: how many of each priority. Returns rows. Held by PeopleTests.
-- WITH clock common task_rows
local ids = {}
for _, name in ipairs({':ready:', ':keyed:'}) do
    for priority = 0, 9 do
        for _, id in ipairs(redis.call('ZRANGE', KEYS[1] .. name .. priority, 0, tonumber(ARGV[1]) - 1)) do
            ids[#ids + 1] = id
        end
    end
end
return rows_of(KEYS[1], ids)
