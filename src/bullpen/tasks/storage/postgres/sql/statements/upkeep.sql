-- Upkeep: tasks that were not started in time, and results that are no longer kept.

-- name: lock_expired
SELECT id FROM {schema}.task WHERE status = 'pending' AND expires <= {schema}.now()
ORDER BY expires LIMIT $1 FOR UPDATE SKIP LOCKED;

-- A task that a pending or running task still depends on stays.
-- name: prune
DELETE FROM {schema}.task WHERE id IN (
    SELECT id FROM {schema}.task t
    WHERE prune_at <= {schema}.now()
        AND (t.next_task_id IS NULL OR NOT EXISTS (
            SELECT 1 FROM {schema}.task f WHERE f.id = t.next_task_id AND f.status IN ('pending', 'running')
        ))
    ORDER BY prune_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
RETURNING 1;
