-- KEYS: the tags of the settlements' queues and of those to claim from, each once. ARGV: {channel, worker, limit, lease,
-- claim id, the names of the queues, the numbers of those to claim from, settlements as `rows.settlement_of` has them},
-- and results. Returns the id and attempt of each that was refused, the end of the leases, for each that was claimed the
-- number of its queue, id, state, body, its result and the ids of those that it follows, if it has them, and what was
-- settled by its lease, as it is then.
-- WITH clock
local channel, worker, limit, lease, claim_id, names, wanted, settlements, new_state = unpack(cmsgpack.unpack(ARGV[1]))

-- One that has succeeded and has no part in anything else, and nothing is claimed: what somebody waits for most of all. So it
-- is written out here, as what comes behind it would do it.
local one = settlements[1]
if #settlements == 1 and limit == 0 and one[4] == 'success' and not one[14] and not one[15] and #one[16] == 0 then
    local tag, id, result = KEYS[one[1]], one[2], one[12] and ARGV[one[12]]
    local state = redis.call('HGET', tag .. ':state', id)
    local task = state and cmsgpack.unpack(state)
    if task and task[STATUS] == 'running' and task[ATTEMPT] == one[3] and task[CONCURRENCY_KEY] == ''
        and task[THEN_ID] == '' and task[FOLLOWS] == 0 then
        local moment = now()
        redis.call('ZREM', tag .. ':running', id)  -- before what needs memory: see `write_anyway`
        task[STATUS], task[FAILURES], task[CRASHES], task[RUNS] = 'success', one[9], one[10], one[11]
        task[CLAIM_ID], task[FINISHED_AT] = '', moment
        if result then
            redis.call('HSET', tag .. ':result', id, result)
        elseif task[HAS_RESULT] then
            redis.call('HDEL', tag .. ':result', id)
        end
        task[HAS_RESULT], task[RESULT_DROPPED] = result and true or false, one[13]
        local packed, prune_at = cmsgpack.pack(task), 'inf'
        if task[RESULT_TTL] >= 0 then
            prune_at = string.format('%.17g', math.max(moment + task[RESULT_TTL], task[UNIQUE_UNTIL]))
        end
        redis.call('ZADD', tag .. ':finished', prune_at, id)
        redis.call('HSET', tag .. ':state', id, packed)
        redis.call('HINCRBY', tag .. ':counts', 'success', 1)
        if task[AWAITED] == true then
            redis.call('PUBLISH', channel .. ':ends', 'r' .. id)
        elseif task[AWAITED] then
            local body, news = redis.call('HGET', tag .. ':body', id), ''
            if body and #body + #packed + #(result or '') < MOST_NEWS - 1000 then
                news = '\0' .. #id .. ':' .. id .. #packed .. ':' .. packed .. #body .. ':' .. body
                    .. (result and #result .. ':' .. result or '-1:') .. '-1:-1:'
            end
            redis.call('PUBLISH', task[AWAITED], 'r' .. id .. news)
        end
        if redis.call('EXISTS', tag .. ':limits') == 1 then redis.call('PUBLISH', channel, 'w' .. names[one[1]]) end
        return {{}, '0', {}, {}}
    end
end

-- WITH basics anyway moves picks claims shown news
local moment = now()
if #settlements > 0 then write_anyway(KEYS[1] .. ':state') end
local queues, freed, again_in, refused, ended, awaited = {}, {}, {}, {}, {}, {}
local ids, tasks, by_lease = {}, {}, {}
for number, tag in ipairs(KEYS) do queues[number], ids[number] = changes(tag), {} end
for _, one in ipairs(settlements) do table.insert(ids[one[1]], one[2]) end
for number, some in ipairs(ids) do
    local found, by_id = read(KEYS[number], some), {}
    for i, id in ipairs(some) do by_id[id] = by_id[id] or found[i] end
    tasks[number] = by_id
end
for _, one in ipairs(settlements) do
    local number, id, attempt, status, delay, eta, fire, next_run = one[1], one[2], one[3], one[4], one[5], one[6],
        one[7], one[8]
    local failures, crashes, runs, result, dropped, problem, lease_until = one[9], one[10], one[11], one[12], one[13],
        one[14], one[15]
    local task, queue = tasks[number][id], queues[number]
    if not task or task[STATUS] ~= 'running' or task[ATTEMPT] ~= attempt or (lease_until
        and tonumber(redis.call('ZSCORE', queue.tag .. ':running', id) or 0) ~= lease_until) then
        refused[#refused + 1] = id
        refused[#refused + 1] = attempt
    else
        leave(queue, id, task)
        local waits = status == 'pending'
        local completed = status == 'success' or (waits and runs > task[RUNS])
        local again = waits and not task[CANCEL_REQUESTED]
        if waits and not again then status = completed and 'success' or 'cancelled' end
        task[STATUS], task[FAILURES], task[CRASHES], task[RUNS] = status, failures, crashes, runs
        task[CLAIM_ID], task[FINISHED_AT] = '', (again and not completed) and 0 or moment
        if again then
            task[WORKER] = ''
            if task[HOLD] == 'changed' and next_run then
                task[ETA], task[FIRE], task[HOLD] = moment, UNPLANNED, ''
            else
                task[ETA], task[FIRE] = task[HOLD] == 'paused' and LAST_DAY or eta or moment + delay, fire
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
        local packed = enter(queue, id, task)
        if task[AWAITED] and (not again or completed) then
            awaited[#awaited + 1] = {queue.tag, id, task, packed, completed and result and ARGV[result]}
        end
        if again then again_in[number] = true end
        freed[number] = (freed[number] or 0) + 1
        if lease_until then put(by_lease, number, id) end
        if (task[THEN_ID] ~= '' and not again) or #one[16] > 0 then
            ended[#ended + 1] = {queue.tag, id, task, one[16]}
        end
    end
end
for _, queue in ipairs(queues) do flush(queue) end
for _, one in ipairs(awaited) do
    local tag, id, task, packed, result = unpack(one, 1, 5)
    local body, shown = task[AWAITED] ~= true and redis.call('HGET', tag .. ':body', id), {}
    if body then show_one(tag, shown, id, task, packed, body, result) end
    tell_end(channel, id, task, body and as_news(shown, 6))
end
if #ended > 0 then
-- WITH places links additions
    for _, one in ipairs(ended) do
        local tag, id, task, children = one[1], one[2], one[3], one[4]
        if is_final(task[STATUS]) then ripple(tag, id, task, nil, moment, channel) end
        if #children > 0 then
            local to = to_add_to(KEYS, children)
            add(to, children, ARGV[new_state], 'return', -1, moment)
            for _, queue in ipairs(to) do
                if #queue.all > 0 then
                    note(queue.tag)
                    tell_work(channel, queue.tag)
                end
            end
        end
    end
end
local claimed = {}
if limit > 0 and #wanted > 0 then
    local tags, number_of = {}, {}
    for i, number in ipairs(wanted) do tags[i], number_of[KEYS[number]] = KEYS[number], number end
    claimed = claim(tags, limit, moment, worker, lease, claim_id)
    for i = 1, #claimed, 6 do
        local number = number_of[claimed[i]]
        claimed[i] = number
        freed[number] = (freed[number] or 0) - 1
    end
end
-- Others hear of what is due again, and of room in a queue with limits that was not used here.
for number, queue in ipairs(queues) do
    if again_in[number] or ((freed[number] or 0) > 0 and redis.call('EXISTS', queue.tag .. ':limits') == 1) then
        redis.call('PUBLISH', channel, 'w' .. names[number])
    end
end
local taken = {}
for number, some in pairs(by_lease) do taken[#taken + 1] = {number, show(KEYS[number], some)} end
return {refused, exact(moment + lease), claimed, taken}
