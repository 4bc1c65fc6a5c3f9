-- Change tasks one after the other: {number of the tag, id} each. `change` gets the tag, the id and the task, and
-- returns the packed state, or nil if it changes nothing. Returns the number of the tag and a row for each task that
-- was changed.
local function change_each(wanted, channel, change)
    local changed, notify = {}, {}
    for _, one in ipairs(wanted) do
        local number, id = one[1], one[2]
        local tag = KEYS[number]
        local task = read(tag, {id})[1]
        if task then allow_writes_when_full(tag .. ':state') end
        local packed = task and change(tag, id, task)
        if packed then
            changed[#changed + 1] = number
            append_row(tag, changed, id, task, packed, redis.call('HGET', tag .. ':body', id))
            notify[number] = notify[number] or task[STATUS] == 'pending' or task[CONCURRENCY_KEY] ~= ''
        end
    end
    for number, has_work in pairs(notify) do
        if has_work then publish_work(channel, KEYS[number]) end
    end
    return changed
end
