"""What the store says to the server, in Lua: each script is one atomic step. The clock is the server's.

All keys of a queue begin with its tag, `{prefix:queue}`, so that they are on one node of a cluster:

    :t:ID        the task, a hash; a field that is not there is None
    :e:ID        its errors, a list
    :ids         all ids, in order
    :ready:P     those that wait, with priority P, by eta and id
    :running     those that run, by the end of their lease
    :finished    final ones, by when they are to be forgotten
    :expiring    those that wait and have to start in time, by when
    :busy        how many run, by concurrency key
    :unique      which task is alive, by unique key
    :counts      how many there are, by status
    :limits      the limits of the queue, and whether it is paused
    :starts      the latest starts, of a queue with a rate
"""

from __future__ import annotations

_COMMON = """
local NEVER = 1e300

local function now()
    local t = redis.call('TIME')
    return tonumber(t[1]) + tonumber(t[2]) / 1000000
end

local function text(number)
    if number >= NEVER then return 'inf' end
    return string.format('%.6f', number)
end

local function number(value)
    return tonumber(value) or 0
end

-- A task, its fields by name.
local function read(tag, id)
    local flat = redis.call('HGETALL', tag .. ':t:' .. id)
    if #flat == 0 then return nil end
    local task = {}
    for i = 1, #flat, 2 do task[flat[i]] = flat[i + 1] end
    return task, flat
end

local function is_final(status)
    return status == 'success' or status == 'failed' or status == 'cancelled'
end

-- Take a task out of everything that its state has put it into.
local function leave(tag, id, task)
    redis.call('HINCRBY', tag .. ':counts', task.status, -1)
    if task.status == 'pending' then
        redis.call('ZREM', tag .. ':ready:' .. task.priority, id)
        if task.expires then redis.call('ZREM', tag .. ':expiring', id) end
    elseif task.status == 'running' then
        redis.call('ZREM', tag .. ':running', id)
        if task.concurrency_key then
            if redis.call('HINCRBY', tag .. ':busy', task.concurrency_key, -1) <= 0 then
                redis.call('HDEL', tag .. ':busy', task.concurrency_key)
            end
        end
    else
        redis.call('ZREM', tag .. ':finished', id)
    end
end

-- … and put it into what its state wants.
local function enter(tag, id, task)
    redis.call('HINCRBY', tag .. ':counts', task.status, 1)
    if task.status == 'pending' then
        redis.call('ZADD', tag .. ':ready:' .. task.priority, task.eta, id)
        if task.expires then redis.call('ZADD', tag .. ':expiring', task.expires, id) end
    elseif task.status == 'running' then
        redis.call('ZADD', tag .. ':running', task.lease_until, id)
        if task.concurrency_key then redis.call('HINCRBY', tag .. ':busy', task.concurrency_key, 1) end
    else
        local prune_at = task.result_ttl and text(number(task.finished_at) + number(task.result_ttl)) or 'inf'
        redis.call('ZADD', tag .. ':finished', prune_at, id)
    end
    if task.unique_key then
        if not is_final(task.status) then
            redis.call('HSET', tag .. ':unique', task.unique_key, id)
        elseif redis.call('HGET', tag .. ':unique', task.unique_key) == id then
            redis.call('HDEL', tag .. ':unique', task.unique_key)
        end
    end
end

local function forget(tag, id, task)
    leave(tag, id, task)
    redis.call('DEL', tag .. ':t:' .. id, tag .. ':e:' .. id)
    redis.call('ZREM', tag .. ':ids', id)
end

local function set(key, fields)
    local put, gone = {}, {}
    for name, value in pairs(fields) do
        if value == false then gone[#gone + 1] = name else put[#put + 1] = name put[#put + 1] = value end
    end
    if #put > 0 then redis.call('HSET', key, unpack(put)) end
    if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
end

local function tell(channel, news)
    redis.call('PUBLISH', channel, news)
end

local function whole(tag, id)
    local _, flat = read(tag, id)
    if not flat then return false end
    return {flat, redis.call('LRANGE', tag .. ':e:' .. id, 0, -1)}
end

-- How many more may start in a queue, of all and of each key, and in how many seconds a rate allows another.
local function room(tag, most, moment)
    local limits = redis.call('HMGET', tag .. ':limits', 'paused', 'max_running', 'max_running_per_key', 'rate')
    if limits[1] then return 0 end
    local left, again = most, NEVER
    if limits[2] then left = math.min(left, tonumber(limits[2]) - redis.call('ZCARD', tag .. ':running')) end
    if left > 0 and limits[4] then
        local rate = tonumber(limits[4])
        local period = math.max(1, 1 / rate)
        redis.call('ZREMRANGEBYSCORE', tag .. ':starts', '-inf', text(moment - period))
        left = math.min(left, math.ceil(rate * period) - redis.call('ZCARD', tag .. ':starts'))
        if left <= 0 then
            local oldest = redis.call('ZRANGE', tag .. ':starts', 0, 0, 'WITHSCORES')
            again = tonumber(oldest[2]) + period - moment
        end
    end
    return left, limits[3] and tonumber(limits[3]) or nil, again, limits[4]
end

local PAGE = 100

-- The next tasks that may start, in the order of claims: {tag, id, task} each.
local function pick(tags, most, moment)
    local picked, rooms, again = {}, {}, NEVER
    for _, tag in ipairs(tags) do
        local left, per_key, in_seconds, rate = room(tag, most, moment)
        again = math.min(again, in_seconds or NEVER)
        if left > 0 then rooms[#rooms + 1] = {tag = tag, left = left, per_key = per_key, taken = {}, rate = rate} end
    end
    for priority = 9, 0, -1 do
        for _, queue in ipairs(rooms) do queue.page, queue.at, queue.offset, queue.over = {}, 1, 0, false end
        while #picked < most do
            local first
            for _, queue in ipairs(rooms) do
                if queue.left > 0 and not queue.over then
                    if queue.at > #queue.page then
                        queue.page = redis.call('ZRANGEBYSCORE', queue.tag .. ':ready:' .. priority, '-inf',
                            text(moment), 'WITHSCORES', 'LIMIT', queue.offset, math.min(PAGE, most + 10))
                        queue.offset = queue.offset + #queue.page / 2
                        queue.at = 1
                        queue.over = #queue.page == 0
                    end
                    if not queue.over then
                        queue.id, queue.eta = queue.page[queue.at], tonumber(queue.page[queue.at + 1])
                        if not first or queue.eta < first.eta or (queue.eta == first.eta and queue.id < first.id) then
                            first = queue
                        end
                    end
                end
            end
            if not first then break end
            first.at = first.at + 2
            local task = read(first.tag, first.id)
            local key = task and task.concurrency_key
            local fits = task and not (task.expires and tonumber(task.expires) <= moment)
            if fits and first.per_key and key then
                first.taken[key] = first.taken[key] or number(redis.call('HGET', first.tag .. ':busy', key))
                fits = first.taken[key] < first.per_key
                if fits then first.taken[key] = first.taken[key] + 1 end
            end
            if fits then
                first.left = first.left - 1
                picked[#picked + 1] = {first.tag, first.id, task, first.rate}
            end
        end
        if #picked >= most then break end
    end
    return picked, again, rooms
end
"""

# KEYS: the tag. ARGV: prefix of news, queue, then for each task: id, priority, eta or '', expires or '', unique key or
# '', whether it has one, how many fields, and those. Returns for each {1, the moment} or {0, who is there already}.
ADD = (
    _COMMON
    + """
local tag, channel, queue = KEYS[1], ARGV[1], ARGV[2]
local moment = now()
local answers = {}
local i = 3
while i <= #ARGV do
    local id, priority, eta, unique_key, has_key, count = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4],
        tonumber(ARGV[i + 5])
    local other = has_key == '1' and redis.call('HGET', tag .. ':unique', unique_key)
    if redis.call('EXISTS', tag .. ':t:' .. id) == 1 then
        answers[#answers + 1] = {0, id}
    elseif other then
        answers[#answers + 1] = {0, other}
    else
        local task = {status = 'pending', priority = priority, eta = eta ~= '' and eta or text(moment),
            created_at = text(moment)}
        for j = i + 6, i + 5 + 2 * count, 2 do task[ARGV[j]] = ARGV[j + 1] end
        set(tag .. ':t:' .. id, task)
        redis.call('ZADD', tag .. ':ids', 0, id)
        enter(tag, id, task)
        answers[#answers + 1] = {1, text(moment)}
    end
    i = i + 6 + 2 * count
end
tell(channel, 'w' .. queue)
return answers
"""
)

# KEYS: the tags of the settlements' queues and of those to claim from, each once. ARGV: channel, worker, limit, lease,
# claim id, how many tags to claim from, their numbers, then for each settlement: number of its tag, queue, id, attempt,
# status, delay or '', failures, crashes, runs, 1 and result or 0 and '', why it was dropped, error or '', and the lease
# that it must still have or ''.
EXCHANGE = (
    _COMMON
    + """
local channel, worker, limit, lease, claim_id = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local moment = now()
local tags = {}
local wanted = tonumber(ARGV[6])
local number_of = {}
for j = 7, 6 + wanted do
    tags[#tags + 1] = KEYS[tonumber(ARGV[j])]
    number_of[tags[#tags]] = tonumber(ARGV[j])
end
local refused, told = {}, {}
for i = 7 + wanted, #ARGV, 14 do
    local tag, queue, id, attempt = KEYS[tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
    local status, delay, runs = ARGV[i + 4], ARGV[i + 5], tonumber(ARGV[i + 8])
    local task = read(tag, id)
    if not task or task.status ~= 'running' or task.attempt ~= attempt
        or (ARGV[i + 13] ~= '' and tonumber(task.lease_until) ~= tonumber(ARGV[i + 13])) then
        refused[#refused + 1] = id
        refused[#refused + 1] = attempt
    else
        leave(tag, id, task)
        local completed = status == 'success' or (delay ~= '' and runs > number(task.runs))
        local again = delay ~= '' and not task.cancel_requested
        if delay ~= '' and not again then status = completed and 'success' or 'cancelled' end
        local changed = {status = status, failures = ARGV[i + 6], crashes = ARGV[i + 7], runs = ARGV[i + 8],
            claim_id = false, lease_until = false, finished_at = text(moment)}
        if again then
            changed.eta = text(moment + tonumber(delay))
            changed.worker = false
            if not completed then changed.finished_at = false end
        end
        if completed then
            changed.result = ARGV[i + 9] == '1' and ARGV[i + 10]
            changed.result_dropped = ARGV[i + 11] ~= '' and ARGV[i + 11]
        end
        set(tag .. ':t:' .. id, changed)
        if ARGV[i + 12] ~= '' then
            redis.call('RPUSH', tag .. ':e:' .. id, ARGV[i + 12])
            redis.call('LTRIM', tag .. ':e:' .. id, -{errors_kept}, -1)
        end
        for name, value in pairs(changed) do task[name] = value or nil end
        enter(tag, id, task)
        if task.awaited and (not again or completed) then tell(channel, 'r' .. id) end
        if again or redis.call('EXISTS', tag .. ':limits') == 1 then told[queue] = true end
    end
end
for queue in pairs(told) do tell(channel, 'w' .. queue) end
local claimed = {}
if limit > 0 and #tags > 0 then
    local picked = pick(tags, limit, moment)
    for number, one in ipairs(picked) do
        local tag, id, task = one[1], one[2], one[3]
        leave(tag, id, task)
        local changed = {status = 'running', attempt = tostring(tonumber(task.attempt or 0) + 1), worker = worker,
            claim_id = claim_id, lease_until = text(moment + lease), started_at = text(moment), progress = false}
        set(tag .. ':t:' .. id, changed)
        for name, value in pairs(changed) do task[name] = value or nil end
        enter(tag, id, task)
        if one[4] then redis.call('ZADD', tag .. ':starts', text(moment), claim_id .. '/' .. number .. '/' .. id) end
        local found = whole(tag, id)
        claimed[#claimed + 1] = {id, number_of[tag], found[1], found[2]}
    end
end
return {refused, claimed}
"""
)

# KEYS: a tag. ARGV: lease, then id and attempt of each. Returns 0 for what is lost, 1 for what is held, 2 for what is
# held and to be cancelled.
RENEW = (
    _COMMON
    + """
local tag, until_then = KEYS[1], text(now() + tonumber(ARGV[1]))
local answers = {}
for i = 2, #ARGV, 2 do
    local key = tag .. ':t:' .. ARGV[i]
    local held = redis.call('HMGET', key, 'status', 'attempt', 'cancel_requested')
    if held[1] ~= 'running' or held[2] ~= ARGV[i + 1] then
        answers[#answers + 1] = 0
    else
        redis.call('HSET', key, 'lease_until', until_then)
        redis.call('ZADD', tag .. ':running', until_then, ARGV[i])
        answers[#answers + 1] = held[3] and 2 or 1
    end
end
return answers
"""
)

# KEYS: a tag. ARGV: id, attempt, progress.
PROGRESS = (
    _COMMON
    + """
local key = KEYS[1] .. ':t:' .. ARGV[1]
local held = redis.call('HMGET', key, 'status', 'attempt')
if held[1] ~= 'running' or held[2] ~= ARGV[2] then return 0 end
redis.call('HSET', key, 'progress', ARGV[3])
return 1
"""
)

# KEYS: a tag. ARGV: dead workers. Returns the moment, and what may be taken back, as {id, task, errors}.
OVERDUE = (
    _COMMON
    + """
local tag, moment = KEYS[1], now()
local dead, found = {}, {}
for _, worker in ipairs(ARGV) do dead[worker] = true end
local late = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', tag .. ':running', '-inf', text(moment))) do late[id] = true end
local ids = next(dead) and redis.call('ZRANGE', tag .. ':running', 0, -1) or nil
for _, id in ipairs(ids or {}) do
    if dead[redis.call('HGET', tag .. ':t:' .. id, 'worker') or ''] then late[id] = true end
end
for id in pairs(late) do
    local task = whole(tag, id)
    if task then found[#found + 1] = {id, task[1], task[2]} end
end
return {text(moment), found}
"""
)

# KEYS: a tag. ARGV: claim id. Returns {id, task, errors} each.
FIND_CLAIM = (
    _COMMON
    + """
local tag, found = KEYS[1], {}
for _, id in ipairs(redis.call('ZRANGE', tag .. ':running', 0, -1)) do
    if redis.call('HGET', tag .. ':t:' .. id, 'claim_id') == ARGV[1] then
        local task = whole(tag, id)
        found[#found + 1] = {id, task[1], task[2]}
    end
end
return found
"""
)

# KEYS: tags. Returns in how many seconds something may start, '' if that is not known.
NEXT_WORK = (
    _COMMON
    + """
local moment = now()
local picked, again, rooms = pick(KEYS, 1, moment)
if #picked > 0 then return '0' end
local soonest = again
for _, queue in ipairs(rooms) do
    for priority = 0, 9 do
        local later = redis.call('ZRANGEBYSCORE', queue.tag .. ':ready:' .. priority, '(' .. text(moment), '+inf',
            'WITHSCORES', 'LIMIT', 0, 1)
        if later[2] then soonest = math.min(soonest, tonumber(later[2]) - moment) end
    end
end
if soonest >= NEVER then return '' end
return text(math.max(soonest, 0))
"""
)

# KEYS: a tag. ARGV: id, runs. Says that somebody waits; 1 if there is nothing to wait for.
AWAIT = (
    _COMMON
    + """
local task = read(KEYS[1], ARGV[1])
if not task or is_final(task.status) or number(task.runs) > tonumber(ARGV[2]) then return 1 end
redis.call('HSET', KEYS[1] .. ':t:' .. ARGV[1], 'awaited', '1')
return 0
"""
)

# KEYS: a tag. ARGV: channel, queue, id, the status, attempt and eta that it must still have, an error or '', then
# fields and values; a value that begins with '-' is none, and '+' stands before every other. Returns 1 if it was
# changed, 0 if it is another one by now, -1 if its unique key lives on in another.
CHANGE = (
    _COMMON
    + """
local tag, channel, queue, id = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local task = read(tag, id)
if not task or task.status ~= ARGV[4] or (task.attempt or '0') ~= ARGV[5]
    or tonumber(task.eta) ~= tonumber(ARGV[6]) then
    return 0
end
local changed = {}
for i = 8, #ARGV, 2 do
    changed[ARGV[i]] = string.sub(ARGV[i + 1], 1, 1) == '+' and string.sub(ARGV[i + 1], 2)
end
if task.unique_key and not is_final(changed.status) then
    local other = redis.call('HGET', tag .. ':unique', task.unique_key)
    if other and other ~= id then return -1 end
end
leave(tag, id, task)
set(tag .. ':t:' .. id, changed)
for name, value in pairs(changed) do task[name] = value or nil end
enter(tag, id, task)
if ARGV[7] ~= '' then
    redis.call('RPUSH', tag .. ':e:' .. id, ARGV[7])
    redis.call('LTRIM', tag .. ':e:' .. id, -{errors_kept}, -1)
end
if task.awaited and is_final(task.status) then tell(channel, 'r' .. id) end
if task.status == 'pending' then tell(channel, 'w' .. queue) end
return 1
"""
)

# KEYS: a tag. ARGV: ids. Forgets the final ones; which.
DELETE = (
    _COMMON
    + """
local gone = {}
for _, id in ipairs(ARGV) do
    local task = read(KEYS[1], id)
    if task and is_final(task.status) then
        forget(KEYS[1], id, task)
        gone[#gone + 1] = id
    end
end
return gone
"""
)

# KEYS: a tag. ARGV: limit. Forgets what was kept for long enough; which.
PRUNE = (
    _COMMON
    + """
local ids = redis.call('ZRANGEBYSCORE', KEYS[1] .. ':finished', '-inf', text(now()), 'LIMIT', 0, ARGV[1])
for _, id in ipairs(ids) do forget(KEYS[1], id, read(KEYS[1], id)) end
return ids
"""
)

# KEYS: a tag. ARGV: limit. The moment, and ids of those that were not started in time.
LATE = (
    _COMMON
    + """
local moment = now()
return {text(moment), redis.call('ZRANGEBYSCORE', KEYS[1] .. ':expiring', '-inf', text(moment), 'LIMIT', 0, ARGV[1])}
"""
)
