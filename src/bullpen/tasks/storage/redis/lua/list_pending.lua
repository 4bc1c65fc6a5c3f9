-- Read a page of the pending tasks of a queue, by eta and id.
-- KEYS: a tag. ARGV: size of the page, and the eta and the id to start after, unless it is the first page. Returns rows.
-- Held by PeopleTests.
-- WITH clock common task_rows
local tag, most, eta, after = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]

-- The rank of the first task behind `after`. Tasks of one eta are in the order of their ids.
local function start_of(key)
    if not eta then return 0 end
    local low, high = redis.call('ZCOUNT', key, '-inf', '(' .. eta), redis.call('ZCOUNT', key, '-inf', eta)
    while low < high do
        local middle = math.floor((low + high) / 2)
        if redis.call('ZRANGE', key, middle, middle)[1] <= after then low = middle + 1 else high = middle end
    end
    return low
end

local found = {}
for _, name in ipairs({':ready:', ':keyed:'}) do
    for priority = 0, 9 do
        local key = tag .. name .. priority
        local start = start_of(key)
        local page = redis.call('ZRANGE', key, start, start + most - 1, 'WITHSCORES')
        for i = 1, #page, 2 do found[#found + 1] = {tonumber(page[i + 1]), page[i]} end
    end
end
table.sort(found, function(a, b)
    if a[1] ~= b[1] then return a[1] < b[1] end
    return a[2] < b[2]
end)
local ids = {}
for i = 1, math.min(most, #found) do ids[i] = found[i][2] end
return rows_of(tag, ids)
