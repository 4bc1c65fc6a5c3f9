-- Fail pending tasks that were not started in time, with all that depends on them.
-- KEYS: a tag. ARGV: channel, limit. Returns the rows of `change_each`.
-- Repeats `model.task.expired`. Held by UpkeepTests.
-- WITH clock common write_when_full indexes queue_list dependencies task_rows change_each
local tag, channel, now, late = KEYS[1], ARGV[1], server_time(), {}
local ids = redis.call('ZRANGEBYSCORE', tag .. ':expiring', '-inf', now, 'LIMIT', 0, ARGV[2])
for i, task in ipairs(read(tag, ids)) do
    if task and task[STATUS] == 'pending' then
        late[#late + 1] = {1, ids[i]}
    else
        redis.call('ZREM', tag .. ':expiring', ids[i])  -- another program has written it
    end
end
return change_each(late, channel, function(_, id, task)
    if task[STATUS] ~= 'pending' then return nil end  -- it depended on one that has just expired
    add_error(task, error_json('expired', task, now, NOT_IN_TIME))
    return finish(tag, id, task, 'failed', now, channel)
end)
