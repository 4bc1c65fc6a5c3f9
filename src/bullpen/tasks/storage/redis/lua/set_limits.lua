-- Set or remove limits of a queue, or its pause.
-- KEYS: a tag. ARGV: channel, queue, then name and value of each, '' to remove it. Held by LimitTests.
-- WITH clock common write_when_full queue_list
local limits = KEYS[1] .. ':limits'
allow_writes_when_full(limits)
for i = 3, #ARGV, 2 do
    if ARGV[i + 1] == '' then
        redis.call('HDEL', limits, ARGV[i])
    else
        redis.call('HSET', limits, ARGV[i], ARGV[i + 1])
    end
end
list_queue(KEYS[1])
unlist_if_unused(KEYS[1])
redis.call('PUBLISH', ARGV[1], 'w' .. ARGV[2])
return 1
