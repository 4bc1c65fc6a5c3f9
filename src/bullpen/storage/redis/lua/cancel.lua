-- KEYS: tags. ARGV: {channel, those that are wanted}. Cancels those that wait, and asks for those that run.
-- WITH clock basics anyway moves places links shown people
local channel, wanted = unpack(cmsgpack.unpack(ARGV[1]))
local moment = now()
return change_each(wanted, channel, function(tag, id, task)
    if task[STATUS] == 'pending' then return finish(tag, id, task, 'cancelled', moment, channel) end
    if task[STATUS] ~= 'running' then return nil end
    task[CANCEL_REQUESTED] = true
    local packed = cmsgpack.pack(task)
    redis.call('HSET', tag .. ':state', id, packed)
    return packed
end)
