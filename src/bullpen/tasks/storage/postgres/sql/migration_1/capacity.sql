-- How many tasks may start now, for every queue of `queues` that is not paused and not at a limit: at most `free`, and
-- `max_per_key` of each concurrency key (NULL: no limit; 0: one at a time, in the order in which they were added).
-- `retry_in`: seconds until the first queue at its rate limit may start a task. `rewound`: the latest rewound_at.
CREATE FUNCTION {schema}.capacity(
    queues text[], max_tasks integer, now float8, with_lock boolean,
    OUT names text[], OUT free integer[], OUT max_per_key integer[], OUT retry_in float8, OUT rewound float8,
    OUT has_rate boolean
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q record;
    room integer;
    period float8;
    begun integer;
    oldest float8;
BEGIN
    names := '{}'; free := '{}'; max_per_key := '{}'; rewound := 0; has_rate := false;
    FOR q IN
        SELECT DISTINCT ON (w.name) w.name, coalesce(k.limited, false) AS limited, k.max_running,
            CASE WHEN k.in_order THEN 0 ELSE k.max_running_per_key END AS max_running_per_key, k.rate,
            coalesce(k.rewound_at, 0) AS rewound_at,
            -- By another program. NaN compares greater than any number.
            coalesce(k.max_running NOT BETWEEN 1 AND {max_limit}, false)
                OR coalesce(k.max_running_per_key NOT BETWEEN 1 AND {max_limit}, false)
                OR coalesce(k.rate < {min_rate} OR k.rate > {max_limit}, false) AS damaged
        FROM unnest(queues) AS w (name) LEFT JOIN {schema}.queue k ON k.name = w.name
        WHERE k.paused IS NOT TRUE
    LOOP
        room := max_tasks;
        rewound := greatest(rewound, q.rewound_at);
        IF q.limited THEN
            IF with_lock THEN  -- one transaction at a time counts and claims
                PERFORM {schema}.check_isolation('limits');
                PERFORM pg_advisory_xact_lock(hashtextextended('{schema}.' || q.name, 0));
            END IF;
            IF q.max_running IS NOT NULL THEN
                SELECT q.max_running - count(*) INTO begun FROM {schema}.task t
                WHERE t.queue = q.name AND t.status = 'running';
                room := least(room, begun);
            END IF;
            IF q.damaged THEN
                room := 0;
            END IF;
            IF room > 0 AND q.rate IS NOT NULL THEN
                period := greatest(1, 1 / q.rate);
                SELECT count(*), min(s.at) INTO begun, oldest FROM {schema}.start s
                WHERE s.queue = q.name AND s.at > now - period AND s.at <= now + period;  -- none in the far future
                room := least(room, ceil(q.rate * period)::integer - begun);
                IF room <= 0 THEN
                    retry_in := least(coalesce(retry_in, 'infinity'), oldest + period - now);
                END IF;
            END IF;
        END IF;
        IF room > 0 THEN
            names := names || q.name;
            free := free || room;
            max_per_key := array_append(max_per_key, CASE WHEN q.limited THEN q.max_running_per_key END);
            has_rate := has_rate OR q.limited AND q.rate IS NOT NULL;
        END IF;
    END LOOP;
END $$;
