-- Claiming: `model.task.claimed`.

-- Claim at most `limit` tasks that may start. Returns tag, id, state, body, result, dependencies and steps of each.
local function claim(tags, limit, now, worker, lease, claim_id)
    local claimed, queues, ids, at = {}, {}, {}, {}
    for place, one in ipairs((pick(tags, limit, now))) do
        local from, id, task = one[1], one[2], one[3]
        local tag, n = from.tag, #claimed
        queues[tag] = queues[tag] or changes(tag)
        leave(queues[tag], id, task)
        task[STATUS], task[ATTEMPT], task[WORKER], task[CLAIM_ID] = 'running', task[ATTEMPT] + 1, worker, claim_id
        task[STARTED_AT] = now
        local state = enter(queues[tag], id, task, exact(now + lease))
        if from.rate then redis.call('ZADD', tag .. ':starts', now, claim_id .. '/' .. place .. '/' .. id) end
        claimed[n + 1], claimed[n + 2], claimed[n + 3], claimed[n + 4] = tag, id, state, false
        claimed[n + 5] = task[HAS_RESULT] and redis.call('HGET', tag .. ':result', id)
        claimed[n + 6] = task[DEPENDS_ON] > 0 and redis.call('HGET', tag .. ':depends_on', id)
        claimed[n + 7] = task[STEPS] > 0 and redis.call('HVALS', tag .. ':steps:' .. id)
        put(ids, tag, id)
    end
    local bodies = {}
    for tag, queue in pairs(queues) do
        bodies[tag], at[tag] = values(tag .. ':body', ids[tag]), 0
        flush(queue)
    end
    for i = 1, #claimed, 7 do
        local tag = claimed[i]
        at[tag] = at[tag] + 1
        claimed[i + 3] = bodies[tag][at[tag]]
    end
    return claimed
end
