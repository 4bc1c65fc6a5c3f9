-- Settling and claiming, in one round trip.

CREATE TYPE {schema}.exchange_row AS ({claimed_record}, claim_cursor text);

-- Applies the settlements, then claims at most `max_tasks` tasks. Returns up to three kinds of rows:
--   rejected settlements  only id and attempt are set
--   the claim cursor     only claim_cursor is set: JSON [[queues, floors, floor_ids], now, searched from the front?]
--   the claimed tasks    in claim order; a column with its default value is NULL
--
-- Rows are found by primary key alone: `status || ''` keeps the planner away from the indexes on status, which are full
-- of dead entries (claim_cursor.py).
CREATE FUNCTION {schema}.exchange(
    ids text[], attempts integer[], statuses text[], delays float8[], etas float8[], scheduled_ats float8[],
    nexts boolean[], failed integer[], crashed integer[], ran integer[], results bytea[], dropped text[],
    problems text[], progresses text[], suspensions boolean[], awaited_events text[], links boolean[],
    owner text, queues text[], max_tasks integer, lease float8, claim text, floors float8[], floor_ids text[],
    swept_at float8
) RETURNS SETOF {schema}.exchange_row LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now float8;
    row {schema}.exchange_row;
    applied text[] := '{}';
    applied_attempts integer[] := '{}';
    successes text[] := '{success,{forgotten}}';
    to_lock text[];
    finished text[] := '{}';  -- the queue of every task that ended, with repetitions
    again text[];  -- queues with a task that runs again
    awaited_ids text[];
    members text[];
    from_front boolean;
    r record;
    picked text[] := '{}';
BEGIN
    IF cardinality(awaited_events) > cardinality(array_positions(awaited_events, NULL)) THEN
        PERFORM {schema}.lock_events(awaited_events);
    END IF;
    now := {schema}.now();
    to_lock := ids;
    IF true = ANY (links) OR NOT statuses <@ successes THEN  -- a success changes one task behind it, another end all of them
        to_lock := ARRAY(
            SELECT unnest(ids)
            UNION SELECT t.next_task_id FROM {schema}.task t WHERE t.id = ANY (ids) AND t.next_task_id IS NOT NULL
            UNION SELECT {schema}.chains(ARRAY(
                SELECT u.id FROM unnest(ids, statuses) AS u (id, status) WHERE u.status <> ALL (successes)
            ))
        );
    END IF;
    IF cardinality(to_lock) > 1 THEN  -- in the order of statements/tasks.sql, whatever the plan of the next statements is
        PERFORM FROM {schema}.task t WHERE t.id = ANY (to_lock) ORDER BY t.id FOR UPDATE;
    END IF;
    IF '{forgotten}' = ANY (statuses) THEN
        WITH forgotten AS (
            DELETE FROM {schema}.task t USING unnest(ids, attempts, statuses) AS s (id, attempt, status)
            WHERE s.status = '{forgotten}' AND t.id = s.id AND t.attempt = s.attempt AND t.status || '' = 'running'
                AND NOT t.awaited AND t.next_task_id IS NULL AND coalesce(t.unique_until, 0) <= now
            RETURNING t.id, t.attempt, t.queue
        )
        SELECT coalesce(array_agg(z.id), '{}'), array_agg(z.attempt), coalesce(array_agg(z.queue), '{}')
        INTO applied, applied_attempts, finished FROM forgotten z;
        statuses := array_replace(statuses, '{forgotten}', 'success');  -- the rest must be kept after all
    END IF;
    IF cardinality(applied) < cardinality(ids) THEN
        WITH settled AS (
            UPDATE {schema}.task t SET
                status = CASE WHEN s.status <> 'pending' OR NOT t.cancel_requested THEN s.status
                    WHEN s.completed_runs > t.completed_runs THEN 'success' ELSE 'cancelled' END,
                eta = CASE WHEN s.status <> 'pending' OR t.cancel_requested THEN t.eta
                    WHEN t.hold = 'paused' THEN {never}
                    WHEN t.hold = 'changed' AND s.next_run THEN now
                    WHEN s.suspended AND EXISTS (SELECT 1 FROM {schema}.event e WHERE e.name = s.awaits) THEN least(s.eta, now)
                    ELSE coalesce(s.eta, now + s.delay) END,
                expires = CASE WHEN s.suspended THEN NULL ELSE t.expires END,
                scheduled_at = CASE WHEN s.status <> 'pending' OR t.cancel_requested THEN t.scheduled_at
                    WHEN t.hold = 'changed' AND s.next_run THEN {unplanned} ELSE s.scheduled_at END,
                hold = CASE WHEN s.status = 'pending' AND NOT t.cancel_requested AND t.hold = 'changed' AND s.next_run
                    THEN '' ELSE t.hold END,
                failures = s.failures,
                crashes = s.crashes,
                completed_runs = s.completed_runs,
                result = CASE WHEN s.status = 'success' OR s.status = 'pending' AND s.completed_runs > t.completed_runs
                    THEN s.result ELSE t.result END,
                result_dropped = CASE WHEN s.status = 'success'
                        OR s.status = 'pending' AND s.completed_runs > t.completed_runs
                    THEN s.result_dropped ELSE t.result_dropped END,
                errors = CASE WHEN s.error IS NULL OR array_ndims(t.errors) > 1 THEN t.errors
                    ELSE (t.errors || s.error)[greatest(1, cardinality(t.errors) + 2 - {errors_kept}):] END,
                progress = coalesce(s.progress, t.progress),
                awaits = CASE WHEN s.status <> 'pending' OR t.cancel_requested THEN t.awaits ELSE s.awaits END,
                steps = CASE WHEN s.next_run AND NOT t.cancel_requested THEN 0 ELSE t.steps END,
                worker = CASE WHEN s.status <> 'pending' OR t.cancel_requested THEN t.worker END,
                claim_id = NULL,
                lease_until = NULL,
                finished_at = CASE WHEN s.status <> 'pending' OR t.cancel_requested
                        OR s.completed_runs > t.completed_runs
                    THEN now END,
                prune_at = CASE WHEN s.status <> 'pending' OR t.cancel_requested
                    THEN greatest(now + coalesce(CASE s.status WHEN 'failed' THEN t.failure_ttl ELSE t.result_ttl END,
                        'infinity'), t.unique_until) END
            FROM unnest(ids, attempts, statuses, delays, etas, scheduled_ats, nexts, failed, crashed, ran, results,
                    dropped, problems, progresses, suspensions, awaited_events, links)
                AS s (id, attempt, status, delay, eta, scheduled_at, next_run, failures, crashes,
                    completed_runs, result, result_dropped, error, progress, suspended, awaits, linked)
            -- A damaged attempt is read as 0.
            WHERE t.id = s.id AND CASE WHEN t.attempt BETWEEN 0 AND {max_count} THEN t.attempt ELSE 0 END = s.attempt
                AND t.status || '' = 'running'
            RETURNING t.id, s.attempt, t.status, t.queue, t.awaited, t.next_task_id
        )
        SELECT applied || array_agg(z.id), applied_attempts || array_agg(z.attempt),
            finished || array_agg(z.queue) FILTER (WHERE z.status <> 'pending'),
            array_agg(DISTINCT z.queue) FILTER (WHERE z.status = 'pending'),
            array_agg(z.id) FILTER (WHERE z.awaited),
            array_agg(z.id) FILTER (WHERE z.next_task_id IS NOT NULL AND z.status <> 'pending')
        INTO applied, applied_attempts, finished, again, awaited_ids, members FROM settled z;
        PERFORM pg_notify('{channel}', 'r' || u) FROM unnest(awaited_ids) AS u;
        PERFORM pg_notify('{channel}', 'w' || u) FROM unnest(again) AS u;
        IF members IS NOT NULL THEN
            PERFORM {schema}.update_followers(t, now) FROM {schema}.task t WHERE t.id = ANY (members);
        END IF;
        IF cardinality(applied) < cardinality(ids) THEN
            SELECT coalesce(array_agg(u.id || ' ' || u.attempt), '{}') INTO applied
            FROM unnest(applied, applied_attempts) AS u (id, attempt);
            FOR i IN 1 .. cardinality(ids) LOOP
                IF ids[i] || ' ' || attempts[i] <> ALL (applied) THEN
                    row := NULL;
                    row.id := ids[i]; row.attempt := attempts[i];
                    RETURN NEXT row;
                END IF;
                -- A second settlement of the same attempt is rejected.
                applied := array_remove(applied, ids[i] || ' ' || attempts[i]);
            END LOOP;
        END IF;
    END IF;
    IF max_tasks > 0 AND cardinality(queues) > 0 THEN
        SELECT * INTO r FROM {schema}.capacity(queues, max_tasks, now, true);
        IF cardinality(r.names) > 0 THEN
            from_front := r.rewound >= swept_at;
            IF from_front THEN
                floors := array_fill(0::float8, ARRAY[cardinality(r.names) * 10]);
                floor_ids := array_fill(''::text, ARRAY[cardinality(r.names) * 10]);
            ELSIF r.names <> queues THEN  -- keep the floors of the queues that may start tasks
                SELECT array_agg(floors[(w.place - 1) * 10 + p.n + 1] ORDER BY o.place, p.n),
                    array_agg(floor_ids[(w.place - 1) * 10 + p.n + 1] ORDER BY o.place, p.n) INTO floors, floor_ids
                FROM unnest(r.names) WITH ORDINALITY AS o (name, place)
                    JOIN unnest(queues) WITH ORDINALITY AS w (name, place) ON w.name = o.name,
                    generate_series(0, 9) AS p (n);
            END IF;
            SELECT * INTO floors, floor_ids, picked
            FROM {schema}.pick(r.names, r.free, r.max_per_key, max_tasks, now, floors, floor_ids);
            row := NULL;
            row.claim_cursor := json_build_array(json_build_array(r.names, floors, floor_ids), now, from_front);
            RETURN NEXT row;
        END IF;
    END IF;
    IF cardinality(finished) > 0 THEN  -- tell other workers about capacity that this claim leaves unused
        PERFORM pg_notify('{channel}', 'w' || q.name) FROM {schema}.queue q
        WHERE q.limited AND cardinality(array_positions(finished, q.name)) > (
            SELECT count(*) FROM {schema}.task t WHERE t.id = ANY (picked) AND t.queue = q.name
        );
    END IF;
    IF cardinality(picked) = 0 THEN
        RETURN;
    END IF;
    IF r.has_rate THEN
        INSERT INTO {schema}.start (queue, at)
            SELECT t.queue, now FROM {schema}.task t JOIN {schema}.queue q ON q.name = t.queue
            WHERE t.id = ANY (picked) AND q.rate IS NOT NULL;
        DELETE FROM {schema}.start s USING {schema}.queue q
        WHERE q.name = ANY (r.names) AND s.queue = q.name 
            AND abs(s.at - now) > greatest(1, 1 / greatest(q.rate, {min_rate}));  -- none in the far future
    END IF;
    RETURN QUERY
        WITH taken AS (
            UPDATE {schema}.task t SET status = 'running', worker = owner, claim_id = claim,
                attempt = CASE WHEN t.attempt BETWEEN 0 AND {max_count} THEN t.attempt + 1 ELSE 1 END,
                lease_until = now + lease, started_at = now
            WHERE t.id = ANY (picked) AND t.status || '' = 'pending'
            RETURNING t.*
        )
        SELECT {claimed_values}, NULL FROM taken t ORDER BY t.priority DESC, t.eta, t.id;
END $$;

-- Applies a JSON array of settlements, so that any driver can call it in the user's transaction. Returns a JSON array
-- of the rejected ids.
CREATE FUNCTION {schema}.settle(settlements json) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT coalesce(json_agg(x.id), '[]')::text
        FROM (SELECT {settle_aggregates} FROM json_to_recordset(settlements) AS r ({settle_record})) AS c,
            {schema}.exchange({settle_arrays}, '', '{}', 0, 0, '', '{}', '{}', 0) AS x
    );
END $$;
