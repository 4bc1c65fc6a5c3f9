-- Tasks that wait for others, maybe in other queues.

-- How many of those that a task waits for are not done; nothing if one of them has not succeeded.
local function unfinished(tag, id, task)
    local left, followed = 0, task[FOLLOWS] > 0 and cmsgpack.unpack(redis.call('HGET', tag .. ':follows', id)) or {}
    for i = #followed, 1, -1 do  -- the last to run again first: one that has not is enough
        local _, member = find(tag, followed[i])
        if member and not is_final(member[STATUS]) then
            left = left + 1
        elseif member and member[STATUS] ~= 'success' and not task[ANYWAY] then
            return nil
        end
    end
    return left
end

-- A task that is over waits again, for those others that are not done. Returns its state as it is written; nothing if
-- another task has its unique key, or if one that it waits for has to run again first.
local function come_back(tag, id, task, moment)
    local left, was, queue = unfinished(tag, id, task), task[STATUS], changes(tag)
    if not left then return nil end
    task[STATUS] = 'pending'
    local other = has_key(task) and holder(tag, task[UNIQUE_KEY], moment)
    task[STATUS] = was
    if other and other ~= id then return nil end
    leave(queue, id, task)
    task[STATUS], task[ETA], task[EXPIRES], task[FAILURES] = 'pending', left > 0 and LAST_DAY or moment, 0, 0
    task[CRASHES], task[WORKER], task[CANCEL_REQUESTED], task[FINISHED_AT] = 0, '', false, 0
    task[WAITS_FOR] = left
    local packed = enter(queue, id, task)
    flush(queue)
    return packed
end

-- What becomes of those behind a task that has ended, or has come back and `was` something else: as in `links.py`.
local function ripple(tag, id, task, was, moment, channel)
    while task[THEN_ID] ~= '' do
        local next_id, follower = task[THEN_ID], nil
        tag, follower = find(tag, next_id)
        if not follower then return end
        local queue = changes(tag)
        local waits = follower[STATUS] == 'pending' and follower[WAITS_FOR] > 0
        if not was and waits and (task[STATUS] == 'success' or follower[ANYWAY]) then
            leave(queue, next_id, follower)
            follower[WAITS_FOR] = follower[WAITS_FOR] - 1
            if follower[WAITS_FOR] == 0 then follower[ETA] = moment end
            enter(queue, next_id, follower)
            flush(queue)
            if follower[WAITS_FOR] == 0 then tell_work(channel, tag) end
            return
        elseif not was and waits then
            leave(queue, next_id, follower)
            follower[STATUS], follower[FINISHED_AT], follower[WAITS_FOR] = 'cancelled', moment, GIVEN_UP
            local why = 'it waited for task ' .. id .. ', which '
                .. (task[STATUS] == 'cancelled' and 'was cancelled' or 'failed')
            add_error(follower, problem('upstream', follower, moment, why))
            enter(queue, next_id, follower)
            flush(queue)
            tell_end(channel, next_id, follower)
        elseif was and waits then
            if was == 'success' or follower[ANYWAY] then
                follower[WAITS_FOR] = follower[WAITS_FOR] + 1
                redis.call('HSET', tag .. ':state', next_id, cmsgpack.pack(follower))
            end
            return
        elseif was and follower[STATUS] == 'cancelled' and follower[WAITS_FOR] == GIVEN_UP then
            if not come_back(tag, next_id, follower, moment) then return end
            was = 'cancelled'
        else
            return
        end
        id, task = next_id, follower
    end
end

-- A task that waits is over, and those behind it know. Returns its state as it is written.
local function finish(tag, id, task, status, moment, channel)
    local queue = changes(tag)
    leave(queue, id, task)
    task[STATUS], task[FINISHED_AT] = status, moment
    local packed = enter(queue, id, task)
    flush(queue)
    ripple(tag, id, task, nil, moment, channel)
    tell_end(channel, id, task)
    return packed
end

-- Whether a task is over, and nobody waits for its result.
local function may_go(tag, task)
    if not task or not is_final(task[STATUS]) then return false end
    if task[THEN_ID] == '' then return true end
    local _, follower = find(tag, task[THEN_ID])
    return not follower or is_final(follower[STATUS])
end
