-- KEYS: tags. ARGV: which of their sets, by time, and until when, '' if that is now. Returns the numbers of those tags in
-- whose set there is something.
-- WITH clock basics
local until_then, found = ARGV[2] == '' and exact(now()) or ARGV[2], {}
for number, tag in ipairs(KEYS) do
    if redis.call('ZCOUNT', tag .. ARGV[1], '-inf', until_then) > 0 then found[#found + 1] = number end
end
return found
