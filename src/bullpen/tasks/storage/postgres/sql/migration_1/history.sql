-- The history: counts of each minute and hour, by queue and function.

CREATE TABLE {schema}.history (
    step     integer NOT NULL,              -- seconds that the row stands for
    at       bigint NOT NULL,               -- its begin, seconds since the epoch
    queue    text COLLATE "C" NOT NULL,
    function text COLLATE "C" NOT NULL,
    counts   bigint[] NOT NULL,
    waits    bigint[] NOT NULL,
    runs     bigint[] NOT NULL,
    PRIMARY KEY (step, at, queue, function)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
