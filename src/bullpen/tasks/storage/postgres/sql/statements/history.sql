-- The history: counts of each minute and hour, by queue and function.

-- Workers that add to the same rows wait for each other, and take them in one order. A count that another program has
-- damaged starts again at 0.
-- name: add_history
INSERT INTO {schema}.history AS h (step, at, queue, function, counts, waits, runs)
SELECT step, at, queue, function, counts, waits, runs
FROM pg_catalog.json_populate_recordset(NULL::{schema}.history, $1::text::json)
ORDER BY step, at, queue, function
ON CONFLICT (step, at, queue, function) DO UPDATE SET
    counts = ARRAY(
        SELECT CASE WHEN v.a BETWEEN 0 AND {max_counted} THEN v.a ELSE 0 END + coalesce(v.b, 0)
        FROM ROWS FROM (pg_catalog.unnest(h.counts), pg_catalog.unnest(excluded.counts)) WITH ORDINALITY AS v (a, b, place)
        ORDER BY v.place
    ),
    waits = ARRAY(
        SELECT CASE WHEN v.a BETWEEN 0 AND {max_counted} THEN v.a ELSE 0 END + coalesce(v.b, 0)
        FROM ROWS FROM (pg_catalog.unnest(h.waits), pg_catalog.unnest(excluded.waits)) WITH ORDINALITY AS v (a, b, place)
        ORDER BY v.place
    ),
    runs = ARRAY(
        SELECT CASE WHEN v.a BETWEEN 0 AND {max_counted} THEN v.a ELSE 0 END + coalesce(v.b, 0)
        FROM ROWS FROM (pg_catalog.unnest(h.runs), pg_catalog.unnest(excluded.runs)) WITH ORDINALITY AS v (a, b, place)
        ORDER BY v.place
    );

-- name: history
SELECT step, at, queue, function, counts, waits, runs FROM {schema}.history
WHERE step = $1 AND at >= $2 AND at < $3 AND ($4::text IS NULL OR queue = $4) AND ($5::text IS NULL OR function = $5)
ORDER BY at, queue, function;

-- name: add_failures
INSERT INTO {schema}.failure AS f (at, queue, function, fingerprint, count, first, last, example)
SELECT at, queue, function, fingerprint, count, first, last, example
FROM pg_catalog.json_populate_recordset(NULL::{schema}.failure, $1::text::json)
ORDER BY at, queue, function, fingerprint
ON CONFLICT (at, queue, function, fingerprint) DO UPDATE SET
    count = CASE WHEN f.count BETWEEN 0 AND {max_counted} THEN f.count ELSE 0 END + excluded.count,
    first = least(f.first, excluded.first),
    last = greatest(f.last, excluded.last),
    example = CASE WHEN f.last > excluded.last THEN f.example ELSE excluded.example END;

-- name: failures
SELECT at, queue, function, fingerprint, count, first, last, example FROM {schema}.failure WHERE at >= $1;

-- name: delete_failures
DELETE FROM {schema}.failure WHERE fingerprint = $1 AND ($2::text IS NULL OR function = $2);
