-- Deleting tasks from every key and index.
local function delete_tasks(tag, ids, tasks)
    local queue, followers = changes(tag), {}
    for i, id in ipairs(ids) do
        local key = tasks[i][UNIQUE_KEY]
        if tasks[i][DEPENDS_ON] > 0 then followers[#followers + 1] = id end
        leave(queue, id, tasks[i])
        if tasks[i][STEPS] > 0 then drop_steps(tag, id, tasks[i]) end
        if key ~= '' and redis.call('HGET', tag .. ':unique', key) == id then
            redis.call('HDEL', tag .. ':unique', key)
        end
    end
    flush(queue)
    many('HDEL', tag .. ':state', ids)
    many('HDEL', tag .. ':body', ids)
    many('HDEL', tag .. ':result', ids)
    many('HDEL', tag .. ':damaged', ids)
    many('HDEL', tag .. ':depends_on', followers)
    many('ZREM', tag .. ':ids', ids)
    unlist_if_unused(tag)
end
