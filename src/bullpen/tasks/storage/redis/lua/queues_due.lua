-- Find the queues that have an entry in a sorted set up to a time.
-- KEYS: tags. ARGV: the name of the set, the time or '' for now. Returns the numbers of the tags. Held by
-- UpkeepTests.
-- WITH clock common
local until_then, found = ARGV[2] == '' and exact(server_time()) or ARGV[2], {}
for number, tag in ipairs(KEYS) do
    if redis.call('ZCOUNT', tag .. ARGV[1], '-inf', until_then) > 0 then found[#found + 1] = number end
end
return found
