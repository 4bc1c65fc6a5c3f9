-- Read one page of a queue, in the order of ids.
-- KEYS: a tag. ARGV: size of the page, the id to start after or '', '1' for running tasks only, '1' for the reverse
-- order. Returns the id to go on after or '', and rows. An id without a task leaves the index.
-- Held by PeopleTests.
-- WITH clock common task_rows
local tag, most, after, newest = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[4] == '1'
if ARGV[3] ~= '1' then
    local start = after ~= '' and '(' .. after or newest and '+' or '-'
    local page
    if newest then
        page = redis.call('ZRANGE', tag .. ':ids', start, '-', 'BYLEX', 'REV', 'LIMIT', 0, most)
    else
        page = redis.call('ZRANGEBYLEX', tag .. ':ids', start, '+', 'LIMIT', 0, most)
    end
    for i, state in ipairs(values(tag .. ':state', page)) do
        if not state then redis.call('ZREM', tag .. ':ids', page[i]) end
    end
    return {#page == most and page[most] or '', rows_of(tag, page)}
end
local ids = {}
for _, id in ipairs(redis.call('ZRANGE', tag .. ':running', 0, -1)) do
    if after == '' or (newest and id < after) or (not newest and id > after) then ids[#ids + 1] = id end
end
table.sort(ids, newest and function(a, b) return a > b end or nil)
for i = #ids, most + 1, -1 do ids[i] = nil end
return {#ids == most and ids[most] or '', rows_of(tag, ids)}
