-- Queues: pauses, limits, and where claims start.

-- The queues with pending tasks: one step in the index task_ready for each.
-- name: queues
WITH RECURSIVE each_queue(name) AS (
    (SELECT queue FROM {schema}.task WHERE status = 'pending' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM {schema}.task WHERE status = 'pending' AND queue > name ORDER BY queue LIMIT 1)
    FROM each_queue WHERE name IS NOT NULL
)
SELECT name FROM each_queue WHERE name IS NOT NULL;

-- Makes every claim cursor of the queue start at the front once: a task was put before what they have passed.
-- name: rewind
INSERT INTO {schema}.queue AS k (name, rewound_at) VALUES ($1, {schema}.now())
ON CONFLICT (name) DO UPDATE SET rewound_at = excluded.rewound_at;

-- name: pause
INSERT INTO {schema}.queue (name, paused) VALUES ($1, true) ON CONFLICT (name) DO UPDATE SET paused = true;

-- name: resume
UPDATE {schema}.queue SET paused = false WHERE name = $1;

-- name: paused
SELECT name FROM {schema}.queue WHERE paused;

-- name: set_limit
INSERT INTO {schema}.queue
    (name, limited, max_running, max_running_per_key, rate, in_order, declared, rewound_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, {schema}.now())
ON CONFLICT (name) DO UPDATE SET
    limited = excluded.limited, max_running = excluded.max_running,
    max_running_per_key = excluded.max_running_per_key, rate = excluded.rate, in_order = excluded.in_order,
    declared = excluded.declared, rewound_at = excluded.rewound_at;

-- name: delete_starts
DELETE FROM {schema}.start WHERE queue = $1;

-- name: limits
SELECT name, max_running, max_running_per_key, rate, in_order, declared
FROM {schema}.queue WHERE limited ORDER BY name;
