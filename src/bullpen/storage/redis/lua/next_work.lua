-- KEYS: tags. Returns in how many seconds something may start, '' if that is not known.
local moment = now()
local picked, again, rooms = pick(KEYS, 1, moment)
if #picked > 0 then return '0' end
local soonest = again
for _, queue in ipairs(rooms) do
    for _, line in ipairs(queue.lines) do
        for priority = 0, line.highest do
            local later = redis.call('ZRANGEBYSCORE', line.name .. priority, '(' .. exact(moment), 'inf', 'WITHSCORES',
                'LIMIT', 0, 1)
            if later[2] then soonest = math.min(soonest, tonumber(later[2]) - moment) end
        end
    end
end
if soonest >= NEVER then return '' end
return exact(math.max(soonest, 0))
