-- Adding tasks of any kind.

-- Add tasks, as `rows.new_task` packs them. Returns for each task that exists already its number and the id that it has.
local function add(queues, tasks, new_state, policy, push_limit, now)
    local others = {}
    for i, new in ipairs(tasks) do
        local number, id, key = new[1], new[2], new[7]
        local queue, task, body = queues[number], cmsgpack.unpack(new_state), ARGV[new[12]]
        local other, old
        task[PRIORITY], task[ETA], task[CREATED_AT] = new[3], new[4] > 0 and new[4] or now, now
        task[EXPIRES], task[RESULT_TTL], task[UNIQUE_KEY], task[CONCURRENCY_KEY] = new[5], new[6], key, new[8]
        task[SCHEDULED_AT], task[UNIQUE_UNTIL], task[KEEPS_KEY] = new[9], new[10], new[11]
        task[NEXT_TASK_ID], task[WAITS_FOR], task[RUN_ALWAYS], task[DEPENDS_ON] = new[13], new[14], new[15], new[16]
        task[MANY], task[PLACE], task[FAILURE_TTL] = new[17], new[18], new[20]
        local followed = new[19]
        if queue.existing[id] or (is_schedule(id) and find(queue.tag, id)) then
            other = id
        elseif key ~= '' then
            flush(queue)  -- a task of the same call may hold the key
            other, old = holder(queue.tag, key, now)
        end
        local replaces = old and policy == 'replace' and old[STATUS] == 'pending'
        if replaces then
            leave(queue, other, old)
            flush(queue)
            if old[STEPS] > 0 then drop_steps(queue.tag, other, old) end
            if push_limit >= 0 then task[ETA] = math.min(task[ETA], old[CREATED_AT] + push_limit) end
            if old[WAITS_FOR] > 0 then task[ETA] = old[ETA] end
            for _, field in ipairs({ATTEMPT, COMPLETED_RUNS, PROGRESS, HAS_RESULT, RESULT_DROPPED, ERRORS, AWAITED, HOLD,
                CREATED_AT, STARTED_AT, FINISHED_AT, NEXT_TASK_ID, WAITS_FOR, RUN_ALWAYS, DEPENDS_ON, MANY, PLACE}) do
                task[field] = old[field]
            end
        end
        if other then
            others[#others + 1] = i
            others[#others + 1] = other
        end
        if not other and #followed > 0 then
            redis.call('HSET', queue.tag .. ':depends_on', id, cmsgpack.pack(followed))
        end
        if not other or replaces then
            enter(queue, other or id, task)
            put(queue, 'bodies', other or id, body)
            put(queue, 'all', 0, other or id)
            queue.existing[id] = true
        end
    end
    for number, queue in ipairs(queues) do
        flush(queue)
        many('HSET', queue.tag .. ':body', queue.bodies)
        many('ZADD', queue.tag .. ':ids', queue.all)
    end
    return others
end

-- The collected writes to the queues of `tasks`, with the ids that exist already.
local function to_add_to(tags, tasks)
    local queues, ids = {}, {}
    for number, tag in ipairs(tags) do
        queues[number], ids[number] = changes(tag), {}
        queues[number].bodies, queues[number].all, queues[number].existing = {}, {}, {}
    end
    for _, new in ipairs(tasks) do table.insert(ids[new[1]], new[2]) end
    for number, some in ipairs(ids) do
        for i, state in ipairs(values(tags[number] .. ':state', some)) do
            if state then queues[number].existing[some[i]] = true end
        end
    end
    return queues
end
