-- Enqueues one task and returns its id: for triggers, and for other languages than Python. Bullpen never calls it.
CREATE FUNCTION {schema}.enqueue(
    function text, args json DEFAULT '[]', kwargs json DEFAULT '{}', queue text DEFAULT 'default',
    priority integer DEFAULT 0, delay float8 DEFAULT 0, max_retries integer DEFAULT 0, timeout float8 DEFAULT NULL,
    unique_key text DEFAULT NULL, id text DEFAULT NULL, max_payload integer DEFAULT {max_payload}
) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now float8 := {schema}.now();
    new_id text := coalesce(id, gen_random_uuid()::text);
    key text := replace(unique_key, E'\x1a', E'\x1a1');  -- as `to_text` in rows.py writes it
    payload bytea := convert_to(json_build_object('args', args, 'kwargs', kwargs)::text, 'UTF8');
    kept text;
    wrong text;
BEGIN
    wrong := CASE  -- as TaskOptions checks them; NaN compares greater than any number
        -- [:space:] and [:cntrl:] would depend on the locale.
        WHEN (function ~ '^[^\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]{1,255}$')
            IS NOT TRUE
            THEN 'function must be a name of 1 to 255 characters without spaces'
        WHEN (json_typeof(args) = 'array' AND json_typeof(kwargs) = 'object') IS NOT TRUE
            THEN 'args must be a JSON array, and kwargs a JSON object'
        WHEN (queue ~ '{queue_name}') IS NOT TRUE THEN 'queue must be {queue_words}'
        WHEN (priority BETWEEN {lowest_priority} AND {highest_priority}) IS NOT TRUE
            THEN 'priority must be {lowest_priority} to {highest_priority}'
        WHEN (delay BETWEEN 0 AND {max_seconds}) IS NOT TRUE THEN 'delay must be 0 seconds to a century'
        WHEN (max_retries BETWEEN 0 AND {max_retries}) IS NOT TRUE THEN 'max_retries must be 0 to {max_retries}'
        WHEN timeout IS NOT NULL AND (timeout <= 0 OR timeout > {max_seconds})
            THEN 'timeout must be more than 0 seconds, and at most a century'
        WHEN length(unique_key) NOT BETWEEN 1 AND {max_key} THEN 'unique_key must have 1 to {max_key} characters'
        WHEN id COLLATE "C" !~ '^[!-~]{1,{max_key}}$' THEN 'id must have 1 to {max_key} printable ASCII characters'
        WHEN starts_with(id, '{schedules}') THEN 'id must not begin like that of a schedule, {schedules}'
        WHEN (octet_length(payload) <= max_payload) IS NOT TRUE
            THEN format('args and kwargs have %s bytes, and max_payload is %s', octet_length(payload),
                coalesce(max_payload::text, 'NULL'))
    END;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION '%', wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF unique_key IS NOT NULL THEN
        PERFORM {schema}.lock_keys(ARRAY[enqueue.queue], ARRAY[key]);
        SELECT h.id INTO kept FROM {schema}.holder(enqueue.queue, key, now) AS h;
        IF kept IS NOT NULL THEN
            RETURN kept;
        END IF;
    END IF;
    INSERT INTO {schema}.task AS t (id, queue, priority, eta, created_at, func_path, max_retries, timeout, unique_key,
        payload)
    VALUES (new_id, enqueue.queue, enqueue.priority, now + delay, now, function, enqueue.max_retries,
        enqueue.timeout, key, payload)
    ON CONFLICT DO NOTHING;
    PERFORM pg_notify('{channel}', 'w' || enqueue.queue);  -- PostgreSQL sends it when the transaction commits
    RETURN new_id;
END $$;
