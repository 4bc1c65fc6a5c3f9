-- Add a queue with tasks or limits to the list of queues, in case the list was lost.
-- KEYS: a tag. Returns 0 if the caller has to list it, because the list is on another node of a cluster; 2 if it was
-- missing, else 1. Held by tests/contracts/test_redis_storage.py.
-- WITH clock common queue_list
if redis.call('EXISTS', KEYS[1] .. ':ids', KEYS[1] .. ':limits') == 0 then return 1 end
local list, name = list_of(KEYS[1])
local added = redis.pcall('SADD', list, name)
return type(added) == 'number' and 1 + added or 0
