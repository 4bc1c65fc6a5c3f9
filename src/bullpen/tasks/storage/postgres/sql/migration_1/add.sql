-- Adding tasks.

-- Inserts the tasks and returns the id and created_at of every inserted row. A task whose id exists stays as it is. An
-- `eta` of NULL means now.
CREATE FUNCTION {schema}.add({add_parameters}, notifies boolean)
RETURNS TABLE (added_id text, added_at float8) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now float8 := {schema}.now();
    q text;
BEGIN
    RETURN QUERY
        INSERT INTO {schema}.task AS t ({add_columns}, created_at)
        SELECT {add_values}, now FROM unnest({add_arrays}) WITH ORDINALITY AS g ({add_columns}, place) ORDER BY place
        ON CONFLICT DO NOTHING RETURNING t.id, t.created_at;
    FOR q IN SELECT DISTINCT g.name FROM unnest(queues, etas) AS g (name, eta) WHERE g.eta < now ORDER BY 1 LOOP
        INSERT INTO {schema}.queue AS k (name, rewound_at) VALUES (q, now)
        ON CONFLICT (name) DO UPDATE SET rewound_at = excluded.rewound_at;
    END LOOP;
    IF notifies THEN
        PERFORM pg_notify('{channel}', 'w' || g.name) FROM (SELECT DISTINCT unnest(queues) AS name) AS g;
    END IF;
END $$;

-- The same for a JSON array of tasks, so that any driver can call it in the user's transaction. Returns a JSON array:
-- for each task its id, or the id of the task that holds its unique key. A task whose key is held is not inserted; with
-- `reject`, one held key means that no task is inserted.
CREATE FUNCTION {schema}.add_all(tasks json, notifies boolean, reject boolean) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ids text[];
    queues text[];
    keys text[];
    kept text[];
    chosen jsonb := '{}';  -- the id chosen for each key so far
    other text;
BEGIN
    SELECT array_agg(g.id ORDER BY g.place), array_agg(g.queue ORDER BY g.place), array_agg(g.key ORDER BY g.place)
    INTO ids, queues, keys
    FROM ROWS FROM (json_to_recordset(tasks) AS (id text, queue text, unique_key text)) WITH ORDINALITY
        AS g (id, queue, key, place);
    kept := ids;
    PERFORM {schema}.lock_keys(queues, keys);
    FOR i IN 1 .. cardinality(ids) LOOP
        CONTINUE WHEN keys[i] IS NULL;
        other := chosen ->> (queues[i] || ' ' || keys[i]);
        IF other IS NULL THEN
            SELECT h.id INTO other FROM {schema}.holder(queues[i], keys[i], {schema}.now()) AS h;
        END IF;
        kept[i] := coalesce(other, ids[i]);
        chosen := chosen || jsonb_build_object(queues[i] || ' ' || keys[i], kept[i]);
    END LOOP;
    IF NOT (reject AND kept <> ids) THEN
        PERFORM f.added_id
        FROM (SELECT {add_aggregates} FROM ROWS FROM (json_to_recordset(tasks) AS ({add_record})) WITH ORDINALITY
            AS r ({add_columns}, place) WHERE r.id = kept[r.place] HAVING count(*) > 0) AS c,
            {schema}.add({add_aggregated}, notifies) AS f;
    END IF;
    RETURN array_to_json(kept)::text;
END $$;
