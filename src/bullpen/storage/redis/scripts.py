"""What the store says to the server, in Lua: each script is one atomic step. The clock is the server's.

All keys of a queue begin with its tag, `{prefix:queue}`, so that they are on one node of a cluster:

    :body        what only people change about a task, by id; read by clients alone
    :state       the rest, by id: an array in msgpack, in the order of `rows.State`
    :result      results, by id
    :ids         all ids, in order
    :ready:P     those that wait, with priority P and no concurrency key, by eta and id
    :keyed:P     … and with one
    :keyed:P:KEY … and with this one; but no schedules
    :keys:P      the keys that those have
    :regular:P   … and schedules with one
    :running     those that run, by the end of their lease, which is kept nowhere else
    :finished    final ones, by when they are to be forgotten
    :expiring    those that wait and have to start in time, by when
    :busy        how many run, by concurrency key
    :order:KEY   those with a concurrency key that are not over, by when they were added; no schedules
    :unique      which task had it last, by unique key
    :counts      how many there are, by status
    :limits      the limits of the queue, and whether it is paused
    :starts      the latest starts, of a queue with a rate

A script gets what it needs in one value, as far as that is text and numbers (bytes, msgpack in Lua does not know), and
touches each key once for all tasks: calls are what costs.
"""

from __future__ import annotations

from bullpen.storage.redis.rows import State
from bullpen.tasks.ids import SCHEDULES
from bullpen.tasks.links import GIVEN_UP
from bullpen.tasks.task import ERRORS_KEPT, NEVER, UNPLANNED

_FIELDS = "".join(f"local {name.upper()} = {number}\n" for number, name in enumerate(State.__struct_fields__, start=1))

_CONSTANTS = f"local ERRORS_KEPT, UNPLANNED, LAST_DAY, GIVEN_UP = {ERRORS_KEPT}, {UNPLANNED}, {NEVER}, {GIVEN_UP}\n"
_CONSTANTS += f"local SCHEDULES = '{SCHEDULES}'\n"

_COMMON = (
    _FIELDS
    + _CONSTANTS
    + """
local NEVER = 1e300

local function now()
    local t = redis.call('TIME')
    return tonumber(t[1]) + tonumber(t[2]) / 1000000
end

-- To write a number takes longer than to find what was written before, as most are the same.
local written = {}
local function exact(number)
    local word = written[number]
    if not word then
        word = string.format('%.17g', number)
        written[number] = word
    end
    return word
end

local function is_final(status)
    return status == 'success' or status == 'failed' or status == 'cancelled'
end

-- Whether it runs again and again: then it has no place in the order of its concurrency key.
local function is_schedule(id)
    return string.sub(id, 1, #SCHEDULES) == SCHEDULES
end

-- One command for many words; Lua cannot hand over any number of them at once.
local function many(command, key, words)
    for i = 1, #words, 4000 do
        redis.call(command, key, unpack(words, i, math.min(i + 3999, #words)))
    end
end

local function values(key, ids)
    local found = {}
    for i = 1, #ids, 4000 do
        local some = redis.call('HMGET', key, unpack(ids, i, math.min(i + 3999, #ids)))
        for j = 1, #some do found[i + j - 1] = some[j] end
    end
    return found
end

-- Tasks by their ids; false for what is not there.
local function read(tag, ids)
    local tasks = values(tag .. ':state', ids)
    for i = 1, #ids do tasks[i] = tasks[i] and cmsgpack.unpack(tasks[i]) end
    return tasks
end

-- What is to be written to a queue. `flush` does it: what leaves a set goes before what enters one.
local function changes(tag)
    return {tag = tag, states = {}, results = {}, added = {}, removed = {}, counts = {}}
end

local function put(lists, name, word, other)
    local list = lists[name]
    if not list then
        list = {}
        lists[name] = list
    end
    list[#list + 1] = word
    list[#list + 1] = other
end

local function flush(queue)
    local tag = queue.tag
    for name, ids in pairs(queue.removed) do many('ZREM', tag .. name, ids) end
    for name, pairs_of in pairs(queue.added) do many('ZADD', tag .. name, pairs_of) end
    many('HSET', tag .. ':state', queue.states)
    many('HSET', tag .. ':result', queue.results)
    for status, count in pairs(queue.counts) do
        if count ~= 0 then redis.call('HINCRBY', tag .. ':counts', status, count) end
    end
    queue.states, queue.results, queue.added, queue.removed, queue.counts = {}, {}, {}, {}, {}
end

local function count(queue, status, by)
    queue.counts[status] = (queue.counts[status] or 0) + by
end

-- Whether a task has its unique key, `unique_until` apart.
local function has_key(task)
    local status = task[STATUS]
    if task[UNIQUE_KEY] == '' then return false end
    if status == 'pending' then return task[KEEPS_KEY] or task[ATTEMPT] == 0 end
    return status == 'running' and task[KEEPS_KEY]
end

-- The task that has a unique key.
local function holder(tag, key, moment)
    local id = redis.call('HGET', tag .. ':unique', key)
    local task = id and read(tag, {id})[1]
    if task and (has_key(task) or task[UNIQUE_UNTIL] > moment) then return id, task end
    return nil
end

-- Take a task out of everything that its state has put it into.
local function leave(queue, id, task)
    local status = task[STATUS]
    count(queue, status, -1)
    if task[CONCURRENCY_KEY] ~= '' and not is_final(status) and not is_schedule(id) then
        redis.call('ZREM', queue.tag .. ':order:' .. task[CONCURRENCY_KEY], id)
    end
    if status == 'pending' then
        local priority, key = task[PRIORITY], task[CONCURRENCY_KEY]
        put(queue.removed, (key == '' and ':ready:' or ':keyed:') .. priority, id)
        if key ~= '' and is_schedule(id) then
            put(queue.removed, ':regular:' .. priority, id)
        elseif key ~= '' then
            local line = queue.tag .. ':keyed:' .. priority .. ':' .. key
            redis.call('ZREM', line, id)
            if redis.call('EXISTS', line) == 0 then redis.call('SREM', queue.tag .. ':keys:' .. priority, key) end
        end
        if task[EXPIRES] > 0 then put(queue.removed, ':expiring', id) end
    elseif status == 'running' then
        put(queue.removed, ':running', id)
        local key = task[CONCURRENCY_KEY]
        if key ~= '' and redis.call('HINCRBY', queue.tag .. ':busy', key, -1) <= 0 then
            redis.call('HDEL', queue.tag .. ':busy', key)
        end
    else
        put(queue.removed, ':finished', id)
    end
end

-- … and put it into what its state wants. `lease_until`: of one that runs. Returns the state as it is written.
local function enter(queue, id, task, lease_until)
    local status = task[STATUS]
    count(queue, status, 1)
    if task[CONCURRENCY_KEY] ~= '' and not is_final(status) and not is_schedule(id) then
        redis.call('ZADD', queue.tag .. ':order:' .. task[CONCURRENCY_KEY], exact(task[CREATED_AT]), id)
    end
    if status == 'pending' then
        local priority, key, eta = task[PRIORITY], task[CONCURRENCY_KEY], exact(task[ETA])
        put(queue.added, (key == '' and ':ready:' or ':keyed:') .. priority, eta, id)
        if key ~= '' and is_schedule(id) then
            put(queue.added, ':regular:' .. priority, eta, id)
        elseif key ~= '' then
            redis.call('ZADD', queue.tag .. ':keyed:' .. priority .. ':' .. key, eta, id)
            redis.call('SADD', queue.tag .. ':keys:' .. priority, key)
        end
        if task[EXPIRES] > 0 then put(queue.added, ':expiring', exact(task[EXPIRES]), id) end
    elseif status == 'running' then
        put(queue.added, ':running', lease_until, id)
        if task[CONCURRENCY_KEY] ~= '' then redis.call('HINCRBY', queue.tag .. ':busy', task[CONCURRENCY_KEY], 1) end
    else
        local prune_at = task[RESULT_TTL] < 0 and 'inf'
            or exact(math.max(task[FINISHED_AT] + task[RESULT_TTL], task[UNIQUE_UNTIL]))
        put(queue.added, ':finished', prune_at, id)
    end
    if has_key(task) then redis.call('HSET', queue.tag .. ':unique', task[UNIQUE_KEY], id) end
    local packed = cmsgpack.pack(task)
    local states = queue.states
    states[#states + 1] = id
    states[#states + 1] = packed
    return packed
end

local function add_error(task, problem)
    local errors = task[ERRORS]
    errors[#errors + 1] = problem
    if #errors > ERRORS_KEPT then table.remove(errors, 1) end
end

local function forget(tag, ids, tasks)
    local queue = changes(tag)
    for i, id in ipairs(ids) do
        local key = tasks[i][UNIQUE_KEY]
        leave(queue, id, tasks[i])
        if key ~= '' and redis.call('HGET', tag .. ':unique', key) == id then
            redis.call('HDEL', tag .. ':unique', key)
        end
    end
    flush(queue)
    many('HDEL', tag .. ':state', ids)
    many('HDEL', tag .. ':body', ids)
    many('HDEL', tag .. ':result', ids)
    many('ZREM', tag .. ':ids', ids)
end

-- A task that may be in another queue than the one that `tag` is of.
local function find(tag, id)
    local task = read(tag, {id})[1]
    if task then return tag, task end
    local prefix = string.match(tag, '^{(.*):[^:]*}$')
    for _, name in ipairs(redis.call('SMEMBERS', prefix .. ':queues')) do
        local other = '{' .. prefix .. ':' .. name .. '}'
        task = read(other, {id})[1]
        if task then return other, task end
    end
    return nil
end

-- How many of those that a task waits for are not done; nothing if one of them has not succeeded.
local function unfinished(tag, task)
    local left = 0
    for i = #task[FOLLOWS], 1, -1 do  -- the last to run again first: one that has not is enough
        local _, member = find(tag, task[FOLLOWS][i])
        if member and not is_final(member[STATUS]) then
            left = left + 1
        elseif member and member[STATUS] ~= 'success' and not task[ANYWAY] then
            return nil
        end
    end
    return left
end

-- A task that was over waits again, for so many others.
local function redrive(task, left, moment)
    task[STATUS], task[ETA], task[EXPIRES], task[FAILURES] = 'pending', left > 0 and LAST_DAY or moment, 0, 0
    task[CRASHES], task[WORKER], task[CANCEL_REQUESTED], task[FINISHED_AT] = 0, '', false, 0
    task[WAITS_FOR] = left
end

local function tell_work(channel, tag)
    redis.call('PUBLISH', channel, 'w' .. string.match(tag, ':([^:]*)}$'))
end

-- What becomes of those behind a task that has ended, or has come back and `was` something else: as in `links.py`.
local function ripple(tag, id, task, was, moment, channel)
    while task[THEN_ID] ~= '' do
        local next_id, follower = task[THEN_ID], nil
        tag, follower = find(tag, next_id)
        if not follower then return end
        local queue = changes(tag)
        local waits = follower[STATUS] == 'pending' and follower[WAITS_FOR] > 0
        if not was and waits and (task[STATUS] == 'success' or follower[ANYWAY]) then
            leave(queue, next_id, follower)
            follower[WAITS_FOR] = follower[WAITS_FOR] - 1
            if follower[WAITS_FOR] == 0 then follower[ETA] = moment end
            enter(queue, next_id, follower)
            flush(queue)
            if follower[WAITS_FOR] == 0 then tell_work(channel, tag) end
            return
        elseif not was and waits then
            leave(queue, next_id, follower)
            follower[STATUS], follower[FINISHED_AT], follower[WAITS_FOR] = 'cancelled', moment, GIVEN_UP
            local why = 'it waited for task ' .. id .. ', which '
                .. (task[STATUS] == 'cancelled' and 'was cancelled' or 'failed')
            add_error(follower, '{"kind":"upstream","attempt":' .. follower[ATTEMPT] .. ',"at":' .. exact(moment)
                .. ',"message":' .. cjson.encode(why) .. '}')
            enter(queue, next_id, follower)
            flush(queue)
            if follower[AWAITED] then redis.call('PUBLISH', channel, 'r' .. next_id) end
        elseif was and waits then
            if was == 'success' or follower[ANYWAY] then
                follower[WAITS_FOR] = follower[WAITS_FOR] + 1
                redis.call('HSET', tag .. ':state', next_id, cmsgpack.pack(follower))
            end
            return
        elseif was and follower[STATUS] == 'cancelled' and follower[WAITS_FOR] == GIVEN_UP then
            local left = unfinished(tag, follower)
            if not left then return end
            follower[STATUS] = 'pending'
            local other = has_key(follower) and holder(tag, follower[UNIQUE_KEY], moment)
            if other and other ~= next_id then return end
            follower[STATUS] = 'cancelled'
            leave(queue, next_id, follower)
            redrive(follower, left, moment)
            enter(queue, next_id, follower)
            flush(queue)
            was = 'cancelled'
        else
            return
        end
        id, task = next_id, follower
    end
end

-- Whether a task is over, and nobody waits for its result.
local function may_go(tag, task)
    if not task or not is_final(task[STATUS]) then return false end
    if task[THEN_ID] == '' then return true end
    local _, follower = find(tag, task[THEN_ID])
    return not follower or is_final(follower[STATUS])
end

-- Add tasks, as `rows.new_task` makes them, to queues by their number. Returns of those that are there already the
-- place in the list, and the id under which they are.
local function add(queues, tasks, new_state, policy, push_limit, moment)
    local others = {}
    for i, new in ipairs(tasks) do
        local number, id, key = new[1], new[2], new[7]
        local queue, task, body = queues[number], cmsgpack.unpack(new_state), ARGV[new[12]]
        local other, old
        task[PRIORITY], task[ETA], task[CREATED_AT] = new[3], new[4] > 0 and new[4] or moment, moment
        task[EXPIRES], task[RESULT_TTL], task[UNIQUE_KEY], task[CONCURRENCY_KEY] = new[5], new[6], key, new[8]
        task[FIRE], task[UNIQUE_UNTIL], task[KEEPS_KEY] = new[9], new[10], new[11]
        task[THEN_ID], task[WAITS_FOR], task[ANYWAY], task[FOLLOWS] = new[13], new[14], new[15], new[16]
        task[MANY], task[PLACE] = new[17], new[18]
        if queue.there[id] then
            other = id
        elseif key ~= '' then
            flush(queue)  -- the one that has it may have come a moment ago
            other, old = holder(queue.tag, key, moment)
        end
        local replaces = old and policy == 'replace' and old[STATUS] == 'pending'
        if replaces then
            leave(queue, other, old)
            flush(queue)
            if push_limit >= 0 then task[ETA] = math.min(task[ETA], old[CREATED_AT] + push_limit) end
            if old[WAITS_FOR] > 0 then task[ETA] = old[ETA] end
            for _, field in ipairs({ATTEMPT, RUNS, PROGRESS, HAS_RESULT, RESULT_DROPPED, ERRORS, AWAITED, HOLD,
                CREATED_AT, STARTED_AT, FINISHED_AT, THEN_ID, WAITS_FOR, ANYWAY, FOLLOWS, MANY, PLACE}) do
                task[field] = old[field]
            end
        end
        if other then
            others[#others + 1] = i
            others[#others + 1] = other
        end
        if not other or replaces then
            enter(queue, other or id, task)
            put(queue, 'bodies', other or id, body)
            put(queue, 'all', 0, other or id)
            queue.there[id] = true
        end
    end
    for number, queue in ipairs(queues) do
        flush(queue)
        many('HSET', queue.tag .. ':body', queue.bodies)
        many('ZADD', queue.tag .. ':ids', queue.all)
    end
    return others
end

local function to_add_to(tag)
    local queue = changes(tag)
    queue.bodies, queue.all, queue.there = {}, {}, {}
    return queue
end

-- Tasks as clients want them, five words each: id, state, body, result, lease; those that are not there are left out.
local function show(tag, ids)
    local shown = {}
    if #ids == 0 then return shown end
    local states, bodies = values(tag .. ':state', ids), values(tag .. ':body', ids)
    for i, id in ipairs(ids) do
        if states[i] and bodies[i] then
            local task, n = cmsgpack.unpack(states[i]), #shown
            shown[n + 1], shown[n + 2], shown[n + 3] = id, states[i], bodies[i]
            shown[n + 4] = task[HAS_RESULT] and redis.call('HGET', tag .. ':result', id)
            shown[n + 5] = task[STATUS] == 'running' and redis.call('ZSCORE', tag .. ':running', id)
        end
    end
    return shown
end

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

-- What is due of a queue: those with a concurrency key, or those without.
local function stream(queue, name)
    return {queue = queue, name = queue.tag .. name}
end

-- The next of a stream in a priority, with its state, or nothing.
local function peek(line, priority, most, moment)
    if line.at > #line.page then
        if line.over then return false end
        local size = math.min(PAGE, most + 10)
        line.page, line.etas = {}, {}
        local found = redis.call('ZRANGEBYSCORE', line.name .. priority, '-inf', moment, 'WITHSCORES',
            'LIMIT', line.offset, size)
        for i = 1, #found, 2 do
            line.page[#line.page + 1] = found[i]
            line.etas[#line.etas + 1] = tonumber(found[i + 1])
        end
        line.offset, line.at, line.over = line.offset + #line.page, 1, #line.page < size
        if #line.page == 0 then return false end
        line.tasks = read(line.queue.tag, line.page)
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
    line.tasks = read(queue.tag, line.page)
end

-- The next tasks that may start, in the order of claims: {queue, id, task} each.
local function pick(tags, most, moment)
    local picked, rooms, streams, again = {}, {}, {}, NEVER
    for _, tag in ipairs(tags) do
        local left, per_key, in_seconds, rate, in_order = room(tag, most, moment)
        again = math.min(again, in_seconds or NEVER)
        if left > 0 then
            local queue = {tag = tag, left = left, per_key = per_key, taken = {}, chosen = {}, rate = rate}
            queue.in_order = in_order
            rooms[#rooms + 1] = queue
            streams[#streams + 1] = stream(queue, ':ready:')
            if redis.call('EXISTS', tag .. ':keyed:0', tag .. ':keyed:1', tag .. ':keyed:2', tag .. ':keyed:3',
                tag .. ':keyed:4', tag .. ':keyed:5', tag .. ':keyed:6', tag .. ':keyed:7', tag .. ':keyed:8',
                tag .. ':keyed:9') > 0 then
                streams[#streams + 1] = stream(queue, ':keyed:')
            end
        end
    end
    for priority = 9, 0, -1 do
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
            local task, queue = first.tasks[first.at], first.queue
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
"""
)

# KEYS: tags. ARGV: {channel, what to do with duplicates, how far they may be pushed or -1, tasks as `rows.new_task`
# makes them}, the state that all begin with, their bodies. Returns the moment, which of the queues
# were empty, and of those that are there already the place in the list and the id under which they are. If they are
# rejected: -1, the place of one that is there already, and the id of that.
ADD = (
    _COMMON
    + """
local channel, policy, push_limit, tasks = unpack(cmsgpack.unpack(ARGV[1]))
local moment = now()
local queues, was_empty, ids = {}, {}, {}
for number, tag in ipairs(KEYS) do
    queues[number], ids[number] = to_add_to(tag), {}
    if redis.call('EXISTS', tag .. ':ids') == 0 then was_empty[#was_empty + 1] = number end
end
for _, new in ipairs(tasks) do table.insert(ids[new[1]], new[2]) end
for number, some in ipairs(ids) do
    for i, state in ipairs(values(KEYS[number] .. ':state', some)) do
        if state then queues[number].there[some[i]] = true end
    end
end

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
for _, queue in ipairs(queues) do
    if #queue.all > 0 then tell_work(channel, queue.tag) end
end
return {exact(moment), was_empty, others}
"""
)

# KEYS: the tags of the settlements' queues and of those to claim from, each once. ARGV: {channel, worker, limit, lease,
# claim id, the names of the queues, the numbers of those to claim from, settlements as `rows.settlement_of` has them},
# and results. Returns the id and attempt of each that was refused, the end of the leases, and for each that was claimed
# the number of its queue, id, state, body, and its result if it has one.
EXCHANGE = (
    _COMMON
    + """
local channel, worker, limit, lease, claim_id, names, wanted, settlements, new_state = unpack(cmsgpack.unpack(ARGV[1]))
local moment = now()
local queues, freed, again_in, refused, ended = {}, {}, {}, {}, {}
local ids, tasks = {}, {}
for number, tag in ipairs(KEYS) do queues[number], ids[number] = changes(tag), {} end
for _, one in ipairs(settlements) do table.insert(ids[one[1]], one[2]) end
for number, some in ipairs(ids) do
    local found, by_id = read(KEYS[number], some), {}
    for i, id in ipairs(some) do by_id[id] = by_id[id] or found[i] end
    tasks[number] = by_id
end
for _, one in ipairs(settlements) do
    local number, id, attempt, status, delay, eta, fire, next_run = one[1], one[2], one[3], one[4], one[5], one[6],
        one[7], one[8]
    local failures, crashes, runs, result, dropped, problem, lease_until = one[9], one[10], one[11], one[12], one[13],
        one[14], one[15]
    local task, queue = tasks[number][id], queues[number]
    if not task or task[STATUS] ~= 'running' or task[ATTEMPT] ~= attempt or (lease_until
        and tonumber(redis.call('ZSCORE', queue.tag .. ':running', id) or 0) ~= lease_until) then
        refused[#refused + 1] = id
        refused[#refused + 1] = attempt
    else
        leave(queue, id, task)
        local waits = status == 'pending'
        local completed = status == 'success' or (waits and runs > task[RUNS])
        local again = waits and not task[CANCEL_REQUESTED]
        if waits and not again then status = completed and 'success' or 'cancelled' end
        task[STATUS], task[FAILURES], task[CRASHES], task[RUNS] = status, failures, crashes, runs
        task[CLAIM_ID], task[FINISHED_AT] = '', (again and not completed) and 0 or moment
        if again then
            task[WORKER] = ''
            if task[HOLD] == 'changed' and next_run then
                task[ETA], task[FIRE], task[HOLD] = moment, UNPLANNED, ''
            else
                task[ETA], task[FIRE] = task[HOLD] == 'paused' and LAST_DAY or eta or moment + delay, fire
            end
        end
        if completed then
            if result then
                local results = queue.results
                results[#results + 1] = id
                results[#results + 1] = ARGV[result]
            elseif task[HAS_RESULT] then
                redis.call('HDEL', queue.tag .. ':result', id)
            end
            task[HAS_RESULT], task[RESULT_DROPPED] = result and true or false, dropped
        end
        if problem then add_error(task, problem) end
        enter(queue, id, task)
        if task[AWAITED] and (not again or completed) then redis.call('PUBLISH', channel, 'r' .. id) end
        if again then again_in[number] = true end
        freed[number] = (freed[number] or 0) + 1
        if (task[THEN_ID] ~= '' and not again) or #one[16] > 0 then
            ended[#ended + 1] = {queue.tag, id, task, one[16]}
        end
    end
end
for _, queue in ipairs(queues) do flush(queue) end
for _, one in ipairs(ended) do
    local tag, id, task, children = one[1], one[2], one[3], one[4]
    if is_final(task[STATUS]) then ripple(tag, id, task, nil, moment, channel) end
    if #children > 0 then
        local to = {}
        for number, tag in ipairs(KEYS) do to[number] = to_add_to(tag) end
        add(to, children, ARGV[new_state], 'return', -1, moment)
        for _, queue in ipairs(to) do
            if #queue.all > 0 then tell_work(channel, queue.tag) end
        end
    end
end
local claimed = {}
if limit > 0 and #wanted > 0 then
    local tags, number_of, by_number = {}, {}, {}
    for i, number in ipairs(wanted) do tags[i], number_of[KEYS[number]] = KEYS[number], number end
    for place, one in ipairs((pick(tags, limit, moment))) do
        local from, id, task = one[1], one[2], one[3]
        local number = number_of[from.tag]
        leave(queues[number], id, task)
        task[STATUS], task[ATTEMPT], task[WORKER], task[CLAIM_ID] = 'running', task[ATTEMPT] + 1, worker, claim_id
        task[STARTED_AT], task[PROGRESS] = moment, ''
        local state = enter(queues[number], id, task, exact(moment + lease))
        if from.rate then
            redis.call('ZADD', from.tag .. ':starts', moment, claim_id .. '/' .. place .. '/' .. id)
        end
        claimed[#claimed + 1] = number
        claimed[#claimed + 1] = id
        claimed[#claimed + 1] = state
        claimed[#claimed + 1] = false
        claimed[#claimed + 1] = task[HAS_RESULT] and redis.call('HGET', from.tag .. ':result', id)
        put(by_number, number, id)
        freed[number] = (freed[number] or 0) - 1
    end
    local bodies, at = {}, {}
    for number, some in pairs(by_number) do
        bodies[number], at[number] = values(KEYS[number] .. ':body', some), 0
        flush(queues[number])
    end
    for i = 1, #claimed, 5 do
        local number = claimed[i]
        at[number] = at[number] + 1
        claimed[i + 3] = bodies[number][at[number]]
    end
end
-- Others hear of what is due again, and of room in a queue with limits that was not used here.
for number, queue in ipairs(queues) do
    if again_in[number] or ((freed[number] or 0) > 0 and redis.call('EXISTS', queue.tag .. ':limits') == 1) then
        redis.call('PUBLISH', channel, 'w' .. names[number])
    end
end
return {refused, exact(moment + lease), claimed}
"""
)

# KEYS: a tag. ARGV: lease, then id and attempt of each. Returns 0 for what is lost, 1 for what is held, 2 for what is
# held and to be cancelled.
RENEW = (
    _COMMON
    + """
local tag, until_then = KEYS[1], exact(now() + tonumber(ARGV[1]))
local ids, answers, queue = {}, {}, changes(KEYS[1])
for i = 2, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
for i, task in ipairs(read(tag, ids)) do
    if not task or task[STATUS] ~= 'running' or task[ATTEMPT] ~= tonumber(ARGV[2 * i + 1]) then
        answers[i] = 0
    else
        put(queue.added, ':running', until_then, ids[i])
        answers[i] = task[CANCEL_REQUESTED] and 2 or 1
    end
end
flush(queue)
return answers
"""
)

# KEYS: a tag. ARGV: id, attempt, progress.
PROGRESS = (
    _COMMON
    + """
local task = read(KEYS[1], {ARGV[1]})[1]
if not task or task[STATUS] ~= 'running' or task[ATTEMPT] ~= tonumber(ARGV[2]) then return 0 end
task[PROGRESS] = ARGV[3]
redis.call('HSET', KEYS[1] .. ':state', ARGV[1], cmsgpack.pack(task))
return 1
"""
)

# KEYS: a tag. ARGV: dead workers. Returns the moment, and what may be taken back.
OVERDUE = (
    _COMMON
    + """
local tag, moment = KEYS[1], now()
local late = redis.call('ZRANGEBYSCORE', tag .. ':running', '-inf', moment)
if #ARGV > 0 then
    local dead, ids = {}, redis.call('ZRANGEBYSCORE', tag .. ':running', '(' .. exact(moment), 'inf')
    for _, worker in ipairs(ARGV) do dead[worker] = true end
    for i, task in ipairs(read(tag, ids)) do
        if task and dead[task[WORKER]] then late[#late + 1] = ids[i] end
    end
end
return {exact(moment), show(tag, late)}
"""
)

# KEYS: a tag. ARGV: claim id.
FIND_CLAIM = (
    _COMMON
    + """
local tag, found = KEYS[1], {}
local ids = redis.call('ZRANGE', tag .. ':running', 0, -1)
for i, task in ipairs(read(tag, ids)) do
    if task and task[CLAIM_ID] == ARGV[1] then found[#found + 1] = ids[i] end
end
return show(tag, found)
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
        for _, name in ipairs({':ready:', ':keyed:'}) do
            local later = redis.call('ZRANGEBYSCORE', queue.tag .. name .. priority,
                '(' .. exact(moment), 'inf', 'WITHSCORES', 'LIMIT', 0, 1)
            if later[2] then soonest = math.min(soonest, tonumber(later[2]) - moment) end
        end
    end
end
if soonest >= NEVER then return '' end
return exact(math.max(soonest, 0))
"""
)

# KEYS: a tag. ARGV: id, runs. Says that somebody waits; 1 if there is nothing to wait for, 0 if there is, -1 if
# there is no such task.
AWAIT = (
    _COMMON
    + """
local task = read(KEYS[1], {ARGV[1]})[1]
if not task then return -1 end
if is_final(task[STATUS]) or task[RUNS] > tonumber(ARGV[2]) then return 1 end
if not task[AWAITED] then
    task[AWAITED] = true
    redis.call('HSET', KEYS[1] .. ':state', ARGV[1], cmsgpack.pack(task))
end
return 0
"""
)

# KEYS: a tag. ARGV: ids.
SHOW = _COMMON + "return show(KEYS[1], ARGV)"

# KEYS: a tag. ARGV: how many at most, the id to begin behind or '', and whether only those that run are wanted.
LIST = (
    _COMMON
    + """
local tag, most, after = KEYS[1], tonumber(ARGV[1]), ARGV[2]
if ARGV[3] ~= '1' then
    local start = after == '' and '-' or '(' .. after
    return show(tag, redis.call('ZRANGEBYLEX', tag .. ':ids', start, '+', 'LIMIT', 0, most))
end
local ids = {}
for _, id in ipairs(redis.call('ZRANGE', tag .. ':running', 0, -1)) do
    if id > after then ids[#ids + 1] = id end
end
table.sort(ids)
for i = #ids, most + 1, -1 do ids[i] = nil end
return show(tag, ids)
"""
)

# KEYS: a tag. ARGV: ids. Returns 1 for each that is here, else 0.
WHERE = (
    _COMMON
    + """
local found = values(KEYS[1] .. ':state', ARGV)
for i = 1, #ARGV do found[i] = found[i] and 1 or 0 end
return found
"""
)

# KEYS: a tag. ARGV: channel, queue, changes as `rows.change_of` makes them, and bodies. Returns for each 1 if it was
# changed, 0 if it is another one by now, -1 if another one has its unique key, or one
# that it waits for has to run again first.
CHANGE = (
    _COMMON
    + """
local tag, channel, name = KEYS[1], ARGV[1], ARGV[2]
local answers, is_told = {}, false
for i, one in ipairs(cmsgpack.unpack(ARGV[3])) do
    local id, status, attempt, eta, hold, problem = one[1], one[2], one[3], one[4], one[5], one[6]
    local task, queue = read(tag, {id})[1], changes(tag)
    if not task or task[STATUS] ~= status or task[ATTEMPT] ~= attempt or task[ETA] ~= eta
        or task[HOLD] ~= hold then
        answers[i] = 0
    else
        local comes_back = is_final(status) and not is_final(one[7])
        local left = comes_back and #task[FOLLOWS] > 0 and unfinished(tag, task)
        task[STATUS] = one[7]
        local other = has_key(task) and holder(tag, task[UNIQUE_KEY], now())
        task[STATUS] = status
        if (other and other ~= id) or (comes_back and #task[FOLLOWS] > 0 and not left) then
            answers[i] = -1
        else
            local lease_until = status == 'running' and redis.call('ZSCORE', tag .. ':running', id)
            leave(queue, id, task)
            task[STATUS], task[ETA], task[EXPIRES], task[FAILURES] = one[7], one[8], one[9], one[10]
            task[CRASHES], task[WORKER], task[CANCEL_REQUESTED], task[FINISHED_AT] = one[11], one[12], one[13], one[14]
            task[FIRE], task[HOLD], task[PRIORITY], task[RESULT_TTL] = one[15], one[16], one[17], one[18]
            task[CONCURRENCY_KEY] = one[19]
            if one[20] then redis.call('HSET', tag .. ':body', id, ARGV[one[20]]) end
            if problem then add_error(task, problem) end
            if left then redrive(task, left, one[8]) end
            enter(queue, id, task, lease_until)
            flush(queue)
            if comes_back then
                ripple(tag, id, task, status, one[8], channel)
            elseif is_final(task[STATUS]) and not is_final(status) then
                ripple(tag, id, task, nil, task[FINISHED_AT], channel)
            end
            if task[AWAITED] and is_final(task[STATUS]) then redis.call('PUBLISH', channel, 'r' .. id) end
            is_told = is_told or task[STATUS] == 'pending' or task[CONCURRENCY_KEY] ~= ''
            answers[i] = 1
        end
    end
end
if is_told then redis.call('PUBLISH', channel, 'w' .. name) end
return answers
"""
)

# KEYS: a tag. ARGV: ids. Forgets the final ones; how many.
DELETE = (
    _COMMON
    + """
local gone, gone_tasks, seen = {}, {}, {}
for i, task in ipairs(read(KEYS[1], ARGV)) do
    if may_go(KEYS[1], task) and not seen[ARGV[i]] then
        gone[#gone + 1], gone_tasks[#gone + 1], seen[ARGV[i]] = ARGV[i], task, true
    end
end
forget(KEYS[1], gone, gone_tasks)
return #gone
"""
)

# KEYS: a tag. ARGV: limit. Forgets what was kept for long enough; how many.
PRUNE = (
    _COMMON
    + """
local moment, most, offset, gone, tasks = now(), tonumber(ARGV[1]), 0, {}, {}
while #gone < most do
    local ids = redis.call('ZRANGEBYSCORE', KEYS[1] .. ':finished', '-inf', moment, 'LIMIT', offset, most)
    for i, task in ipairs(read(KEYS[1], ids)) do
        if #gone < most and may_go(KEYS[1], task) then gone[#gone + 1], tasks[#gone + 1] = ids[i], task end
    end
    offset = offset + #ids
    if #ids < most then break end
end
forget(KEYS[1], gone, tasks)
return #gone
"""
)

# KEYS: a tag. ARGV: limit. The moment, and the ids of those that were not started in time.
LATE = (
    _COMMON
    + """
local moment = now()
local ids = redis.call('ZRANGEBYSCORE', KEYS[1] .. ':expiring', '-inf', moment, 'LIMIT', 0, ARGV[1])
return {exact(moment), ids}
"""
)

# KEYS: the tag. ARGV: channel, queue, and for each task its id, state, body and result. Returns the ids of those that
# were kept. Safe to repeat, but for the answer.
PUT = (
    _COMMON
    + """
local tag, channel, name = KEYS[1], ARGV[1], ARGV[2]
local queue, bodies, all, kept, is_told, moment = changes(tag), {}, {}, {}, false, now()
for i = 3, #ARGV, 4 do
    local id, task = ARGV[i], cmsgpack.unpack(ARGV[i + 1])
    local key = task[UNIQUE_KEY]
    local has_its_key = has_key(task) or (key ~= '' and task[UNIQUE_UNTIL] > moment)
    if redis.call('HEXISTS', tag .. ':state', id) == 0 and not (has_its_key and holder(tag, key, moment)) then
        enter(queue, id, task)
        flush(queue)
        if has_its_key then redis.call('HSET', tag .. ':unique', key, id) end
        if task[HAS_RESULT] then redis.call('HSET', tag .. ':result', id, ARGV[i + 3]) end
        bodies[#bodies + 1] = id
        bodies[#bodies + 1] = ARGV[i + 2]
        all[#all + 1] = 0
        all[#all + 1] = id
        kept[#kept + 1] = id
        is_told = is_told or task[STATUS] == 'pending'
    end
end
many('HSET', tag .. ':body', bodies)
many('ZADD', tag .. ':ids', all)
if is_told then redis.call('PUBLISH', channel, 'w' .. name) end
return kept
"""
)

# KEYS: a tag. ARGV: {id, status, attempt, eta} of each. Forgets those that are still so; which. Safe to repeat, but for
# the answer.
REMOVE = (
    _COMMON
    + """
local tag, gone, gone_tasks, seen = KEYS[1], {}, {}, {}
for _, one in ipairs(cmsgpack.unpack(ARGV[1])) do
    local id, task = one[1], read(tag, {one[1]})[1]
    if task and not seen[id] and task[STATUS] == one[2] and task[ATTEMPT] == one[3] and task[ETA] == one[4] then
        gone[#gone + 1], gone_tasks[#gone + 1], seen[id] = id, task, true
    end
end
forget(tag, gone, gone_tasks)
return gone
"""
)

ALL = (
    PUT,
    REMOVE,
    ADD,
    EXCHANGE,
    RENEW,
    PROGRESS,
    OVERDUE,
    FIND_CLAIM,
    NEXT_WORK,
    AWAIT,
    SHOW,
    LIST,
    WHERE,
    CHANGE,
    DELETE,
    PRUNE,
    LATE,
)
