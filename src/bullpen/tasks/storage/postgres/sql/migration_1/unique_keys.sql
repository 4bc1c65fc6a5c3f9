-- Unique keys. A transaction locks the keys that it adds or changes, then looks up their holders.

-- Locks the keys until the transaction ends. Every caller locks in the same order, which rules out deadlocks. The server
-- has a limited number of locks for all its clients. So a transaction with more than {most_key_locks} keys of a queue
-- locks all keys of that queue at once; the others hold that lock in shared mode beside those of their keys.
CREATE FUNCTION {schema}.lock_keys(queues text[], keys text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q record;
    k text;
BEGIN
    FOR q IN
        SELECT g.queue AS name, array_agg(DISTINCT g.key ORDER BY g.key) AS keys,
            hashtextextended('{schema}.' || g.queue, 3) AS all_keys
        FROM unnest(queues, keys) AS g (queue, key) WHERE g.key IS NOT NULL GROUP BY g.queue ORDER BY g.queue
    LOOP
        PERFORM {schema}.check_isolation('unique keys');
        IF cardinality(q.keys) > {most_key_locks} THEN
            PERFORM pg_advisory_xact_lock(q.all_keys);
            CONTINUE;
        END IF;
        PERFORM pg_advisory_xact_lock_shared(q.all_keys);
        FOREACH k IN ARRAY q.keys LOOP
            PERFORM pg_advisory_xact_lock(hashtextextended('{schema}.' || q.name || ' ' || k, 2));
        END LOOP;
    END LOOP;
END $$;

-- The task that holds a unique key, as of now: it may end at the same time. The conditions are those of `has_key` in tasks/model/unique.py.
CREATE FUNCTION {schema}.holder(of_queue text, key text, now float8) RETURNS SETOF {schema}.task
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT * FROM {schema}.task t
    WHERE t.unique_key = key AND t.queue = of_queue
        AND (t.status IN ('pending', 'running') OR t.unique_until IS NOT NULL)
        AND (t.unique_until > now OR t.status = 'pending' AND (t.unique_scope = 'alive' OR t.attempt = 0)
            OR t.status = 'running' AND t.unique_scope = 'alive')
    LIMIT 1
$$;
