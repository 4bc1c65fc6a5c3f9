-- Claims, leases and settlements.

-- name: exchange
SELECT {claimed}, claim_cursor FROM {schema}.exchange({settled_arrays}, $18, $19, $20, $21, $22, $23, $24, $25);

-- name: settle
SELECT id, attempt FROM {schema}.exchange({settled_arrays}, '', '{}', 0, 0, '', '{}', '{}', 0);

-- name: find_claim
SELECT {columns} FROM {schema}.task WHERE status = 'running' AND claim_id = $1 ORDER BY priority DESC, eta, id;

-- A task whose row is locked counts as renewed: its own function is settling it, maybe for long, and no other worker
-- takes a locked row.
-- name: renew
WITH held AS (
    SELECT t.id, t.attempt, t.cancel_requested FROM {schema}.task t
    JOIN unnest($1::text[], $2::integer[]) AS h (id, attempt) ON t.id = h.id AND t.attempt = h.attempt
    WHERE t.status || '' = 'running'
), free AS (
    SELECT t.id FROM {schema}.task t WHERE t.id = ANY ($1) FOR UPDATE SKIP LOCKED
), renewed AS (
    UPDATE {schema}.task t SET lease_until = {schema}.now() + $3 FROM held JOIN free ON free.id = held.id
    WHERE t.id = held.id AND t.attempt = held.attempt AND t.status || '' = 'running' RETURNING t.id
)
SELECT held.id, held.attempt, held.cancel_requested
FROM held LEFT JOIN free ON free.id = held.id LEFT JOIN renewed ON renewed.id = held.id
WHERE free.id IS NULL OR renewed.id IS NOT NULL;

-- name: save_progress
UPDATE {schema}.task SET progress = $3 WHERE id = $1 AND attempt = $2 AND status || '' = 'running' RETURNING 1;

-- name: save_step
SELECT {schema}.save_step($1);

-- Returns the places of the steps that are kept. The task of any other one is locked, or is not held any more.
-- name: save_steps
WITH given AS (
    SELECT * FROM unnest($1::text[], $2::integer[], $3::text[], $4::text[]) WITH ORDINALITY AS g (id, attempt, name, record, place)
), free AS (
    SELECT t.id, t.attempt, t.steps FROM {schema}.task t
    WHERE t.id = ANY ($1) AND t.status || '' = 'running' FOR NO KEY UPDATE SKIP LOCKED
), held AS (
    SELECT given.*, free.steps FROM given JOIN free ON free.id = given.id AND free.attempt = given.attempt
), first_ones AS (
    UPDATE {schema}.task t SET steps = 1 FROM held WHERE t.id = held.id AND held.steps = 0
), kept AS (
    INSERT INTO {schema}.step SELECT DISTINCT ON (id, name) id, name, record FROM held ORDER BY id, name, place DESC
    ON CONFLICT (task_id, name) DO UPDATE SET record = excluded.record
)
SELECT place FROM held;

-- A lease that is no instant has expired. A task waits for the next call while another transaction has locked a task
-- behind it.
-- name: lock_lost
WITH lost AS (
    SELECT id FROM {schema}.task
    WHERE status = 'running' AND id > $1
        AND (worker = ANY ($2) OR (lease_until > $3 AND lease_until <= $3 + {max_lease}) IS NOT TRUE)
    ORDER BY id LIMIT $4 FOR UPDATE SKIP LOCKED
), free AS MATERIALIZED (
    SELECT id FROM {schema}.task WHERE id = ANY (ARRAY(SELECT {schema}.chains(ARRAY(SELECT id FROM lost))))
    FOR UPDATE SKIP LOCKED
)
SELECT {columns} FROM {schema}.task
WHERE id = ANY (ARRAY(SELECT id FROM lost)) AND NOT EXISTS (
    SELECT FROM {schema}.chains(ARRAY[task.id]) AS c (id) JOIN {schema}.task behind ON behind.id = c.id
    WHERE c.id NOT IN (SELECT id FROM free)
)
ORDER BY id;
