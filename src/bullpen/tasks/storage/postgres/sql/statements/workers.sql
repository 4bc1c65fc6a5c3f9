-- The worker processes that have registered.

-- name: save_worker
INSERT INTO {schema}.worker VALUES ($1, {schema}.now(), $2)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, record = excluded.record;

-- name: delete_worker
DELETE FROM {schema}.worker WHERE id = $1;

-- name: workers
SELECT record, seen_at FROM {schema}.worker ORDER BY id;
