-- Make the tasks of a queue due that wait for an event: `model.task.woken`.
-- KEYS: a tag. ARGV: channel, name of the event, the member of :awaiting to go on after or ''. Returns the one that the
-- next call goes on after, or ''. Held by EventTests.
-- WITH clock common write_when_full indexes
local tag, channel, name, after = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local from = after == '' and '[' .. name .. '\0' or '(' .. after
local found = redis.call('ZRANGEBYLEX', tag .. ':awaiting', from, '(' .. name .. '\1', 'LIMIT', 0, 500)
if #found == 0 then return '' end
allow_writes_when_full(tag .. ':state')
local queue, ids, now, woken = changes(tag), {}, server_time(), false
for i, member in ipairs(found) do ids[i] = string.sub(member, #name + 2) end
for i, task in ipairs(read(tag, ids)) do
    if not task or task[AWAITS] ~= name then
        redis.call('ZREM', tag .. ':awaiting', found[i])
    elseif task[STATUS] == 'pending' and task[HOLD] ~= 'paused' and task[ETA] > now then
        leave(queue, ids[i], task)
        task[ETA], woken = now, true
        enter(queue, ids[i], task)
    end
end
flush(queue)
if woken then publish_work(channel, tag) end
return #found == 500 and found[#found] or ''
