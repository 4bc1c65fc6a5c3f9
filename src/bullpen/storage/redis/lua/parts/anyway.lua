-- A server whose memory is full refuses what needs more of it, but only until a script has written anything. What is said
-- of tasks that are there already must not be refused: workers would lose what they hold.
local function write_anyway(hash)
    redis.call('HDEL', hash, '')
end
