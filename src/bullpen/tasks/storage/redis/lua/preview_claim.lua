-- Tell what a claim would get, without claiming. On a cluster the client compares the nodes with it.
-- KEYS: tags. ARGV: limit. Returns priority, eta and id of each. Held by tests/contracts/test_redis_cluster.py.
-- WITH clock common pick
local found = {}
for _, one in ipairs((pick(KEYS, tonumber(ARGV[1]), server_time()))) do
    local id, task, n = one[2], one[3], #found
    found[n + 1], found[n + 2], found[n + 3] = task[PRIORITY], exact(task[ETA]), id
end
return found
