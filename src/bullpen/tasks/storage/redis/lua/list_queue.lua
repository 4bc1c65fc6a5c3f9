-- Add a queue with tasks or limits to the list of queues, in case the list was lost.
-- KEYS: a tag. Returns 0 if the caller has to list it, because the list is on another node of a cluster.
-- Held by tests/contracts/test_redis_storage.py.
-- WITH clock common queue_list
if redis.call('EXISTS', KEYS[1] .. ':ids', KEYS[1] .. ':limits') == 0 then return 1 end
return list_queue(KEYS[1]) and 1 or 0
