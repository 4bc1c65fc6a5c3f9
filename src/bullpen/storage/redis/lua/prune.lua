-- KEYS: a tag. ARGV: limit. Forgets what was kept for long enough; how many.
-- WITH clock basics moves places links forgetting
local moment, most, offset, gone, tasks = now(), tonumber(ARGV[1]), 0, {}, {}
while #gone < most do
    local ids = redis.call('ZRANGEBYSCORE', KEYS[1] .. ':finished', '-inf', moment, 'LIMIT', offset, most)
    for i, task in ipairs(read(KEYS[1], ids)) do
        if #gone < most and may_go(KEYS[1], task) then gone[#gone + 1], tasks[#gone + 1] = ids[i], task end
    end
    offset = offset + #ids
    if #ids < most then break end
end
forget(KEYS[1], gone, tasks)
return #gone
