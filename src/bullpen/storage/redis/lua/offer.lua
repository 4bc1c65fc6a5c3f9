-- KEYS: tags. ARGV: an offer, for how many seconds it stands. Returns the moment and in how many seconds something may start,
-- '' if that is not known; there is no offer if that is now.
-- WITH clock basics places picks
local moment = now()
local soonest = soonest_start(KEYS, moment)
for _, tag in ipairs(KEYS) do
    if redis.call('EXISTS', tag .. ':ids') == 0 then note(tag) end
    redis.call('ZREMRANGEBYSCORE', tag .. ':offers', '-inf', '(' .. exact(moment))
    if soonest ~= '0' then redis.call('ZADD', tag .. ':offers', exact(moment + tonumber(ARGV[2])), ARGV[1]) end
end
return {exact(moment), soonest}
