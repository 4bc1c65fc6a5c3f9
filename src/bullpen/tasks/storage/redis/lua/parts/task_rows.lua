-- A row is a task in seven words: id, state, body, result, dependencies, steps, lease. `rows.task_of` reads it.

local function append_row(tag, rows, id, task, packed, body)
    local n = #rows
    rows[n + 1], rows[n + 2], rows[n + 3] = id, packed, body or ''
    rows[n + 4] = task[HAS_RESULT] and redis.call('HGET', tag .. ':result', id)
    rows[n + 5] = task[DEPENDS_ON] > 0 and redis.call('HGET', tag .. ':depends_on', id)
    rows[n + 6] = task[STEPS] > 0 and redis.call('HVALS', tag .. ':steps:' .. id)
    rows[n + 7] = task[STATUS] == 'running' and redis.call('ZSCORE', tag .. ':running', id)
end

-- The ids of the running tasks of a claim.
local function claimed_as(tag, claim_id)
    local found, ids = {}, redis.call('ZRANGE', tag .. ':running', 0, -1)
    for i, task in ipairs(read(tag, ids)) do
        if task and task[CLAIM_ID] == claim_id then found[#found + 1] = ids[i] end
    end
    return found
end

-- The rows of the tasks that exist.
local function rows_of(tag, ids)
    local rows = {}
    if #ids == 0 then return rows end
    local states, bodies = values(tag .. ':state', ids), values(tag .. ':body', ids)
    for i, id in ipairs(ids) do
        local task = states[i] and unpacked(tag, id, states[i])
        if task then
            append_row(tag, rows, id, task, task[UNREADABLE] == '' and states[i] or cmsgpack.pack(task), bodies[i])
        end
    end
    return rows
end
