-- Adding tasks, with and without unique keys, and moving them between stores.

-- name: add
SELECT added_id, added_at FROM {schema}.add({new_arrays}, {notifies_after_new});

-- name: lock_keys
SELECT pg_catalog.set_config('lock_timeout', $3, true), {schema}.lock_keys($1, $2);

-- name: held_keys
SELECT g.queue, g.key, h.id
FROM unnest($1::text[], $2::text[]) AS g (queue, key), {schema}.holder(g.queue, g.key, $3) AS h;

-- name: key_holder
SELECT {columns} FROM {schema}.holder($1, $2, $3);

-- name: replace
UPDATE {schema}.task SET ({new}, failures, crashes, steps, awaits) = ROW ({new_values}, 0, 0, 0, NULL) WHERE id = $1;

-- name: import_tasks
INSERT INTO {schema}.task ({whole})
SELECT {whole} FROM pg_catalog.json_populate_recordset(NULL::{schema}.task, $1)
ON CONFLICT DO NOTHING RETURNING id;

-- name: import_steps
INSERT INTO {schema}.step SELECT * FROM unnest($1::text[], $2::text[], $3::text[]);

-- name: export_tasks
WITH locked AS (SELECT id FROM {schema}.task WHERE id = ANY ($1) ORDER BY id FOR UPDATE)
DELETE FROM {schema}.task t
USING unnest($1::text[], $2::text[], $3::integer[], $4::float8[], $5::text[]) AS g (id, status, attempt, eta, headers)
WHERE t.id = g.id AND t.id IN (SELECT id FROM locked) AND t.status || '' = g.status AND t.attempt = g.attempt AND t.eta = g.eta
    AND t.headers IS NOT DISTINCT FROM g.headers
RETURNING t.id;
