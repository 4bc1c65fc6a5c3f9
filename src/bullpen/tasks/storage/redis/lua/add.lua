-- Add tasks of any kind to one queue or several, all or none of them.
-- KEYS: the tags of the queues. ARGV: {channel, duplicates policy, push limit or -1, tasks as `rows.new_task` packs
-- them}, the state of a new task, the bodies.
-- Returns the time, the numbers of the queues that the caller has to list, and for each task that exists already its
-- number and the id that it has. If the policy is `reject` and a key is taken: -1, the number of the task, the id of
-- the holder.
-- Repeats `model.task.new_as_kept` and `model.unique.meet`. Held by AddingTests, UniqueTests and LinkTests.
-- WITH clock common indexes queue_list add_tasks
local channel, policy, push_limit, tasks = unpack(cmsgpack.unpack(ARGV[1]))
local now = server_time()
local queues, was_empty, unlisted = to_add_to(KEYS, tasks), {}, {}
for number, tag in ipairs(KEYS) do was_empty[number] = redis.call('EXISTS', tag .. ':ids') == 0 end

if policy == 'reject' then
    local coming = {}
    for i, new in ipairs(tasks) do
        local number, id, key = new[1], new[2], new[7]
        if key ~= '' and not queues[number].existing[id] then
            local place = number .. ' ' .. key
            local other = holder(KEYS[number], key, now) or coming[place]
            if other and other ~= id then return {-1, i, other} end
            coming[place] = id
        end
    end
end

local others = add(queues, tasks, ARGV[2], policy, push_limit, now)
for number, queue in ipairs(queues) do
    local added = queue.all
    if #added > 0 and was_empty[number] and not list_queue(queue.tag) then unlisted[#unlisted + 1] = number end
    if #added > 0 then publish_work(channel, queue.tag) end
end
return {exact(now), unlisted, others}
