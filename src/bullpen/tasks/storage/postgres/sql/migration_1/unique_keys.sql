-- Unique keys. A transaction locks the keys that it adds or changes, then looks up their holders.

-- Locks the keys until the transaction ends. Every caller locks in the same order, which rules out deadlocks.
CREATE FUNCTION {schema}.lock_keys(queues text[], keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    k record;
BEGIN
    FOR k IN
        SELECT DISTINCT g.queue, g.key FROM unnest(queues, keys) AS g (queue, key) WHERE g.key IS NOT NULL ORDER BY 1, 2
    LOOP
        PERFORM {schema}.check_isolation('unique keys');
        PERFORM pg_advisory_xact_lock(hashtextextended('{schema}.' || k.queue || ' ' || k.key, 2));
    END LOOP;
END $$;

-- The task that holds a unique key, locked. The conditions are those of `has_key` in tasks/model/unique.py.
CREATE FUNCTION {schema}.holder(of_queue text, key text, now float8) RETURNS SETOF {schema}.task
LANGUAGE sql VOLATILE AS $$
    SELECT * FROM {schema}.task t
    WHERE t.unique_key = key AND t.queue = of_queue
        AND (t.status IN ('pending', 'running') OR t.unique_until IS NOT NULL)
        AND (t.unique_until > now OR t.status = 'pending' AND (t.unique_scope = 'alive' OR t.attempt = 0)
            OR t.status = 'running' AND t.unique_scope = 'alive')
    LIMIT 1 FOR UPDATE
$$;
