-- Selects the next tasks to claim, in claim order: priority (highest first), eta, id. The rows are locked, except in a
-- queue with a limit per key: there the lock on the queue, which `capacity` has taken, keeps other claims away.
--
-- `floors` and `floor_ids` are the claim cursor (claim_cursor.py): ten elements for each queue, one for each priority.
-- The search starts behind that (eta, id), and the function returns where the next search may start. A queue with a
-- limit per key is searched from its front every time, because the tasks that its keys hold back stay there.
--
-- The first query finds the priorities that have a due task: most of the ten have none.
CREATE FUNCTION {schema}.pick(
    names text[], free integer[], max_per_key integer[], max_tasks integer, now float8,
    INOUT floors float8[], INOUT floor_ids text[], OUT picked text[]
) LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted integer;
    place integer;
    ids text[];
    etas float8[];
    queue_numbers integer[];  -- index into `names`, for each id
    taken integer[];  -- how many were found in each queue
    exhausted boolean[];  -- whether the queue has no more that are due
    numbers integer[];
    last integer;
    more_ids text[];
    more_etas float8[];
    need integer := max_tasks;
    running jsonb[];  -- for each queue: running tasks by concurrency key
    counts jsonb;
    of_key integer;
    full_keys text[];
    behind text[];  -- in a queue that keeps the order of keys: keys whose oldest task is not the one found,
    firsts text[];  -- and the ids of those oldest tasks
    first_id text;
    from_eta float8;
    from_id text;
    skipped integer;
    priorities integer[];
    p integer;
    c record;
BEGIN
    picked := '{}';
    SELECT array_agg(CASE WHEN d.due THEN floors[d.place] ELSE now - {claim_overlap} END ORDER BY d.place),
        array_agg(CASE WHEN d.due THEN floor_ids[d.place] ELSE '' END ORDER BY d.place),
        coalesce(array_agg(DISTINCT (d.place - 1) % 10) FILTER (WHERE d.due), '{}')
    INTO floors, floor_ids, priorities FROM (
        SELECT s.place, EXISTS (
            SELECT 1 FROM {schema}.task t
            WHERE t.status = 'pending' AND t.queue = names[(s.place - 1) / 10 + 1] AND t.priority = (s.place - 1) % 10
                AND (t.eta, t.id) > (
                    CASE WHEN max_per_key[(s.place - 1) / 10 + 1] IS NULL THEN floors[s.place] ELSE 0 END,
                    CASE WHEN max_per_key[(s.place - 1) / 10 + 1] IS NULL THEN floor_ids[s.place] ELSE '' END
                ) AND t.eta <= now
        ) AS due
        FROM generate_series(1, 10 * cardinality(names)) AS s (place)
        OFFSET 0  -- without it, the planner runs the EXISTS once for every use of `due`
    ) AS d;
    FOR i IN 1 .. cardinality(names) LOOP
        running[i] := '{}';
        IF max_per_key[i] IS NOT NULL THEN
            SELECT coalesce(jsonb_object_agg(k, n), '{}') INTO counts FROM (
                SELECT t.concurrency_key AS k, count(*) AS n FROM {schema}.task t
                WHERE t.queue = names[i] AND t.status = 'running' AND t.concurrency_key IS NOT NULL GROUP BY 1
            ) AS counted;
            running[i] := counts;
        END IF;
    END LOOP;
    FOR rank IN REVERSE cardinality(priorities) .. 1 LOOP  -- highest priority first
        p := priorities[rank];
        ids := '{}'; etas := '{}'; queue_numbers := '{}'; taken := '{}'; exhausted := '{}';
        FOR i IN 1 .. cardinality(names) LOOP
            CONTINUE WHEN free[i] <= 0;
            wanted := least(need, free[i]);
            IF max_per_key[i] IS NULL THEN
                place := (i - 1) * 10 + p + 1;
                SELECT coalesce(array_agg(d.id), '{}'), coalesce(array_agg(d.eta), '{}')
                INTO more_ids, more_etas FROM (
                    SELECT t.id, t.eta FROM {schema}.task t
                    WHERE t.status = 'pending' AND t.queue = names[i] AND t.priority = p
                        AND (t.eta, t.id) > (floors[place], floor_ids[place]) AND t.eta <= now
                        AND (t.expires IS NULL OR t.expires > now)
                    ORDER BY t.eta, t.id LIMIT wanted FOR UPDATE SKIP LOCKED
                ) AS d;
                taken[i] := cardinality(more_ids);
                exhausted[i] := taken[i] < wanted;
            ELSE
                more_ids := '{}'; more_etas := '{}'; behind := '{}'; firsts := '{}';
                from_eta := '-infinity'; from_id := '';
                <<reading>> LOOP  -- starts again after many skipped rows, then without the keys that blocked them
                    skipped := 0;
                    SELECT coalesce(array_agg(k.name), '{}') INTO full_keys
                    FROM jsonb_each_text(running[i]) AS k (name, n) WHERE k.n::integer >= greatest(max_per_key[i], 1);
                    FOR c IN
                        SELECT t.id, t.eta, t.concurrency_key FROM {schema}.task t
                        WHERE t.status = 'pending' AND t.queue = names[i] AND t.priority = p AND t.eta <= now
                            AND (t.eta, t.id) > (from_eta, from_id) AND (t.expires IS NULL OR t.expires > now)
                            AND (t.concurrency_key IS NULL OR t.concurrency_key <> ALL (full_keys))
                            AND (t.concurrency_key IS NULL OR t.concurrency_key <> ALL (behind)
                                OR t.id = ANY (firsts) OR left(t.id, 8) = 'ffffffff')
                        ORDER BY t.eta, t.id
                    LOOP
                        from_eta := c.eta; from_id := c.id;
                        IF c.concurrency_key IS NOT NULL THEN
                            of_key := coalesce((running[i] ->> c.concurrency_key)::integer, 0);
                            first_id := c.id;
                            IF max_per_key[i] = 0 AND left(c.id, 8) <> 'ffffffff' THEN
                                SELECT o.id INTO first_id FROM {schema}.task o WHERE o.queue = names[i]
                                    AND o.concurrency_key = c.concurrency_key AND o.status IN ('pending', 'running')
                                    AND left(o.id, 8) <> 'ffffffff'
                                ORDER BY o.created_at, o.id LIMIT 1;
                            END IF;
                            IF of_key >= greatest(max_per_key[i], 1) OR first_id <> c.id THEN
                                IF first_id <> c.id AND c.concurrency_key <> ALL (behind) THEN
                                    behind := behind || c.concurrency_key;
                                    firsts := firsts || first_id;
                                END IF;
                                skipped := skipped + 1;
                                EXIT WHEN skipped >= {skipped_before_restart};
                                CONTINUE;
                            END IF;
                            running[i] := running[i] || jsonb_build_object(c.concurrency_key, of_key + 1);
                        END IF;
                        more_ids := more_ids || c.id;
                        more_etas := more_etas || c.eta;
                        EXIT reading WHEN cardinality(more_ids) >= wanted;
                    END LOOP;
                    EXIT WHEN skipped < {skipped_before_restart};
                END LOOP;
            END IF;
            free[i] := free[i] - cardinality(more_ids);
            ids := ids || more_ids;
            etas := etas || more_etas;
            queue_numbers := queue_numbers || array_fill(i, ARRAY[cardinality(more_ids)]);
        END LOOP;
        IF cardinality(names) > 1 AND cardinality(ids) > 0 THEN
            SELECT array_agg(o.id), array_agg(o.eta), array_agg(o.queue) INTO ids, etas, queue_numbers FROM (
                SELECT u.id, u.eta, u.queue FROM unnest(ids, etas, queue_numbers) AS u (id, eta, queue)
                ORDER BY u.eta, u.id LIMIT need
            ) AS o;
        END IF;
        FOR i IN 1 .. cardinality(names) LOOP
            CONTINUE WHEN taken[i] IS NULL;
            place := (i - 1) * 10 + p + 1;
            numbers := array_positions(queue_numbers, i);
            IF exhausted[i] AND cardinality(numbers) = taken[i] THEN
                floors[place] := now - {claim_overlap}; floor_ids[place] := '';
            ELSIF cardinality(numbers) > 0 THEN
                last := numbers[cardinality(numbers)];
                IF etas[last] < now - {claim_overlap} THEN
                    floors[place] := etas[last]; floor_ids[place] := ids[last];
                ELSE
                    floors[place] := now - {claim_overlap}; floor_ids[place] := '';
                END IF;
            END IF;
        END LOOP;
        picked := picked || ids;
        need := need - cardinality(ids);
        EXIT WHEN need <= 0;
    END LOOP;
END $$;
