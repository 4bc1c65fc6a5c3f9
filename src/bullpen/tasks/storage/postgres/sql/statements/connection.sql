-- What a new connection checks. None of these needs the schema.

-- The settings that the statements rely on, where the server, the database or the role has set another value. READ
-- COMMITTED: a statement that has waited for a lock sees the rows that were committed while it waited.
-- name: wrong_settings
SELECT name, value
FROM (VALUES ('default_transaction_isolation', 'read committed'), ('array_nulls', 'on')) AS needed (name, value)
WHERE pg_catalog.current_setting(name) <> value;

-- From a table, because `to_regclass` would answer from a cache that is older than the lock that was waited for.
-- name: has_version_table
SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'version';

-- name: is_sql_keyword
SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_get_keywords() WHERE word = $1 AND catcode <> 'U');
