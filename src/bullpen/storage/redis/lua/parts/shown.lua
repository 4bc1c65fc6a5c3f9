-- A task as clients want it, in six words: id, state, body, result, the ids of those that it follows, lease.
-- `result`: if it is at hand.
local function show_one(tag, shown, id, task, packed, body, result)
    local n = #shown
    shown[n + 1], shown[n + 2], shown[n + 3] = id, packed, body
    shown[n + 4] = task[HAS_RESULT] and (result or redis.call('HGET', tag .. ':result', id))
    shown[n + 5] = task[FOLLOWS] > 0 and redis.call('HGET', tag .. ':follows', id)
    shown[n + 6] = task[STATUS] == 'running' and redis.call('ZSCORE', tag .. ':running', id)
end

-- The ids of the running tasks of a claim.
local function claimed_as(tag, claim_id)
    local found, ids = {}, redis.call('ZRANGE', tag .. ':running', 0, -1)
    for i, task in ipairs(read(tag, ids)) do
        if task and task[CLAIM_ID] == claim_id then found[#found + 1] = ids[i] end
    end
    return found
end

-- Those that are there.
local function show(tag, ids)
    local shown = {}
    if #ids == 0 then return shown end
    local states, bodies = values(tag .. ':state', ids), values(tag .. ':body', ids)
    for i, id in ipairs(ids) do
        if states[i] and bodies[i] then show_one(tag, shown, id, cmsgpack.unpack(states[i]), states[i], bodies[i]) end
    end
    return shown
end
