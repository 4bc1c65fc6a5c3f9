-- KEYS: a hash. ARGV: a name in it, and what is to be there.
-- WITH clock basics anyway
write_anyway(KEYS[1])
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
