-- KEYS: tags. ARGV: limit. Returns the priority, eta and id of each that would be claimed.
-- WITH clock basics picks
local found = {}
for _, one in ipairs((pick(KEYS, tonumber(ARGV[1]), now()))) do
    local id, task, n = one[2], one[3], #found
    found[n + 1], found[n + 2], found[n + 3] = task[PRIORITY], exact(task[ETA]), id
end
return found
