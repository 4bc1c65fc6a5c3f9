-- KEYS: a tag. ARGV: claim id.
local tag, found = KEYS[1], {}
local ids = redis.call('ZRANGE', tag .. ':running', 0, -1)
for i, task in ipairs(read(tag, ids)) do
    if task and task[CLAIM_ID] == ARGV[1] then found[#found + 1] = ids[i] end
end
return show(tag, found)
