-- These tasks, and all that depend on them, directly or along a chain. Links do not change, so this needs no lock.
CREATE FUNCTION {schema}.chains(ids text[]) RETURNS SETOF text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE chain(id) AS (
        SELECT unnest(ids)
        UNION
        SELECT t.next_task_id FROM chain c JOIN {schema}.task t ON t.id = c.id WHERE t.next_task_id IS NOT NULL
    )
    SELECT c.id FROM chain c
$$;

-- Applies the end of `member` to the task that depends on it, and so on along the chain: the rule of `followed` in
-- tasks/model/links.py.
CREATE FUNCTION {schema}.update_followers(member {schema}.task, now float8) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    follower {schema}.task;
    problem text;
BEGIN
    WHILE member.next_task_id IS NOT NULL LOOP
        SELECT * INTO follower FROM {schema}.task t WHERE t.id = member.next_task_id FOR UPDATE;
        IF NOT FOUND OR follower.status <> 'pending' OR follower.waits_for <= 0 THEN
            RETURN;
        END IF;
        IF member.status = 'success' OR follower.depends_on LIKE '%"run_always":true%' THEN
            UPDATE {schema}.task t
            SET waits_for = t.waits_for - 1, eta = CASE WHEN t.waits_for = 1 THEN now ELSE t.eta END
            WHERE t.id = follower.id;
            IF follower.waits_for = 1 THEN
                PERFORM pg_notify('{channel}', 'w' || follower.queue);
            END IF;
            RETURN;
        END IF;
        problem := json_build_object('kind', 'upstream', 'attempt', follower.attempt, 'at', now, 'message',
            'it waited for task ' || member.id || ', which '
            || CASE member.status WHEN 'cancelled' THEN 'was cancelled' ELSE 'failed' END)::text;
        UPDATE {schema}.task t SET status = 'cancelled', finished_at = now, waits_for = {given_up},
            errors = CASE WHEN array_ndims(t.errors) > 1 THEN t.errors
                ELSE (t.errors || problem)[greatest(1, cardinality(t.errors) + 2 - {errors_kept}):] END,
            prune_at = greatest(now + coalesce(t.result_ttl, 'infinity'), t.unique_until)
        WHERE t.id = follower.id RETURNING t.* INTO follower;
        IF follower.awaited THEN
            PERFORM pg_notify('{channel}', 'r' || follower.id);
        END IF;
        member := follower;
    END LOOP;
END $$;
