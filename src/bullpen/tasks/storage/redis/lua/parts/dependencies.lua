-- Tasks that depend on others, possibly in other queues: `model.links`.

local lists = {}  -- by tag and id: the dependencies of tasks, which never change, as this script has read them

-- The ids of the dependencies of a task.
local function dependencies(tag, id, task)
    local key = tag .. ':' .. id
    if not lists[key] then
        local packed = task[DEPENDS_ON] > 0 and redis.call('HGET', tag .. ':depends_on', id)
        local ok, followed = pcall(cmsgpack.unpack, packed or '')
        lists[key] = ok and type(followed) == 'table' and followed or {}  -- none, or unreadable
    end
    return lists[key]
end

-- How many dependencies of a task have not ended; nil if one of them did not succeed.
local function unfinished(tag, id, task)
    local left, followed = 0, dependencies(tag, id, task)
    for i = #followed, 1, -1 do  -- from the end, where one that failed is most likely
        local _, member = find(tag, followed[i])
        if member and not is_final(member[STATUS]) then
            left = left + 1
        elseif member and member[STATUS] ~= 'success' and not task[RUN_ALWAYS] then
            return nil
        end
    end
    return left
end

-- Make a finished task pending again, until its unfinished dependencies have ended. Returns the packed state; nil if
-- another task has its unique key, or if a dependency has to run again first.
local function run_again(tag, id, task, now)
    local left, was, queue = unfinished(tag, id, task), task[STATUS], changes(tag)
    if not left then return nil end
    task[STATUS] = 'pending'
    local other = has_key(task) and holder(tag, task[UNIQUE_KEY], now)
    task[STATUS] = was
    if other and other ~= id then return nil end
    leave(queue, id, task)
    task[STATUS], task[ETA], task[EXPIRES], task[FAILURES] = 'pending', left > 0 and LAST_DAY or now, 0, 0
    task[CRASHES], task[WORKER], task[CANCEL_REQUESTED], task[FINISHED_AT] = 0, '', false, 0
    task[WAITS_FOR], task[AWAITS] = left, ''
    if was == 'success' and task[STEPS] > 0 then drop_steps(tag, id, task) end
    local packed = enter(queue, id, task)
    flush(queue)
    return packed
end

-- Update the followers of a task that has ended, or of one that is pending again after the status `was`.
local function update_followers(tag, id, task, was, now, channel)
    while task[NEXT_TASK_ID] ~= '' do
        local next_id, follower = task[NEXT_TASK_ID], nil
        tag, follower = find(tag, next_id)
        if not follower then return end
        local queue = changes(tag)
        local waits = follower[STATUS] == 'pending' and follower[WAITS_FOR] > 0
        if not was and waits and (task[STATUS] == 'success' or follower[RUN_ALWAYS]) then
            leave(queue, next_id, follower)
            follower[WAITS_FOR] = follower[WAITS_FOR] - 1
            if follower[WAITS_FOR] == 0 then follower[ETA] = now end
            enter(queue, next_id, follower)
            flush(queue)
            if follower[WAITS_FOR] == 0 then publish_work(channel, tag) end
            return
        elseif not was and waits then
            leave(queue, next_id, follower)
            follower[STATUS], follower[FINISHED_AT], follower[WAITS_FOR] = 'cancelled', now, GIVEN_UP
            local why = 'it waited for task ' .. id .. ', which '
                .. (task[STATUS] == 'cancelled' and 'was cancelled' or 'failed')
            add_error(follower, error_json('upstream', follower, now, why))
            enter(queue, next_id, follower)
            flush(queue)
            publish_end(channel, next_id, follower)
        elseif was and waits then
            if was == 'success' or follower[RUN_ALWAYS] then
                follower[WAITS_FOR] = follower[WAITS_FOR] + 1
                redis.call('HSET', tag .. ':state', next_id, cmsgpack.pack(follower))
            end
            return
        elseif was and follower[STATUS] == 'cancelled' and follower[WAITS_FOR] == GIVEN_UP then
            if not run_again(tag, next_id, follower, now) then return end
            was = 'cancelled'
        else
            return
        end
        id, task = next_id, follower
    end
end

-- Update the followers of tasks that are pending again: {tag, id, task, status before} each. Whether a follower that was
-- given up comes back is asked once, after the last of its dependencies here: each time costs a look at all of them.
local function update_followers_of_all(tasks, now, channel)
    local last = {}
    for i, one in ipairs(tasks) do last[one[3][NEXT_TASK_ID]] = i end
    for i, one in ipairs(tasks) do
        local tag, id, task, was = unpack(one)
        local next_id = task[NEXT_TASK_ID]
        local follower = next_id ~= '' and select(2, find(tag, next_id))
        local is_given_up = follower and follower[STATUS] == 'cancelled' and follower[WAITS_FOR] == GIVEN_UP
        if follower and (not is_given_up or last[next_id] == i) then
            update_followers(tag, id, task, was, now, channel)
        end
    end
end

-- End a pending task and update its followers. Returns the packed state.
local function finish(tag, id, task, status, now, channel)
    local queue = changes(tag)
    leave(queue, id, task)
    task[STATUS], task[FINISHED_AT] = status, now
    local packed = enter(queue, id, task)
    flush(queue)
    update_followers(tag, id, task, nil, now, channel)
    publish_end(channel, id, task)
    return packed
end

-- Whether a task has ended and no other task waits for its result.
local function may_be_deleted(tag, task)
    if not task or not is_final(task[STATUS]) then return false end
    if task[NEXT_TASK_ID] == '' then return true end
    local _, follower = find(tag, task[NEXT_TASK_ID])
    return not follower or is_final(follower[STATUS])
end
