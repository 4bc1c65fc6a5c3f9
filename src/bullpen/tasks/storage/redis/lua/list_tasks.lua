-- Read one page of a queue, in the order of ids.
-- KEYS: a tag. ARGV: size of the page, the id to start after or '', the index: ':ids', ':failed', ':running' or ':awaiting',
-- '1' for the reverse order, the event that is awaited or '' for any. Returns the id to go on after or '', and rows. An id without a task leaves the index.
-- Held by PeopleTests.
-- WITH clock common task_rows
local tag, most, after, newest = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[4] == '1'
if ARGV[3] == ':ids' or ARGV[3] == ':failed' then
    local start = after ~= '' and '(' .. after or newest and '+' or '-'
    local page
    if newest then
        page = redis.call('ZRANGE', tag .. ARGV[3], start, '-', 'BYLEX', 'REV', 'LIMIT', 0, most)
    else
        page = redis.call('ZRANGEBYLEX', tag .. ARGV[3], start, '+', 'LIMIT', 0, most)
    end
    for i, state in ipairs(values(tag .. ':state', page)) do
        if not state then redis.call('ZREM', tag .. ARGV[3], page[i]) end
    end
    return {#page == most and page[most] or '', rows_of(tag, page)}
end
local ids, members = {}, nil
if ARGV[3] == ':running' then
    members = redis.call('ZRANGE', tag .. ':running', 0, -1)
elseif ARGV[5] == '' then
    members = redis.call('ZRANGE', tag .. ':awaiting', 0, -1)
else
    members = redis.call('ZRANGEBYLEX', tag .. ':awaiting', '[' .. ARGV[5] .. '\0', '(' .. ARGV[5] .. '\1')
end
for _, member in ipairs(members) do
    local id = string.match(member, '[^%z]*$')
    if after == '' or (newest and id < after) or (not newest and id > after) then ids[#ids + 1] = id end
end
table.sort(ids, newest and function(a, b) return a > b end or nil)
for i = #ids, most + 1, -1 do ids[i] = nil end
return {#ids == most and ids[most] or '', rows_of(tag, ids)}
