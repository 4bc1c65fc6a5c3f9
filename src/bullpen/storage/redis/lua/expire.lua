-- KEYS: a tag. ARGV: channel, limit. Fails those that were not started in time.
-- WITH clock basics anyway moves places links shown people
local tag, channel, moment, late = KEYS[1], ARGV[1], now(), {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', tag .. ':expiring', '-inf', moment, 'LIMIT', 0, ARGV[2])) do
    late[#late + 1] = {1, id}
end
return change_each(late, channel, function(_, id, task)
    if task[STATUS] ~= 'pending' then return nil end  -- it waited for one of these
    add_error(task, problem('expired', task, moment, NOT_IN_TIME))
    return finish(tag, id, task, 'failed', moment, channel)
end)
