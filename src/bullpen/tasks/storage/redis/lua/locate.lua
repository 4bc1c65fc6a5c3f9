-- Tell which tasks are in a queue. KEYS: a tag. ARGV: ids. Returns 1 for each that is, else 0. Held by PeopleTests.
-- WITH clock common
local found = values(KEYS[1] .. ':state', ARGV)
for i = 1, #ARGV do found[i] = found[i] and 1 or 0 end
return found
