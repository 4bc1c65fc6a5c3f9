-- Find running tasks whose lease has ended, or is longer than any lease, or whose worker is dead. `exchange.lua` settles them. An entry without a
-- task is removed, and a state that says that the task does not run is damaged.
-- KEYS: a tag. ARGV: dead workers. Returns the time, and rows. Held by LeaseTests.
-- WITH clock common task_rows
local tag, now = KEYS[1], server_time()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', tag .. ':running', '(' .. exact(now + MAX_LEASE), 'inf')) do
    redis.call('ZADD', tag .. ':running', 0, id)
end
local late = redis.call('ZRANGEBYSCORE', tag .. ':running', '-inf', now)
local states = values(tag .. ':state', late)
for i, id in ipairs(late) do
    local task = states[i] and unpacked(tag, id, states[i])
    if not task then
        redis.call('ZREM', tag .. ':running', id)
    elseif task[STATUS] ~= 'running' then
        replace_damaged(tag, id, states[i], task)
    end
end
if #ARGV > 0 then
    local dead, ids = {}, redis.call('ZRANGEBYSCORE', tag .. ':running', '(' .. exact(now), 'inf')
    for _, worker in ipairs(ARGV) do dead[worker] = true end
    for i, task in ipairs(read(tag, ids)) do
        if task and dead[task[WORKER]] then late[#late + 1] = ids[i] end
    end
end
return {exact(now), rows_of(tag, late)}
