-- Find the tasks of a claim.
-- KEYS: a tag. ARGV: claim id. Returns rows. Held by ClaimingTests.
-- WITH clock common task_rows
return rows_of(KEYS[1], claimed_as(KEYS[1], ARGV[1]))
