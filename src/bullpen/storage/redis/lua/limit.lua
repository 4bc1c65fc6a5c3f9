-- KEYS: a tag. ARGV: channel, queue, then each term of its limits and what it is, '' if there is none.
-- WITH clock basics anyway places
local limits = KEYS[1] .. ':limits'
write_anyway(limits)
for i = 3, #ARGV, 2 do
    if ARGV[i + 1] == '' then
        redis.call('HDEL', limits, ARGV[i])
    else
        redis.call('HSET', limits, ARGV[i], ARGV[i + 1])
    end
end
note(KEYS[1])
leave_list_if_unused(KEYS[1])
redis.call('PUBLISH', ARGV[1], 'w' .. ARGV[2])
return 1
