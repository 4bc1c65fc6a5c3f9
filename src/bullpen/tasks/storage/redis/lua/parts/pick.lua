-- Choosing the tasks that may start next, within the limits of their queues.

-- How many more tasks may start in a queue, in total and of each key, and in how many seconds its rate allows another.
-- A limit that cannot be read holds its queue back.
local function term(written, least)
    local number = written and not string.find(written, '[^%d.e+-]') and tonumber(written)
    return number and number >= least and number <= MAX_LIMIT and number
end

local function room(tag, most, now)
    local limits = redis.call('HMGET', tag .. ':limits', 'paused', 'max_running', 'max_running_per_key', 'rate',
        'in_order')
    if limits[1] then return 0 end
    local left, again = most, NEVER
    local max_running, per_key, rate = term(limits[2], 1), term(limits[3], 1), term(limits[4], MIN_RATE)
    if (limits[2] and not max_running) or (limits[3] and not per_key) or (limits[4] and not rate) then
        return 0
    end
    if max_running then left = math.min(left, max_running - redis.call('ZCARD', tag .. ':running')) end
    if left > 0 and rate then
        local period = math.max(1, 1 / rate)
        redis.call('ZREMRANGEBYSCORE', tag .. ':starts', '-inf', now - period)
        redis.call('ZREMRANGEBYSCORE', tag .. ':starts', now + period, 'inf')  -- no start was in the future
        left = math.min(left, math.ceil(rate * period) - redis.call('ZCARD', tag .. ':starts'))
        if left <= 0 then
            local oldest = redis.call('ZRANGE', tag .. ':starts', 0, 0, 'WITHSCORES')
            again = tonumber(oldest[2]) + period - now
        end
    end
    return left, limits[5] and 1 or per_key or nil, again, rate, limits[5]
end

local PAGE = 100
local READ_IN_VAIN = 100  -- tasks held back by their key, after which it may be cheaper to go on key by key

-- Add the stream of a queue's due tasks with a concurrency key, or of those without. Most queues have no priorities, and
-- one EXISTS tells that.
local function add_stream(queue, name, keyed)
    name = queue.tag .. name
    local has_others = redis.call('EXISTS', name .. 1, name .. 2, name .. 3, name .. 4, name .. 5, name .. 6, name .. 7,
        name .. 8, name .. 9) > 0
    if not has_others and redis.call('EXISTS', name .. 0) == 0 then return end
    queue.streams[#queue.streams + 1] = {queue = queue, name = name, highest = has_others and 9 or 0, keyed = keyed}
end

-- Whether the other indexes of a keyed task agree with its state.
local function is_of_key(stream, priority, id, key)
    return stream.keyed and (is_schedule(id)
        or redis.call('ZSCORE', stream.queue.tag .. ':keyed:' .. priority .. ':' .. key, id))
end

-- The task of an entry in the index of a stream, if it may start. A state that contradicts the indexes is damaged: a
-- claim would take the task out of the indexes of its state, find it in this one again, and claim it without an end.
local function indexed(stream, priority, id, state)
    local tag = stream.queue.tag
    if not state then
        redis.call('ZREM', stream.name .. priority, id)
        return nil
    end
    local task = unpacked(tag, id, state)
    local key = task[CONCURRENCY_KEY]
    if task[STATUS] ~= 'pending' or task[PRIORITY] ~= priority
        or (key == '' and stream.keyed) or (key ~= '' and not is_of_key(stream, priority, id, key)) then
        task = replace_damaged(tag, id, state, task)
    end
    return task[STATUS] == 'pending' and task
end

-- Whether a stream has another due task of a priority. It reads the next page, with the states, if it has to.
local function peek(stream, priority, most, now)
    if stream.at > #stream.page then
        if stream.over then return false end
        local size = stream.offset == 0 and math.min(PAGE, most) or PAGE  -- usually all of them may start
        stream.page, stream.etas = {}, {}
        local found = redis.call('ZRANGEBYSCORE', stream.name .. priority, '-inf', now, 'WITHSCORES',
            'LIMIT', stream.offset, size)
        for i = 1, #found, 2 do
            stream.page[#stream.page + 1] = found[i]
            stream.etas[#stream.etas + 1] = tonumber(found[i + 1])
        end
        stream.offset, stream.at, stream.over = stream.offset + #stream.page, 1, #stream.page < size
        if #stream.page == 0 then return false end
        stream.states = values(stream.queue.tag .. ':state', stream.page)
    end
    return true
end

-- How many tasks of a key run or are picked.
local function count_running(queue, key)
    queue.running[key] = queue.running[key] or tonumber(redis.call('HGET', queue.tag .. ':busy', key) or 0)
    return queue.running[key]
end

-- The first tasks of a key that may start: id and eta of each.
local function first_of(queue, priority, key, most, now)
    local by_key = queue.tag .. ':keyed:' .. priority .. ':' .. key
    if queue.in_order then
        local first = redis.call('ZRANGE', queue.tag .. ':order:' .. key, 0, 0)[1]
        local eta = first and tonumber(redis.call('ZSCORE', by_key, first) or NEVER)
        return (eta and eta <= now) and {first, eta} or {}
    end
    return redis.call('ZRANGEBYSCORE', by_key, '-inf', now, 'WITHSCORES', 'LIMIT', 0,
        math.min(queue.per_key, 2 * most))
end

-- Go on key by key, if there are fewer keys than tasks read in vain: make one page of all tasks that may start.
local function go_by_key(stream, priority, most, now)
    local queue = stream.queue
    local keys = queue.tag .. ':keys:' .. priority
    if redis.call('SCARD', keys) > stream.in_vain then
        stream.worth_a_look = 2 * stream.in_vain
        return
    end
    local heads = {}
    local function add(found)
        for i = 1, #found, 2 do
            if not queue.chosen[found[i]] then heads[#heads + 1] = {tonumber(found[i + 1]), found[i]} end
        end
    end
    for _, key in ipairs(redis.call('SMEMBERS', keys)) do
        if count_running(queue, key) < queue.per_key then add(first_of(queue, priority, key, most, now)) end
    end
    add(redis.call('ZRANGEBYSCORE', queue.tag .. ':regular:' .. priority, '-inf', now, 'WITHSCORES'))
    table.sort(heads, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
    stream.page, stream.etas, stream.at, stream.over, stream.worth_a_look = {}, {}, 1, true, NEVER
    for i, head in ipairs(heads) do stream.etas[i], stream.page[i] = head[1], head[2] end
    stream.states = values(queue.tag .. ':state', stream.page)
end

-- Pick the next tasks that may start, by priority, eta and id: {queue, id, task} each.
local function pick(tags, most, now)
    local picked, rooms, all_streams, again, highest = {}, {}, {}, NEVER, -1
    for _, tag in ipairs(tags) do
        local left, per_key, in_seconds, rate, in_order = room(tag, most, now)
        again = math.min(again, in_seconds or NEVER)
        if left > 0 then
            local queue = {tag = tag, left = left, per_key = per_key, running = {}, chosen = {}, rate = rate, streams = {}}
            queue.in_order = in_order
            rooms[#rooms + 1] = queue
            add_stream(queue, ':ready:', false)
            add_stream(queue, ':keyed:', true)
            for _, stream in ipairs(queue.streams) do
                all_streams[#all_streams + 1] = stream
                highest = math.max(highest, stream.highest)
            end
        end
    end
    for priority = highest, 0, -1 do
        for _, stream in ipairs(all_streams) do
            stream.page, stream.at, stream.offset, stream.over = {}, 1, 0, false
            stream.in_vain, stream.worth_a_look = 0, READ_IN_VAIN
        end
        while #picked < most do
            local first, first_eta, first_id
            for _, stream in ipairs(all_streams) do
                if stream.queue.left > 0 and peek(stream, priority, most, now) then
                    local eta, id = stream.etas[stream.at], stream.page[stream.at]
                    if not first or eta < first_eta or (eta == first_eta and id < first_id) then
                        first, first_eta, first_id = stream, eta, id
                    end
                end
            end
            if not first then break end
            local state, queue = first.states[first.at], first.queue
            local task = indexed(first, priority, first_id, state)
            first.at = first.at + 1
            local fits = task and not (task[EXPIRES] > 0 and task[EXPIRES] <= now)
            local key = queue.per_key and fits and task[CONCURRENCY_KEY] or ''
            if key ~= '' then
                fits = count_running(queue, key) < queue.per_key and (not queue.in_order or is_schedule(first_id)
                    or redis.call('ZRANGE', queue.tag .. ':order:' .. key, 0, 0)[1] == first_id)
                if fits then queue.running[key] = queue.running[key] + 1 end
            end
            if fits then
                queue.left = queue.left - 1
                queue.chosen[first_id] = true
                first.in_vain = 0
                picked[#picked + 1] = {queue, first_id, task}
            elseif key ~= '' then
                first.in_vain = first.in_vain + 1
                if first.in_vain >= first.worth_a_look then go_by_key(first, priority, most, now) end
            end
        end
        if #picked >= most then break end
    end
    return picked, again, rooms
end

-- In how many seconds a task may start, or '' if no time is known.
local function soonest_start(tags, now)
    local picked, again, rooms = pick(tags, 1, now)
    if #picked > 0 then return '0' end
    local soonest = again
    for _, queue in ipairs(rooms) do
        for _, stream in ipairs(queue.streams) do
            for priority = 0, stream.highest do
                local later = redis.call('ZRANGEBYSCORE', stream.name .. priority, '(' .. exact(now), 'inf',
                    'WITHSCORES', 'LIMIT', 0, 1)
                if later[2] then soonest = math.min(soonest, tonumber(later[2]) - now) end
            end
        end
    end
    return soonest < NEVER and exact(math.max(soonest, 0)) or ''
end
