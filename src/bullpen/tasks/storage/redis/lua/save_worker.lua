-- Save a field of a hash even if the memory of the server is full.
-- KEYS: the hash. ARGV: name, value. Held by UpkeepTests.
-- WITH clock common write_when_full
allow_writes_when_full(KEYS[1])
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
