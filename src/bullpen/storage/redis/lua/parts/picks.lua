-- What may start next, within the limits of its queue.

-- How many more may start in a queue, of all and of each key, and in how many seconds a rate allows another.
local function room(tag, most, moment)
    local limits = redis.call('HMGET', tag .. ':limits', 'paused', 'max_running', 'max_running_per_key', 'rate',
        'in_order')
    if limits[1] then return 0 end
    local left, again = most, NEVER
    if limits[2] then left = math.min(left, tonumber(limits[2]) - redis.call('ZCARD', tag .. ':running')) end
    if left > 0 and limits[4] then
        local rate = tonumber(limits[4])
        local period = math.max(1, 1 / rate)
        redis.call('ZREMRANGEBYSCORE', tag .. ':starts', '-inf', moment - period)
        left = math.min(left, math.ceil(rate * period) - redis.call('ZCARD', tag .. ':starts'))
        if left <= 0 then
            local oldest = redis.call('ZRANGE', tag .. ':starts', 0, 0, 'WITHSCORES')
            again = tonumber(oldest[2]) + period - moment
        end
    end
    return left, limits[5] and 1 or limits[3] and tonumber(limits[3]) or nil, again, limits[4], limits[5]
end

local PAGE = 100
local READ_IN_VAIN = 100  -- so many that their keys hold back, and it is cheaper to go by key, if there are less keys

-- What is due of a queue: those with a concurrency key, or those without. Most have no priority: then one look is
-- enough to know that.
local function stream(queue, name)
    name = queue.tag .. name
    local has_others = redis.call('EXISTS', name .. 1, name .. 2, name .. 3, name .. 4, name .. 5, name .. 6, name .. 7,
        name .. 8, name .. 9) > 0
    if not has_others and redis.call('EXISTS', name .. 0) == 0 then return end
    queue.lines[#queue.lines + 1] = {queue = queue, name = name, highest = has_others and 9 or 0}
end

-- The next of a stream in a priority, with its state, or nothing.
local function peek(line, priority, most, moment)
    if line.at > #line.page then
        if line.over then return false end
        local size = line.offset == 0 and math.min(PAGE, most) or PAGE  -- mostly all that are read may start
        line.page, line.etas = {}, {}
        local found = redis.call('ZRANGEBYSCORE', line.name .. priority, '-inf', moment, 'WITHSCORES',
            'LIMIT', line.offset, size)
        for i = 1, #found, 2 do
            line.page[#line.page + 1] = found[i]
            line.etas[#line.etas + 1] = tonumber(found[i + 1])
        end
        line.offset, line.at, line.over = line.offset + #line.page, 1, #line.page < size
        if #line.page == 0 then return false end
        line.states = values(line.queue.tag .. ':state', line.page)
    end
    return true
end

-- How many with a key run, or are to.
local function taken(queue, key)
    queue.taken[key] = queue.taken[key] or tonumber(redis.call('HGET', queue.tag .. ':busy', key) or 0)
    return queue.taken[key]
end

-- Those of a key that may start, as far as it has room: {eta, id} each.
local function first_of(queue, priority, key, most, moment)
    local line = queue.tag .. ':keyed:' .. priority .. ':' .. key
    if queue.in_order then
        local first = redis.call('ZRANGE', queue.tag .. ':order:' .. key, 0, 0)[1]
        local eta = first and tonumber(redis.call('ZSCORE', line, first) or NEVER)
        return (eta and eta <= moment) and {first, eta} or {}
    end
    return redis.call('ZRANGEBYSCORE', line, '-inf', moment, 'WITHSCORES', 'LIMIT', 0,
        math.min(queue.per_key, 2 * most))
end

-- Go on by key, if there are less keys than tasks that were read in vain: with a page of all that may start.
local function go_by_key(line, priority, most, moment)
    local queue = line.queue
    local keys = queue.tag .. ':keys:' .. priority
    if redis.call('SCARD', keys) > line.in_vain then
        line.worth_a_look = 2 * line.in_vain
        return
    end
    local heads = {}
    local function add(found)
        for i = 1, #found, 2 do
            if not queue.chosen[found[i]] then heads[#heads + 1] = {tonumber(found[i + 1]), found[i]} end
        end
    end
    for _, key in ipairs(redis.call('SMEMBERS', keys)) do
        if taken(queue, key) < queue.per_key then add(first_of(queue, priority, key, most, moment)) end
    end
    add(redis.call('ZRANGEBYSCORE', queue.tag .. ':regular:' .. priority, '-inf', moment, 'WITHSCORES'))
    table.sort(heads, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
    line.page, line.etas, line.at, line.over, line.worth_a_look = {}, {}, 1, true, NEVER
    for i, head in ipairs(heads) do line.etas[i], line.page[i] = head[1], head[2] end
    line.states = values(queue.tag .. ':state', line.page)
end

-- The next tasks that may start, in the order of claims: {queue, id, task} each.
local function pick(tags, most, moment)
    local picked, rooms, streams, again, highest = {}, {}, {}, NEVER, -1
    for _, tag in ipairs(tags) do
        local left, per_key, in_seconds, rate, in_order = room(tag, most, moment)
        again = math.min(again, in_seconds or NEVER)
        if left > 0 then
            local queue = {tag = tag, left = left, per_key = per_key, taken = {}, chosen = {}, rate = rate, lines = {}}
            queue.in_order = in_order
            rooms[#rooms + 1] = queue
            stream(queue, ':ready:')
            stream(queue, ':keyed:')
            for _, line in ipairs(queue.lines) do
                streams[#streams + 1] = line
                highest = math.max(highest, line.highest)
            end
        end
    end
    for priority = highest, 0, -1 do
        for _, line in ipairs(streams) do
            line.page, line.at, line.offset, line.over = {}, 1, 0, false
            line.in_vain, line.worth_a_look = 0, READ_IN_VAIN
        end
        while #picked < most do
            local first, first_eta, first_id
            for _, line in ipairs(streams) do
                if line.queue.left > 0 and peek(line, priority, most, moment) then
                    local eta, id = line.etas[line.at], line.page[line.at]
                    if not first or eta < first_eta or (eta == first_eta and id < first_id) then
                        first, first_eta, first_id = line, eta, id
                    end
                end
            end
            if not first then break end
            local state, queue = first.states[first.at], first.queue
            local task = state and cmsgpack.unpack(state)
            first.at = first.at + 1
            local fits = task and not (task[EXPIRES] > 0 and task[EXPIRES] <= moment)
            local key = queue.per_key and fits and task[CONCURRENCY_KEY] or ''
            if key ~= '' then
                fits = taken(queue, key) < queue.per_key and (not queue.in_order or is_schedule(first_id)
                    or redis.call('ZRANGE', queue.tag .. ':order:' .. key, 0, 0)[1] == first_id)
                if fits then queue.taken[key] = queue.taken[key] + 1 end
            end
            if fits then
                queue.left = queue.left - 1
                queue.chosen[first_id] = true
                first.in_vain = 0
                picked[#picked + 1] = {queue, first_id, task}
            elseif key ~= '' then
                first.in_vain = first.in_vain + 1
                if first.in_vain >= first.worth_a_look then go_by_key(first, priority, most, moment) end
            end
        end
        if #picked >= most then break end
    end
    return picked, again, rooms
end

-- In how many seconds something may start, '' if that is not known.
local function soonest_start(tags, moment)
    local picked, again, rooms = pick(tags, 1, moment)
    if #picked > 0 then return '0' end
    local soonest = again
    for _, queue in ipairs(rooms) do
        for _, line in ipairs(queue.lines) do
            for priority = 0, line.highest do
                local later = redis.call('ZRANGEBYSCORE', line.name .. priority, '(' .. exact(moment), 'inf',
                    'WITHSCORES', 'LIMIT', 0, 1)
                if later[2] then soonest = math.min(soonest, tonumber(later[2]) - moment) end
            end
        end
    end
    return soonest < NEVER and exact(math.max(soonest, 0)) or ''
end
