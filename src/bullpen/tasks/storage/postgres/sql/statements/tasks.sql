-- Reading and changing rows of the task table.

-- name: get
SELECT {columns} FROM {schema}.task WHERE id = ANY ($1);

-- name: count
SELECT queue, status, pg_catalog.count(*) FROM {schema}.task GROUP BY 1, 2;

-- A task that a pending or running task still depends on stays.
-- name: delete
DELETE FROM {schema}.task t
WHERE id = ANY ($1) AND status NOT IN ('pending', 'running')
    AND (t.next_task_id IS NULL OR NOT EXISTS (
        SELECT 1 FROM {schema}.task f WHERE f.id = t.next_task_id AND f.status IN ('pending', 'running')
    ))
RETURNING 1;

-- Rows are locked in one order everywhere, which rules out deadlocks: tasks that depend on others after those others,
-- as when a settlement updates the task behind the one that ended.
-- name: lock
SELECT {columns} FROM {schema}.task WHERE id = ANY ($1)
ORDER BY depends_on IS NOT NULL AND status <> 'running', id FOR UPDATE;

-- name: lock_linked
SELECT 1 FROM {schema}.task WHERE id = ANY ($1)
ORDER BY depends_on IS NOT NULL AND status <> 'running', id FOR UPDATE;

-- name: lock_follower
SELECT {columns} FROM {schema}.task WHERE id = $1 FOR UPDATE;

-- name: lock_members
SELECT {columns} FROM {schema}.task WHERE id = ANY ($1) ORDER BY id FOR UPDATE;

-- name: update
UPDATE {schema}.task SET ({changing}) = ROW ({changing_values}) WHERE id = {id_after_changing};

-- name: update_terms
UPDATE {schema}.task SET ({terms}) = ROW ({terms_values}) WHERE id = {id_after_terms};
