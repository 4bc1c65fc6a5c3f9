-- Delete finished tasks that have been kept long enough and whose result no other task waits for.
-- KEYS: a tag. ARGV: limit. Returns how many were deleted. Held by UpkeepTests.
-- WITH clock common indexes queue_list dependencies delete_tasks
local now, most, offset, gone, tasks = server_time(), tonumber(ARGV[1]), 0, {}, {}
while #gone < most do
    local ids = redis.call('ZRANGEBYSCORE', KEYS[1] .. ':finished', '-inf', now, 'LIMIT', offset, most)
    local lost = 0
    for i, task in ipairs(read(KEYS[1], ids)) do
        if not task then lost = lost + redis.call('ZREM', KEYS[1] .. ':finished', ids[i]) end
        if #gone < most and may_be_deleted(KEYS[1], task) then gone[#gone + 1], tasks[#gone + 1] = ids[i], task end
    end
    offset = offset + #ids - lost
    if #ids < most then break end
end
delete_tasks(KEYS[1], gone, tasks)
return #gone
