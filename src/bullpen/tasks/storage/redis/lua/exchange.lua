-- Settle tasks and claim others, in one step: a worker never holds more than it asked for.
-- KEYS: the tags of the settled tasks, of their children and of the queues to claim from, each once. ARGV: {channel,
-- worker, limit, lease, claim id, names of the queues, numbers of the queues to claim from, settlements as
-- `rows.settlement_of` packs them, number of the argument that has the state of a new task, key of the events}, then results and bodies.
-- Returns id and attempt of each settlement that was rejected; the end of the new leases; for each claimed task the
-- number of its queue, id, state, body, result, dependencies and steps; and the rows of the tasks that were settled by their
-- lease.
-- Repeats `model.task.applies`, `settled` and `claimed`, and `model.links`. Held by ClaimingTests, SettlingTests,
-- LimitTests, LinkTests and the model in tests/properties/test_server_storage_model.py.
-- WITH clock common write_when_full indexes pick claim task_rows
local channel, worker, limit, lease, claim_id, names, wanted, settlements, new_state, events = unpack(cmsgpack.unpack(ARGV[1]))

-- Whether an event is there. A damaged one is not, because no task could read it: it would run again and again.
local function has_come(events, name)
    local stored = redis.pcall('HGET', events, name)
    local at, ends = string.match(type(stored) == 'string' and stored or '', '^([%d.e+-]+) ([%d.e+-]+) ')
    at, ends = tonumber(at or ''), tonumber(ends or '')
    return at and ends and at >= 0 and at <= LAST_DAY and ends >= 0 and ends <= LAST_DAY
end

local now = server_time()
if #settlements > 0 then allow_writes_when_full(KEYS[1] .. ':state') end
local queues, freed, again_in, rejected, ended, awaited = {}, {}, {}, {}, {}, {}
local ids, tasks, by_lease = {}, {}, {}
for number, tag in ipairs(KEYS) do queues[number], ids[number] = changes(tag), {} end
for _, one in ipairs(settlements) do table.insert(ids[one[1]], one[2]) end
for number, some in ipairs(ids) do
    local found, by_id = read(KEYS[number], some), {}
    for i, id in ipairs(some) do by_id[id] = by_id[id] or found[i] end
    tasks[number] = by_id
end
for _, one in ipairs(settlements) do
    local number, id, attempt, status, delay, eta, scheduled_at, next_run = one[1], one[2], one[3], one[4], one[5], one[6],
        one[7], one[8]
    local failures, crashes, completed_runs, result, dropped, problem, lease_until = one[9], one[10], one[11], one[12], one[13],
        one[14], one[15]
    local task, queue = tasks[number][id], queues[number]
    if not task or task[STATUS] ~= 'running' or task[ATTEMPT] ~= attempt or (lease_until
        and tonumber(redis.call('ZSCORE', queue.tag .. ':running', id) or 0) ~= lease_until) then
        rejected[#rejected + 1] = id
        rejected[#rejected + 1] = attempt
    else
        leave(queue, id, task)
        local waits = status == 'pending'
        local completed = status == 'success' or (waits and completed_runs > task[COMPLETED_RUNS])
        local again = waits and not task[CANCEL_REQUESTED]
        if waits and not again then status = completed and 'success' or 'cancelled' end
        task[STATUS], task[FAILURES], task[CRASHES], task[COMPLETED_RUNS] = status, failures, crashes, completed_runs
        task[CLAIM_ID], task[FINISHED_AT] = '', (again and not completed) and 0 or now
        if again then
            task[WORKER], task[AWAITS] = '', one[19]
            if next_run and task[STEPS] > 0 then drop_steps(queue.tag, id, task) end
            if task[HOLD] == 'changed' and next_run then
                task[ETA], task[SCHEDULED_AT], task[HOLD] = now, UNPLANNED, ''
            else
                task[ETA], task[SCHEDULED_AT] = task[HOLD] == 'paused' and LAST_DAY or eta or now + delay, scheduled_at
                -- On a cluster the events may be on another node; then the client looks for them afterwards.
                if one[18] and one[19] ~= '' and task[HOLD] ~= 'paused' and has_come(events, one[19]) then
                    task[ETA] = math.min(task[ETA], now)
                end
            end
        end
        if completed then
            if result then
                local results = queue.results
                results[#results + 1] = id
                results[#results + 1] = ARGV[result]
            elseif task[HAS_RESULT] then
                redis.call('HDEL', queue.tag .. ':result', id)
            end
            task[HAS_RESULT], task[RESULT_DROPPED] = result and true or false, dropped
        end
        if problem then add_error(task, problem) end
        if one[17] then task[PROGRESS] = one[17] end
        if one[18] then task[EXPIRES] = 0 end
        enter(queue, id, task)
        if task[AWAITED] and (not again or completed) then
            awaited[#awaited + 1] = {id, task}
        end
        if again then again_in[number] = true end
        freed[number] = (freed[number] or 0) + 1
        if lease_until then put(by_lease, number, id) end
        if (task[NEXT_TASK_ID] ~= '' and not again) or #one[16] > 0 then
            ended[#ended + 1] = {queue.tag, id, task, one[16]}
        end
    end
end
for _, queue in ipairs(queues) do flush(queue) end
for _, one in ipairs(awaited) do publish_end(channel, one[1], one[2]) end
if #ended > 0 then
-- WITH queue_list dependencies add_tasks
    for _, one in ipairs(ended) do
        local tag, id, task, children = one[1], one[2], one[3], one[4]
        if is_final(task[STATUS]) then update_followers(tag, id, task, nil, now, channel) end
        if #children > 0 then
            local to = to_add_to(KEYS, children)
            add(to, children, ARGV[new_state], 'return', -1, now)
            for _, queue in ipairs(to) do
                if #queue.all > 0 then
                    list_queue(queue.tag)
                    publish_work(channel, queue.tag)
                end
            end
        end
    end
end
local claimed = {}
if limit > 0 and #wanted > 0 then
    local tags, number_of = {}, {}
    for i, number in ipairs(wanted) do tags[i], number_of[KEYS[number]] = KEYS[number], number end
    claimed = claim(tags, limit, now, worker, lease, claim_id)
    for i = 1, #claimed, 7 do
        local number = number_of[claimed[i]]
        claimed[i] = number
        freed[number] = (freed[number] or 0) - 1
    end
end
-- Notify other workers of tasks that are due again, and of room in a limited queue that this claim did not use.
for number, queue in ipairs(queues) do
    if again_in[number] or ((freed[number] or 0) > 0 and redis.call('EXISTS', queue.tag .. ':limits') == 1) then
        redis.call('PUBLISH', channel, 'w' .. names[number])
    end
end
local taken = {}
for number, some in pairs(by_lease) do taken[#taken + 1] = {number, rows_of(KEYS[number], some)} end
return {rejected, exact(now + lease), claimed, taken}
