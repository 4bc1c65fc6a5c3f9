-- Cancel, retry or delete tasks of a queue that match a filter, or count them: those with the given ids, or one page.
-- KEYS: a tag. ARGV: {verb, channel, size of the page, id to start after, ids or false, filter}, packed. A filter is
-- {statuses or false, function, worker, error, since, until, fingerprint, key, header or false, event or false}; ''
-- matches every task, or any event.
-- Returns the id to go on after or '', how many match, and id, attempt and status of each that was changed.
-- Repeats `port.TaskFilter.matches`, `model.task.cancelled_by_operator`, `model.task.redriven` and `model.links`. Held by
-- BatchTests.
-- WITH clock common write_when_full indexes queue_list dependencies delete_tasks
local verb, channel, most, after, ids, filter = unpack(cmsgpack.unpack(ARGV[1]))
local tag, now, last = KEYS[1], server_time(), ''
if not ids then
    ids = redis.call('ZRANGEBYLEX', tag .. ':ids', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, most)
    if #ids == most then last = ids[#ids] end
end
local statuses, func_path, worker, name, since, until_then, fingerprint, key, header, awaits = unpack(filter)
local bodies = (func_path ~= '' or header) and values(tag .. ':body', ids)

-- The name of the function and the headers in a body. Lua's msgpack knows no bytes, so the payload between them is
-- skipped by hand; an error if the body is no `rows.TaskBody`.
local function name_and_headers(body)
    local at, path = cmsgpack.unpack_one(body, 1)
    local width = ({[0xc4] = 1, [0xc5] = 2, [0xc6] = 4})[string.byte(body, at + 1)]
    local size = 0
    for i = 1, width do size = size * 256 + string.byte(body, at + 1 + i) end
    return path .. '', (select(BEHIND_PAYLOAD + 1, cmsgpack.unpack_limit(body, BEHIND_PAYLOAD, at + 1 + width + size)))
end

local function matches(i, task)
    if statuses and not statuses[task[STATUS]] then return false end
    if worker ~= '' and task[WORKER] ~= worker then return false end
    local at = is_final(task[STATUS]) and task[FINISHED_AT] > 0 and task[FINISHED_AT] or task[CREATED_AT]
    if at <= since or at > until_then then return false end
    if key ~= '' and task[UNIQUE_KEY] ~= key and task[CONCURRENCY_KEY] ~= key then return false end
    if awaits and (task[STATUS] ~= 'pending' or task[AWAITS] == '' or (awaits ~= '' and task[AWAITS] ~= awaits)) then
        return false
    end
    if bodies then
        local ok, path, headers = pcall(name_and_headers, bodies[i] or '')
        if not ok then return false end
        if func_path ~= '' and string.sub('.' .. path, -1 - #func_path) ~= '.' .. func_path then return false end
        if header and headers[header[1]] ~= header[2] then return false end
    end
    if name == '' and fingerprint == '' then return true end
    local latest = task[ERRORS][#task[ERRORS]]
    if type(latest) ~= 'string' then return false end
    local kind = string.match(latest, '"kind":"([^"]*)"')
    if fingerprint ~= '' and (string.match(latest, '"fingerprint":"([^"]+)"') or kind) ~= fingerprint then
        return false
    end
    if name ~= '' then
        local full = string.match(latest, '"type":"([^"]*)"')
        return kind == name or full == name or (full and string.match(full, '([^.]*)$') == name)
    end
    return true
end

local found, matching, changed, linked, gone, gone_tasks, notify = read(tag, ids), 0, {}, {}, {}, {}, false
local queue = changes(tag)

local function add(id, task)
    changed[#changed + 1], changed[#changed + 2], changed[#changed + 3] = id, task[ATTEMPT], task[STATUS]
    notify = notify or task[STATUS] == 'pending' or task[CONCURRENCY_KEY] ~= ''
end

for i, id in ipairs(ids) do
    local task = found[i]
    if task and matches(i, task) then
        matching = matching + 1
        local is_alone = task[NEXT_TASK_ID] == '' and task[DEPENDS_ON] == 0
        if verb == 'delete' then
            if may_be_deleted(tag, task) then
                gone[#gone + 1], gone_tasks[#gone + 1] = id, task
                add(id, task)
            end
        elseif verb == 'cancel' and task[STATUS] == 'running' then
            task[CANCEL_REQUESTED] = true
            put(queue, 'states', id, cmsgpack.pack(task))
            add(id, task)
        elseif verb == 'cancel' and task[STATUS] == 'pending' and is_alone then
            leave(queue, id, task)
            task[STATUS], task[FINISHED_AT] = 'cancelled', now
            enter(queue, id, task)
            publish_end(channel, id, task)
            add(id, task)
        elseif verb == 'retry' and is_final(task[STATUS]) and is_alone and task[UNIQUE_KEY] == '' then
            leave(queue, id, task)
            if task[STATUS] == 'success' and task[STEPS] > 0 then drop_steps(tag, id, task) end
            task[STATUS], task[ETA], task[EXPIRES], task[FAILURES] = 'pending', now, 0, 0
            task[CRASHES], task[WORKER], task[CANCEL_REQUESTED], task[FINISHED_AT] = 0, '', false, 0
            task[AWAITS] = ''
            enter(queue, id, task)
            add(id, task)
        elseif verb ~= 'count' then
            linked[#linked + 1] = id
        end
    end
end
if verb == 'count' then return {last, matching, {}} end
if verb == 'delete' then
    if #gone > 0 then delete_tasks(tag, gone, gone_tasks) end
    return {last, matching, changed}
end
allow_writes_when_full(tag .. ':state')
flush(queue)
local again = {}
for _, id in ipairs(linked) do
    local task = read(tag, {id})[1]  -- one before it may have changed it
    if task[DEPENDS_ON] > 0 and #again > 0 then
        update_followers_of_all(again, now, channel)
        again, task = {}, read(tag, {id})[1]
    end
    local was = task[STATUS]
    if verb == 'cancel' and was == 'pending' then
        finish(tag, id, task, 'cancelled', now, channel)
        add(id, task)
    elseif verb == 'retry' and is_final(was) and run_again(tag, id, task, now) then
        again[#again + 1] = {tag, id, task, was}
        add(id, task)
    end
end
update_followers_of_all(again, now, channel)
if notify then publish_work(channel, tag) end
return {last, matching, changed}
