-- Events, and the tasks that wait for them.

CREATE TABLE {schema}.event (
    name       text COLLATE "C" PRIMARY KEY,
    payload    bytea NOT NULL,
    at         float8 NOT NULL,
    expires_at float8 NOT NULL
);
CREATE INDEX event_expiring ON {schema}.event (expires_at);
CREATE INDEX task_awaiting ON {schema}.task (awaits) WHERE awaits IS NOT NULL;
CREATE INDEX task_awaiting_any ON {schema}.task (id) WHERE awaits IS NOT NULL;  -- in order, also without statistics

-- Locks the names of events until the transaction ends. A settlement that awaits an event locks its name before it looks
-- for the event, and `emit` before it looks for the tasks that wait: so each sees what the other has written. Every
-- caller locks names before rows, and in the same order.
CREATE FUNCTION {schema}.lock_events(names text[]) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM {schema}.check_isolation('events');
    PERFORM pg_advisory_xact_lock(k.key) FROM (
        SELECT DISTINCT hashtextextended('{schema}.' || n, 4) AS key FROM unnest(names) AS n WHERE n IS NOT NULL ORDER BY 1
    ) AS k;
END $$;

-- Keeps an event, unless one of this name exists whose time to live is not over, and makes the tasks due that wait for
-- it: the rule of `woken` in tasks/model/task.py. Returns whether the event is new.
CREATE FUNCTION {schema}.emit(event_name text, event_payload bytea, ttl float8) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now float8;
    is_new boolean;
    queues text[];
BEGIN
    PERFORM {schema}.lock_events(ARRAY[event_name]);
    now := {schema}.now();
    INSERT INTO {schema}.event AS e VALUES (event_name, event_payload, now, least(now + ttl, {never}))
    ON CONFLICT (name) DO UPDATE
        SET payload = excluded.payload, at = excluded.at, expires_at = excluded.expires_at
        WHERE e.expires_at <= excluded.at;
    is_new := FOUND;
    WITH waiting AS (
        SELECT t.id FROM {schema}.task t
        WHERE t.awaits = event_name AND t.status || '' = 'pending' AND t.hold <> 'paused' AND t.eta > now
        ORDER BY t.id FOR UPDATE
    ), woken AS (
        UPDATE {schema}.task t SET eta = now FROM waiting w
        WHERE t.id = w.id AND t.status || '' = 'pending' AND t.awaits = event_name RETURNING t.queue
    )
    SELECT array_agg(DISTINCT w.queue) INTO queues FROM woken w;
    PERFORM pg_notify('{channel}', 'w' || u) FROM unnest(queues) AS u;
    PERFORM pg_notify('{channel}', 'e' || event_name);
    RETURN is_new;
END $$;
