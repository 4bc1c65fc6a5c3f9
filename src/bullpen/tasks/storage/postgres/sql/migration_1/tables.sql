-- The tables and their indexes.

CREATE TABLE {schema}.task (
    id               text COLLATE "C" PRIMARY KEY,
    queue            text COLLATE "C" NOT NULL DEFAULT 'default',
    priority         smallint NOT NULL DEFAULT 0,
    status           text COLLATE "C" NOT NULL DEFAULT 'pending',
    eta              float8 NOT NULL,              -- seconds since the epoch, like every instant here
    expires          float8,
    unique_key       text COLLATE "C",             -- unique within the queue
    unique_scope     text NOT NULL DEFAULT 'alive',
    unique_until     float8,
    concurrency_key  text COLLATE "C",
    attempt          integer NOT NULL DEFAULT 0,
    failures         integer NOT NULL DEFAULT 0,
    crashes          integer NOT NULL DEFAULT 0,
    completed_runs   integer NOT NULL DEFAULT 0,
    scheduled_at     float8,
    hold             text NOT NULL DEFAULT '',
    worker           text,
    claim_id         text,
    lease_until      float8,
    cancel_requested boolean NOT NULL DEFAULT false,
    awaited          boolean NOT NULL DEFAULT false,  -- a caller waits for the result: NOTIFY when the task ends
    created_at       float8 NOT NULL,
    started_at       float8,
    finished_at      float8,
    prune_at         float8,                       -- set when the task is final; infinity without a time to live
    func_path        text NOT NULL,
    codec            text NOT NULL DEFAULT 'json',
    repeats          float8,                       -- seconds between two runs
    max_retries      integer NOT NULL DEFAULT 0,
    backoff          text,                         -- JSON; NULL for the default Backoff
    timeout          float8,
    at_most_once     boolean NOT NULL DEFAULT false,
    on_failure       text NOT NULL DEFAULT 'fail',
    schedule         text,                         -- JSON
    result_ttl       float8 DEFAULT {result_ttl},
    failure_ttl      float8 DEFAULT {failure_ttl},
    headers          text,                         -- JSON
    next_task_id     text,                         -- the task that depends on this one
    depends_on       text,                         -- JSON: the tasks that this one depends on
    waits_for        integer NOT NULL DEFAULT 0,   -- how many of them are not done
    progress         text,                         -- JSON
    steps            integer NOT NULL DEFAULT 0,   -- 0 if no row of `step` belongs to it
    awaits           text COLLATE "C",             -- the event that it waits for
    errors           text[] NOT NULL DEFAULT '{}', -- each element is JSON
    result_dropped   text NOT NULL DEFAULT '',
    payload          bytea NOT NULL,
    result           bytea,
    format           smallint NOT NULL DEFAULT 1   -- of this row; a newer version may write a higher one
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX task_ready ON {schema}.task (queue, priority, eta, id) WHERE status = 'pending';
CREATE INDEX task_in_order ON {schema}.task (queue, concurrency_key, created_at, id)
    WHERE concurrency_key IS NOT NULL AND status IN ('pending', 'running')
        AND left(id, 8) <> 'ffffffff';  -- the id of a schedule
CREATE INDEX task_running ON {schema}.task (queue, concurrency_key) WHERE status = 'running';
CREATE INDEX task_finished ON {schema}.task (queue, status, prune_at) WHERE prune_at IS NOT NULL;
CREATE INDEX task_failed ON {schema}.task (id) WHERE status = 'failed';
CREATE INDEX task_expiring ON {schema}.task (expires) WHERE status = 'pending' AND expires IS NOT NULL;
CREATE INDEX task_unique ON {schema}.task (unique_key, queue)
    WHERE unique_key IS NOT NULL AND (status IN ('pending', 'running') OR unique_until IS NOT NULL);

CREATE TABLE {schema}.worker (id text PRIMARY KEY, seen_at float8 NOT NULL, record text NOT NULL);
CREATE TABLE {schema}.queue (
    name                text COLLATE "C" PRIMARY KEY,
    paused              boolean NOT NULL DEFAULT false,
    limited             boolean NOT NULL DEFAULT false,
    max_running         integer,
    max_running_per_key integer,
    rate                float8,
    in_order            boolean NOT NULL DEFAULT false,
    declared            boolean NOT NULL DEFAULT false,
    rewound_at          float8 NOT NULL DEFAULT 0  -- the last time that a task was put before the claim cursors
);
-- When tasks started, in the queues that have a rate.
CREATE TABLE {schema}.start (queue text COLLATE "C" NOT NULL, at float8 NOT NULL);
CREATE INDEX start_at ON {schema}.start (queue, at);
