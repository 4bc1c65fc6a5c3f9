-- KEYS: tags. ARGV: {channel, those that are wanted}. Lets those that are over run again.
-- WITH clock basics anyway moves places links shown people
local channel, wanted = unpack(cmsgpack.unpack(ARGV[1]))
local moment = now()
return change_each(wanted, channel, function(tag, id, task)
    local was = task[STATUS]
    local packed = is_final(was) and come_back(tag, id, task, moment)
    if packed then ripple(tag, id, task, was, moment, channel) end
    return packed
end)
