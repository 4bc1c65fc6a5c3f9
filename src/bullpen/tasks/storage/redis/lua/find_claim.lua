-- Find the tasks of a claim, and withdraw its offer, so that nothing is claimed by it later.
-- KEYS: a tag. ARGV: claim id. Returns rows. Held by ClaimingTests.
-- WITH clock common task_rows
local offers = KEYS[1] .. ':offers'
for _, offer in ipairs(redis.call('ZRANGE', offers, 0, -1)) do
    if cmsgpack.unpack(offer)[4] == ARGV[1] then redis.call('ZREM', offers, offer) end
end
return rows_of(KEYS[1], claimed_as(KEYS[1], ARGV[1]))
