-- KEYS: a tag. ARGV: dead workers. Returns the moment, and what may be taken back.
-- WITH clock basics shown
local tag, moment = KEYS[1], now()
local late = redis.call('ZRANGEBYSCORE', tag .. ':running', '-inf', moment)
if #ARGV > 0 then
    local dead, ids = {}, redis.call('ZRANGEBYSCORE', tag .. ':running', '(' .. exact(moment), 'inf')
    for _, worker in ipairs(ARGV) do dead[worker] = true end
    for i, task in ipairs(read(tag, ids)) do
        if task and dead[task[WORKER]] then late[#late + 1] = ids[i] end
    end
end
return {exact(moment), show(tag, late)}
