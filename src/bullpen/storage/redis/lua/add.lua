-- KEYS: tags. ARGV: {channel, what to do with duplicates, how far they may be pushed or -1, tasks as `rows.new_task`
-- makes them}, the state that all begin with, their bodies. Returns the moment, which of the queues were empty and could
-- not be noted from here, and of those that are there already the place in the list and the id under which they are. If
-- they are rejected: -1, the place of one that is there already, and the id of that.
-- WITH clock basics moves places additions picks claims shown news offers
local channel, policy, push_limit, tasks = unpack(cmsgpack.unpack(ARGV[1]))
local moment = now()
local queues, was_empty, unlisted = to_add_to(KEYS, tasks), {}, {}
for number, tag in ipairs(KEYS) do was_empty[number] = redis.call('EXISTS', tag .. ':ids') == 0 end

if policy == 'reject' then
    local coming = {}
    for i, new in ipairs(tasks) do
        local number, id, key = new[1], new[2], new[7]
        if key ~= '' and not queues[number].there[id] then
            local place = number .. ' ' .. key
            local other = holder(KEYS[number], key, moment) or coming[place]
            if other and other ~= id then return {-1, i, other} end
            coming[place] = id
        end
    end
end

local others = add(queues, tasks, ARGV[2], policy, push_limit, moment)
for number, queue in ipairs(queues) do
    local added = queue.all
    if #added > 0 and was_empty[number] and not note(queue.tag) then unlisted[#unlisted + 1] = number end
    if #added > 2 or (#added == 2 and hand_over(queue.tag, moment) ~= added[2]) then tell_work(channel, queue.tag) end
end
return {exact(moment), unlisted, others}
