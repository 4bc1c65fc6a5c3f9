-- KEYS: a tag. ARGV: claim id. It claims nothing from now on, if it was an offer.
-- WITH clock basics shown
local offers = KEYS[1] .. ':offers'
for _, offer in ipairs(redis.call('ZRANGE', offers, 0, -1)) do
    if cmsgpack.unpack(offer)[4] == ARGV[1] then redis.call('ZREM', offers, offer) end
end
return show(KEYS[1], claimed_as(KEYS[1], ARGV[1]))
