-- Read tasks by id. KEYS: a tag. ARGV: ids. Returns the rows of those that exist. Held by PeopleTests.
-- WITH clock common task_rows
return rows_of(KEYS[1], ARGV)
