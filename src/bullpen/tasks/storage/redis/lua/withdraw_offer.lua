-- Withdraw an offer, or find what was claimed by it.
-- KEYS: tags. ARGV: the offer, its claim id. Returns the number of the tag and a row for each task that was claimed.
-- Held by tests/contracts/test_redis_storage.py.
-- WITH clock common indexes pick claim task_rows attachment offers
local found = {}
if withdraw(KEYS, ARGV[1]) then return found end
for number, tag in ipairs(KEYS) do
    local words = rows_of(tag, claimed_as(tag, ARGV[2]))
    for i = 1, #words, 6 do
        found[#found + 1] = number
        for j = i, i + 5 do found[#found + 1] = words[j] or false end
    end
end
return found
