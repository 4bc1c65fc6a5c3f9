-- Upkeep: tasks that were not started in time, and results and rows of the history that are no longer kept.

-- A task waits for the next call while another transaction has locked it or a task behind it.
-- name: lock_expired
WITH late AS (
    SELECT id FROM {schema}.task WHERE status = 'pending' AND expires <= {schema}.now()
    ORDER BY expires LIMIT $1 FOR UPDATE SKIP LOCKED
), free AS MATERIALIZED (
    SELECT id FROM {schema}.task WHERE id = ANY (ARRAY(SELECT {schema}.chains(ARRAY(SELECT id FROM late))))
    FOR UPDATE SKIP LOCKED
)
SELECT id FROM late WHERE NOT EXISTS (
    SELECT FROM {schema}.chains(ARRAY[late.id]) AS c (id) JOIN {schema}.task behind ON behind.id = c.id
    WHERE c.id NOT IN (SELECT id FROM free)
);

-- A task that a pending or running task still depends on stays. A queue without pause, limits and pending tasks needs no
-- row: the next one that puts a task before the claim cursors inserts it again.
-- name: prune
WITH RECURSIVE ended(queue, status) AS (
    (SELECT queue, status FROM {schema}.task WHERE prune_at IS NOT NULL ORDER BY queue, status LIMIT 1)
    UNION ALL
    SELECT n.queue, n.status FROM ended e, LATERAL (
        SELECT t.queue, t.status FROM {schema}.task t
        WHERE t.prune_at IS NOT NULL AND (t.queue, t.status) > (e.queue, e.status) ORDER BY t.queue, t.status LIMIT 1
    ) n
), unused AS (
    DELETE FROM {schema}.queue WHERE name IN (
        SELECT name FROM {schema}.queue q
        WHERE NOT paused AND NOT limited
            AND NOT EXISTS (SELECT 1 FROM {schema}.task t WHERE t.queue = q.name AND t.status = 'pending')
        ORDER BY name FOR UPDATE SKIP LOCKED
    )
), old_minutes AS (
    DELETE FROM {schema}.history WHERE (step, at, queue, function) IN ({old_minutes})
), old_hours AS (
    DELETE FROM {schema}.history WHERE (step, at, queue, function) IN ({old_hours})
), old_events AS (
    DELETE FROM {schema}.event WHERE name IN (
        SELECT name FROM {schema}.event e
        WHERE expires_at <= (SELECT {schema}.now())
            AND NOT EXISTS (SELECT 1 FROM {schema}.task t WHERE t.awaits = e.name AND t.status IN ('pending', 'running'))
        ORDER BY expires_at LIMIT 500 FOR UPDATE SKIP LOCKED
    )
), old_failures AS (
    DELETE FROM {schema}.failure WHERE (at, queue, function, fingerprint) IN ({old_failures})
)
DELETE FROM {schema}.task WHERE id IN (
    SELECT old.id FROM ended e, LATERAL (
        SELECT t.id FROM {schema}.task t
        WHERE t.queue = e.queue AND t.status = e.status AND t.prune_at <= {schema}.now()
            AND (t.next_task_id IS NULL OR NOT EXISTS (
                SELECT 1 FROM {schema}.task f WHERE f.id = t.next_task_id AND f.status IN ('pending', 'running')
            ))
        ORDER BY t.prune_at LIMIT $1 FOR UPDATE SKIP LOCKED
    ) old LIMIT $1
)
RETURNING 1;
