-- Count the tasks of a queue by status.
-- KEYS: a tag. ARGV: the statuses. Returns a count for each. Held by PeopleTests.
local counts = redis.call('HMGET', KEYS[1] .. ':counts', unpack(ARGV))
for i, status in ipairs(ARGV) do
    if status == 'running' then counts[i] = redis.call('ZCARD', KEYS[1] .. ':running') end
    if not string.match(counts[i] or '0', '^%d+$') then return redis.error_reply('DAMAGED counts') end
end
return counts
