-- Reading and changing rows of the task table.

-- name: get
SELECT {columns} FROM {schema}.task WHERE id = ANY ($1);

-- name: count
SELECT queue, status, pg_catalog.count(*) FROM {schema}.task GROUP BY 1, 2;

-- At most $1 of each, from the index that has just those tasks: one step in it finds the next queue and status.
-- name: count_some
WITH RECURSIVE waiting(queue) AS (
    (SELECT queue FROM {schema}.task WHERE status = 'pending' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT t.queue FROM {schema}.task t WHERE t.status = 'pending' AND t.queue > w.queue ORDER BY t.queue LIMIT 1)
    FROM waiting w WHERE w.queue IS NOT NULL
), ended(queue, status) AS (
    (SELECT queue, status FROM {schema}.task WHERE prune_at IS NOT NULL ORDER BY queue, status LIMIT 1)
    UNION ALL
    SELECT n.queue, n.status FROM ended e, LATERAL (
        SELECT t.queue, t.status FROM {schema}.task t
        WHERE t.prune_at IS NOT NULL AND (t.queue, t.status) > (e.queue, e.status) ORDER BY t.queue, t.status LIMIT 1
    ) n
)
SELECT w.queue, 'pending', (
    SELECT pg_catalog.count(*) FROM (
        SELECT 1 FROM {schema}.task t WHERE t.status = 'pending' AND t.queue = w.queue LIMIT $1
    ) counted
) FROM waiting w WHERE w.queue IS NOT NULL
UNION ALL
SELECT queue, status, pg_catalog.count(*) FROM {schema}.task WHERE status = 'running' GROUP BY 1, 2
UNION ALL
SELECT e.queue, e.status, (
    SELECT pg_catalog.count(*) FROM (
        SELECT 1 FROM {schema}.task t
        WHERE t.prune_at IS NOT NULL AND t.queue = e.queue AND t.status = e.status LIMIT $1
    ) counted
) FROM ended e;

-- The earliest tasks of each queue and priority: one step in the index task_ready finds the next of these.
-- name: first_pending
WITH RECURSIVE ranks(queue, priority) AS (
    (SELECT queue, priority FROM {schema}.task WHERE status = 'pending' ORDER BY queue, priority LIMIT 1)
    UNION ALL
    SELECT n.queue, n.priority FROM ranks r, LATERAL (
        SELECT t.queue, t.priority FROM {schema}.task t
        WHERE t.status = 'pending' AND (t.queue, t.priority) > (r.queue, r.priority)
        ORDER BY t.queue, t.priority LIMIT 1
    ) n
)
SELECT found.* FROM ranks r, LATERAL (
    SELECT {columns} FROM {schema}.task t WHERE t.status = 'pending' AND t.queue = r.queue AND t.priority = r.priority
    ORDER BY t.eta, t.id LIMIT $1
) found;

-- A page of pending tasks by eta and id: the first ids of each queue and priority, and of these the first as tasks.
-- name: list_pending
WITH RECURSIVE ranks(queue, priority) AS (
    (SELECT queue, priority FROM {schema}.task WHERE status = 'pending' AND queue >= coalesce($4, '')
    ORDER BY queue, priority LIMIT 1)
    UNION ALL
    SELECT n.queue, n.priority FROM ranks r, LATERAL (
        SELECT t.queue, t.priority FROM {schema}.task t
        WHERE t.status = 'pending' AND (t.queue, t.priority) > (r.queue, r.priority)
        ORDER BY t.queue, t.priority LIMIT 1
    ) n WHERE r.queue = coalesce($4, r.queue)
), page AS (
    SELECT found.id FROM ranks r, LATERAL (
        SELECT t.eta, t.id FROM {schema}.task t
        WHERE t.status = 'pending' AND t.queue = r.queue AND t.priority = r.priority AND (t.eta, t.id) > ($2, $3)
        ORDER BY t.eta, t.id LIMIT $1
    ) found WHERE r.queue = coalesce($4, r.queue) ORDER BY found.eta, found.id LIMIT $1
)
SELECT {columns} FROM {schema}.task WHERE id = ANY (ARRAY(SELECT id FROM page)) AND status = 'pending' ORDER BY eta, id;

-- A task that a pending or running task still depends on stays, and so does one that another transaction has locked.
-- name: delete
WITH gone AS (
    SELECT id FROM {schema}.task t
    WHERE id = ANY ($1) AND status NOT IN ('pending', 'running')
        AND (t.next_task_id IS NULL OR NOT EXISTS (
            SELECT 1 FROM {schema}.task f WHERE f.id = t.next_task_id AND f.status IN ('pending', 'running')
        ))
    ORDER BY depends_on IS NOT NULL, id FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}.task t USING gone WHERE t.id = gone.id
RETURNING t.id, t.queue, t.attempt, t.status;

-- The rules of `cancelled_by_operator` and `redriven` in tasks/model/task.py, for tasks that depend on no other, and on
-- which none depends. A row that another transaction has locked is left out: while this one waited for it, no worker
-- could settle the others. A task with a unique key is retried by itself, because another one may have the key.
-- name: cancel_together
WITH alone AS (
    SELECT id FROM {schema}.task
    WHERE id = ANY ($1) AND status IN ('pending', 'running') AND next_task_id IS NULL AND depends_on IS NULL
    ORDER BY id FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.task t SET
    cancel_requested = t.cancel_requested OR t.status = 'running',
    status = CASE t.status WHEN 'running' THEN t.status ELSE 'cancelled' END,
    finished_at = CASE t.status WHEN 'running' THEN t.finished_at ELSE $2 END,
    prune_at = CASE t.status WHEN 'running' THEN t.prune_at
        ELSE greatest($2 + coalesce(t.result_ttl, 'infinity'), t.unique_until) END
FROM alone WHERE t.id = alone.id
RETURNING t.id, t.queue, t.attempt, t.status, t.awaited, t.concurrency_key IS NOT NULL AS has_key;

-- name: retry_together
WITH alone AS (
    SELECT id FROM {schema}.task
    WHERE id = ANY ($1) AND status IN ('success', 'failed', 'cancelled') AND unique_key IS NULL
        AND next_task_id IS NULL AND depends_on IS NULL
    ORDER BY id FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.task t SET
    status = 'pending', eta = $2, failures = 0, crashes = 0, expires = NULL, cancel_requested = false,
    finished_at = NULL, prune_at = NULL, worker = NULL, awaits = NULL, steps = CASE t.status WHEN 'success' THEN 0 ELSE t.steps END
FROM alone WHERE t.id = alone.id
RETURNING t.id, t.queue, t.attempt, t.status, t.awaited, t.concurrency_key IS NOT NULL AS has_key;

-- name: notify_each
SELECT pg_catalog.pg_notify($1, news) FROM pg_catalog.unnest($2::text[]) AS n (news);

-- name: limit_lock_waits
SELECT pg_catalog.set_config('lock_timeout', $1, true);

-- Every transaction first locks all tasks that it may change, in the order of their ids, and so no two of them wait for
-- each other: the given tasks and those that depend on them. Statements that skip locked rows may lock them in any
-- order, because they wait for none. A user's own transaction may call in any order: then PostgreSQL may end one of
-- two transactions, and the client repeats its own.
-- name: lock
SELECT {columns} FROM {schema}.task WHERE id = ANY (ARRAY(SELECT {schema}.chains($1))) ORDER BY id FOR UPDATE;

-- name: lock_ids
SELECT 1 FROM {schema}.task WHERE id = ANY ($1) ORDER BY id FOR UPDATE;

-- name: chains
SELECT {schema}.chains($1) AS id;

-- name: lock_members
SELECT {columns} FROM {schema}.task WHERE id = ANY ($1) ORDER BY id FOR UPDATE;

-- name: update
UPDATE {schema}.task SET ({changing}) = ROW ({changing_values}) WHERE id = {id_after_changing};

-- name: update_terms
UPDATE {schema}.task SET ({terms}) = ROW ({terms_values}) WHERE id = {id_after_terms};
