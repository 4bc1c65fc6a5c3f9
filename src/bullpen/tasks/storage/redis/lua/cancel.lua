-- Cancel pending tasks with all that depends on them, and request the cancellation of running tasks.
-- KEYS: tags. ARGV: {channel, {number of the tag, id} of each}. Returns the rows of `change_each`.
-- Repeats `model.task.cancelled_by_operator` and `model.links.followed`. Held by PeopleTests and LinkTests.
-- WITH clock common write_when_full indexes queue_list dependencies task_rows change_each
local channel, wanted = unpack(cmsgpack.unpack(ARGV[1]))
local now = server_time()
return change_each(wanted, channel, function(tag, id, task)
    if task[STATUS] == 'pending' then return finish(tag, id, task, 'cancelled', now, channel) end
    if task[STATUS] ~= 'running' then return nil end
    task[CANCEL_REQUESTED] = true
    local packed = cmsgpack.pack(task)
    redis.call('HSET', tag .. ':state', id, packed)
    return packed
end)
