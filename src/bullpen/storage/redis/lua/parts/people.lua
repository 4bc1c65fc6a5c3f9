-- Change tasks as people ask for it, one after the other: {number of its tag, id} each. `change` gets the tag, id and task,
-- and returns the state as it is written, or nothing. Returns those that were changed, as they were then: the number of
-- the tag, and six words of `show_one`.
local function change_each(wanted, channel, change)
    local changed, told = {}, {}
    for _, one in ipairs(wanted) do
        local number, id = one[1], one[2]
        local tag = KEYS[number]
        local task = read(tag, {id})[1]
        if task then write_anyway(tag .. ':state') end
        local packed = task and change(tag, id, task)
        if packed then
            changed[#changed + 1] = number
            show_one(tag, changed, id, task, packed, redis.call('HGET', tag .. ':body', id))
            told[number] = told[number] or task[STATUS] == 'pending' or task[CONCURRENCY_KEY] ~= ''
        end
    end
    for number, is_news in pairs(told) do
        if is_news then tell_work(channel, KEYS[number]) end
    end
    return changed
end
