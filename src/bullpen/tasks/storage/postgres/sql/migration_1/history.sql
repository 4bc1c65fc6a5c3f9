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

-- Failed attempts of each hour, by queue, function and fingerprint.
CREATE TABLE {schema}.failure (
    at          bigint NOT NULL,            -- the begin of the hour
    queue       text COLLATE "C" NOT NULL,
    function    text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    count       bigint NOT NULL,
    first       float8 NOT NULL,
    last        float8 NOT NULL,
    example     text NOT NULL,              -- JSON
    PRIMARY KEY (at, queue, function, fingerprint)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
