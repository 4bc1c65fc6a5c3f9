-- KEYS: a tag. ARGV: how many at most, the id to begin behind or '', and whether only those that run are wanted.
-- WITH clock basics shown
local tag, most, after = KEYS[1], tonumber(ARGV[1]), ARGV[2]
if ARGV[3] ~= '1' then
    local start = after == '' and '-' or '(' .. after
    return show(tag, redis.call('ZRANGEBYLEX', tag .. ':ids', start, '+', 'LIMIT', 0, most))
end
local ids = {}
for _, id in ipairs(redis.call('ZRANGE', tag .. ':running', 0, -1)) do
    if id > after then ids[#ids + 1] = id end
end
table.sort(ids)
for i = #ids, most + 1, -1 do ids[i] = nil end
return show(tag, ids)
