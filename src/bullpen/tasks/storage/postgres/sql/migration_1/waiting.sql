-- Waiting for results and for work.

-- Marks a task as awaited, so that its end sends a notification. Returns 0 if the task is final already, or has
-- completed more than `known_runs` runs; NULL if it is marked; otherwise the seconds after which the caller asks again,
-- because another transaction has locked the row. The mark is not flushed to the disk, which would keep the row locked
-- for longer. If the server crashes and loses the mark, the waiting callers poll.
CREATE FUNCTION {schema}.await_end(task_id text, known_runs integer) RETURNS float8 LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
BEGIN
    SELECT t.status, t.completed_runs, t.awaited INTO r FROM {schema}.task t WHERE t.id = task_id;
    IF NOT FOUND OR r.status NOT IN ('pending', 'running') OR r.completed_runs > known_runs THEN
        RETURN 0;
    ELSIF r.awaited THEN
        RETURN NULL;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '{await_lock_timeout}', true);
    UPDATE {schema}.task t SET awaited = true WHERE t.id = task_id RETURNING t.status, t.completed_runs INTO r;
    RETURN CASE WHEN NOT FOUND OR r.status NOT IN ('pending', 'running') OR r.completed_runs > known_runs THEN 0 END;
EXCEPTION WHEN lock_not_available THEN
    RETURN {await_retry_delay};
END $$;

-- Seconds until a task behind the floors may start; NULL if no such task is known. A row that another transaction has
-- locked counts: it may be free by the time of the claim.
CREATE FUNCTION {schema}.next_work(queues text[], floors float8[], floor_ids text[]) RETURNS float8
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now float8 := {schema}.now();
    r record;
    place integer;
    startable integer;
    soonest float8;
BEGIN
    SELECT * INTO r FROM {schema}.capacity(queues, 1, now, false);
    soonest := r.retry_in;
    FOR i IN 1 .. cardinality(r.names) LOOP
        IF r.max_per_key[i] IS NOT NULL THEN
            SELECT cardinality(k.picked) INTO startable
            FROM {schema}.pick(r.names[i:i], r.free[i:i], r.max_per_key[i:i], 1, now, NULL, NULL) AS k;
            IF startable > 0 THEN
                RETURN 0;
            END IF;
        END IF;
        place := (array_position(queues, r.names[i]) - 1) * 10 + 1;
        SELECT least(soonest, min((
            SELECT t.eta - now FROM {schema}.task t
            WHERE t.status = 'pending' AND t.queue = r.names[i] AND t.priority = p.n
                AND (t.eta, t.id) > (floors[place + p.n], floor_ids[place + p.n])
                AND (r.max_per_key[i] IS NULL OR t.eta > now)
                AND (t.expires IS NULL OR t.expires > greatest(now, t.eta))
            ORDER BY t.eta, t.id LIMIT 1
        ))) INTO soonest FROM generate_series(0, 9) AS p (n);
        IF soonest <= 0 THEN
            RETURN 0;
        END IF;
    END LOOP;
    RETURN soonest;
END $$;
