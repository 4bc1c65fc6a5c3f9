-- Make finished tasks pending again, with the tasks that were cancelled because of them.
-- KEYS: tags. ARGV: {channel, {number of the tag, id} of each}. Returns the rows of `change_each`.
-- Repeats `model.task.redriven` and `model.links.called_back`. Held by PeopleTests and LinkTests.
-- WITH clock common write_when_full indexes queue_list dependencies task_rows change_each
local channel, wanted = unpack(cmsgpack.unpack(ARGV[1]))
local now = server_time()
return change_each(wanted, channel, function(tag, id, task)
    local was = task[STATUS]
    local packed = is_final(was) and run_again(tag, id, task, now)
    if packed then update_followers(tag, id, task, was, now, channel) end
    return packed
end)
