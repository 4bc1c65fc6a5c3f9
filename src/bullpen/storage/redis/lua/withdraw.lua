-- KEYS: tags. ARGV: an offer, its claim id. Returns what was claimed by it: the number of the tag and six words each.
-- WITH clock basics moves picks claims shown news offers
local found = {}
if withdraw(KEYS, ARGV[1]) then return found end
for number, tag in ipairs(KEYS) do
    local words = show(tag, claimed_as(tag, ARGV[2]))
    for i = 1, #words, 6 do
        found[#found + 1] = number
        for j = i, i + 5 do found[#found + 1] = words[j] or false end
    end
end
return found
