-- Write changes that the client has computed, to each task that is still as the client has read it.
-- KEYS: a tag. ARGV: channel, queue, changes as `rows.change_of` packs them, new bodies.
-- Returns for each 1 if it was changed, 0 if the task is not the same any more, -1 if another task has its unique
-- key. The client applies the rule, so none is repeated but `model.links`. Held by PeopleTests and ScheduleTests.
-- WITH clock common write_when_full indexes queue_list dependencies
local tag, channel, name = KEYS[1], ARGV[1], ARGV[2]
allow_writes_when_full(tag .. ':state')
local answers, notify = {}, false
for i, one in ipairs(cmsgpack.unpack(ARGV[3])) do
    local id, status, attempt, eta, hold, new_error = one[1], one[2], one[3], one[4], one[5], one[6]
    local task, queue = read(tag, {id})[1], changes(tag)
    if not task or task[STATUS] ~= status or task[ATTEMPT] ~= attempt or task[ETA] ~= eta
        or task[HOLD] ~= hold or task[WAITS_FOR] ~= one[21] then
        answers[i] = 0
    else
        task[STATUS] = one[7]
        local other = has_key(task) and holder(tag, task[UNIQUE_KEY], server_time())
        task[STATUS] = status
        if other and other ~= id then
            answers[i] = -1
        else
            local lease_until = status == 'running' and redis.call('ZSCORE', tag .. ':running', id)
            leave(queue, id, task)
            task[STATUS], task[ETA], task[EXPIRES], task[FAILURES] = one[7], one[8], one[9], one[10]
            task[CRASHES], task[WORKER], task[CANCEL_REQUESTED], task[FINISHED_AT] = one[11], one[12], one[13], one[14]
            task[SCHEDULED_AT], task[HOLD], task[PRIORITY], task[RESULT_TTL] = one[15], one[16], one[17], one[18]
            task[CONCURRENCY_KEY], task[FAILURE_TTL] = one[19], one[22]
            task[AWAITS] = one[24]
            if one[23] and task[STEPS] > 0 then drop_steps(tag, id, task) end
            if one[20] then redis.call('HSET', tag .. ':body', id, ARGV[one[20]]) end
            if new_error then add_error(task, new_error) end
            enter(queue, id, task, lease_until)
            flush(queue)
            if is_final(status) and not is_final(task[STATUS]) then
                update_followers(tag, id, task, status, one[8], channel)
            elseif is_final(task[STATUS]) and not is_final(status) then
                update_followers(tag, id, task, nil, task[FINISHED_AT], channel)
            end
            if is_final(task[STATUS]) then publish_end(channel, id, task) end
            notify = notify or task[STATUS] == 'pending' or task[CONCURRENCY_KEY] ~= ''
            answers[i] = 1
        end
    end
end
if notify then redis.call('PUBLISH', channel, 'w' .. name) end
return answers
