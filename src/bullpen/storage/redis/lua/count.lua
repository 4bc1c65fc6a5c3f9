-- KEYS: a tag. ARGV: every status. Returns how many there are in each.
local counts = redis.call('HMGET', KEYS[1] .. ':counts', unpack(ARGV))
for i, status in ipairs(ARGV) do
    if status == 'running' then counts[i] = redis.call('ZCARD', KEYS[1] .. ':running') end
end
return counts
