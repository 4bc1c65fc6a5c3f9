"""The tables and functions, and how older ones become them.

A claim reads one index, `task_ready`: tasks that wait, of one queue and priority, by `eta` and id. It begins where the
last claim of its client ended (`floors`), because index entries of tasks that are gone stay in front for as long as any
transaction might still see them: without that, one forgotten transaction would make every claim slower than the one
before. Every now and then a claim begins at the front again, for what came late or was put there on purpose.

Settling goes by the primary key alone. A condition on `status` that an index could serve would lead the planner to one
that is full of dead entries; hence `status || ''`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from bullpen.errors import InvalidOption, SchemaTooNew
from bullpen.storage.postgres.rows import CLAIMED, FORGOTTEN, NEW, SETTLED, USUAL
from bullpen.tasks.links import GIVEN_UP
from bullpen.tasks.options import MAX_KEY, MAX_RETRIES, MAX_SECONDS, QUEUE_NAME, QUEUE_WORDS
from bullpen.tasks.task import ERRORS_KEPT, HIGHEST_PRIORITY, LOWEST_PRIORITY, NEVER, UNPLANNED

OVERLAP = 0.05  # seconds before a claim; what is due then may have been written a moment later
LOCK_PATIENCE = "20ms"  # with a task that somebody has locked, and
LOCKED_PAUSE = 0.1  # seconds, before another look at it
READ_IN_VAIN = 100  # so many that their keys hold back, and a claim leaves out all of those keys

_FIRST = """
CREATE TABLE {schema}.task (
    id               text COLLATE "C" PRIMARY KEY,
    queue            text COLLATE "C" NOT NULL DEFAULT 'default',
    priority         smallint NOT NULL DEFAULT 0,
    status           text COLLATE "C" NOT NULL DEFAULT 'pending',
    eta              float8 NOT NULL,              -- seconds since the epoch, as all instants
    expires          float8,
    unique_key       text COLLATE "C",             -- in its queue
    unique_scope     text NOT NULL DEFAULT 'alive',
    unique_until     float8,
    concurrency_key  text COLLATE "C",
    attempt          integer NOT NULL DEFAULT 0,
    failures         integer NOT NULL DEFAULT 0,
    crashes          integer NOT NULL DEFAULT 0,
    runs             integer NOT NULL DEFAULT 0,
    fire             float8,
    hold             text NOT NULL DEFAULT '',
    worker           text,
    claim_id         text,
    lease_until      float8,
    cancel_requested boolean NOT NULL DEFAULT false,
    awaited          boolean NOT NULL DEFAULT false,  -- somebody waits for its end
    created_at       float8 NOT NULL,
    started_at       float8,
    finished_at      float8,
    prune_at         float8,                       -- of final tasks; infinite without result_ttl
    func_path        text NOT NULL,
    codec            text NOT NULL DEFAULT 'json',
    repeats          float8,                       -- the interval
    max_retries      integer NOT NULL DEFAULT 0,
    backoff          text,                         -- JSON, if it is not the usual one
    timeout          float8,
    at_most_once     boolean NOT NULL DEFAULT false,
    on_failure       text NOT NULL DEFAULT 'fail',
    schedule         text,                         -- JSON
    result_ttl       float8 DEFAULT 86400,
    headers          text,                         -- JSON
    then_id          text,                         -- the task that waits for this one
    follows          text,                         -- those that it waits for; JSON
    waits_for        integer NOT NULL DEFAULT 0,
    progress         text,                         -- JSON
    errors           text[] NOT NULL DEFAULT '{{}}', -- each JSON
    result_dropped   text NOT NULL DEFAULT '',
    payload          bytea NOT NULL,
    result           bytea
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX task_ready ON {schema}.task (queue, priority, eta, id) WHERE status = 'pending';
CREATE INDEX task_in_order ON {schema}.task (queue, concurrency_key, created_at, id)
    WHERE concurrency_key IS NOT NULL AND status IN ('pending', 'running') AND left(id, 8) <> 'ffffffff';  -- a schedule
CREATE INDEX task_running ON {schema}.task (queue, concurrency_key) WHERE status = 'running';
CREATE INDEX task_finished ON {schema}.task (prune_at) WHERE prune_at IS NOT NULL;
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
    stirred_at          float8 NOT NULL DEFAULT 0  -- when something was put before what may have been claimed already
);
CREATE TABLE {schema}.start (queue text COLLATE "C" NOT NULL, at float8 NOT NULL);  -- in queues with a rate
CREATE INDEX start_at ON {schema}.start (queue, at);

CREATE FUNCTION {schema}.now() RETURNS float8 LANGUAGE sql VOLATILE AS
    $$ SELECT extract(epoch FROM clock_timestamp())::float8 $$;

-- Refuse a transaction that would not see what was committed while it waited for a lock.
CREATE FUNCTION {schema}.check_isolation(need text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION '% need a transaction that is READ COMMITTED, not %', need,
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'invalid_transaction_state';
    END IF;
END $$;

-- Let nobody else give or take these unique keys, until this transaction is over.
CREATE FUNCTION {schema}.lock_keys(queues text[], keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    k record;
BEGIN
    FOR k IN
        SELECT DISTINCT g.queue, g.key FROM unnest(queues, keys) AS g (queue, key) WHERE g.key IS NOT NULL ORDER BY 1, 2
    LOOP
        PERFORM {schema}.check_isolation('unique keys');
        PERFORM pg_advisory_xact_lock(hashtextextended('{schema}.' || k.queue || ' ' || k.key, 2));
    END LOOP;
END $$;

-- The task that has a unique key.
CREATE FUNCTION {schema}.holder(of_queue text, key text, moment float8) RETURNS SETOF {schema}.task
LANGUAGE sql VOLATILE AS $$
    SELECT * FROM {schema}.task t
    WHERE t.unique_key = key AND t.queue = of_queue
        AND (t.status IN ('pending', 'running') OR t.unique_until IS NOT NULL)
        AND (t.unique_until > moment OR t.status = 'pending' AND (t.unique_scope = 'alive' OR t.attempt = 0)
            OR t.status = 'running' AND t.unique_scope = 'alive')
    LIMIT 1 FOR UPDATE
$$;

-- For triggers, and for other languages than Python: enqueues a task and returns its id.
CREATE FUNCTION {schema}.enqueue(
    function text, args json DEFAULT '[]', kwargs json DEFAULT '{{}}', queue text DEFAULT 'default',
    priority integer DEFAULT 0, delay float8 DEFAULT 0, max_retries integer DEFAULT 0, timeout float8 DEFAULT NULL,
    unique_key text DEFAULT NULL, id text DEFAULT NULL
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    moment float8 := {schema}.now();
    new_id text := coalesce(id, gen_random_uuid()::text);
    kept text;
    wrong text;
BEGIN
    wrong := CASE  -- as options of Python; NaN is more than any number
        WHEN (function ~ '^[^[:space:][:cntrl:]]{{1,255}}$') IS NOT TRUE
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
        WHEN length(id) NOT BETWEEN 1 AND {max_key} THEN 'id must have 1 to {max_key} characters'
    END;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION '%', wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF unique_key IS NOT NULL THEN
        PERFORM {schema}.lock_keys(ARRAY[enqueue.queue], ARRAY[enqueue.unique_key]);
        SELECT h.id INTO kept FROM {schema}.holder(enqueue.queue, enqueue.unique_key, moment) AS h;
        IF kept IS NOT NULL THEN
            RETURN kept;
        END IF;
    END IF;
    INSERT INTO {schema}.task AS t (id, queue, priority, eta, created_at, func_path, max_retries, timeout, unique_key,
        payload)
    VALUES (new_id, enqueue.queue, enqueue.priority, moment + delay, moment, function, enqueue.max_retries,
        enqueue.timeout, enqueue.unique_key,
        convert_to(json_build_object('args', args, 'kwargs', kwargs)::text, 'UTF8'))
    ON CONFLICT DO NOTHING;
    PERFORM pg_notify('{channel}', 'w' || enqueue.queue);  -- sent when the caller's transaction commits
    RETURN new_id;
END $$;

-- Keeps tasks, and returns which, and when. An `eta` of NULL is the present.
CREATE FUNCTION {schema}.add({add_parameters}, told boolean)
RETURNS TABLE (added_id text, added_at float8) LANGUAGE plpgsql AS $$
DECLARE
    moment float8 := {schema}.now();
    q text;
BEGIN
    RETURN QUERY
        INSERT INTO {schema}.task AS t ({add_columns}, created_at)
        SELECT {add_values}, moment FROM unnest({add_arrays}) WITH ORDINALITY AS g ({add_columns}, place) ORDER BY place
        ON CONFLICT DO NOTHING RETURNING t.id, t.created_at;
    FOR q IN SELECT DISTINCT g.name FROM unnest(queues, etas) AS g (name, eta) WHERE g.eta < moment LOOP
        INSERT INTO {schema}.queue AS k (name, stirred_at) VALUES (q, moment)
        ON CONFLICT (name) DO UPDATE SET stirred_at = excluded.stirred_at;
    END LOOP;
    IF told THEN
        PERFORM pg_notify('{channel}', 'w' || g.name) FROM (SELECT DISTINCT unnest(queues) AS name) AS g;
    END IF;
END $$;

-- The same for tasks in one JSON array, for drivers of any kind: under which ids they are kept, as a JSON array. A task
-- whose unique key is taken is not added; if `reject`, then none is.
CREATE FUNCTION {schema}.add_all(tasks json, told boolean, reject boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    ids text[];
    queues text[];
    keys text[];
    kept text[];
    mine jsonb := '{{}}';  -- who has a key, of these
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
        other := mine ->> (queues[i] || ' ' || keys[i]);
        IF other IS NULL THEN
            SELECT h.id INTO other FROM {schema}.holder(queues[i], keys[i], {schema}.now()) AS h;
        END IF;
        kept[i] := coalesce(other, ids[i]);
        mine := mine || jsonb_build_object(queues[i] || ' ' || keys[i], kept[i]);
    END LOOP;
    IF NOT (reject AND kept <> ids) THEN
        PERFORM f.added_id
        FROM (SELECT {add_aggregates} FROM ROWS FROM (json_to_recordset(tasks) AS ({add_record})) WITH ORDINALITY
            AS r ({add_columns}, place) WHERE r.id = kept[r.place] HAVING count(*) > 0) AS c,
            {schema}.add({add_aggregated}, told) AS f;
    END IF;
    RETURN array_to_json(kept)::text;
END $$;

-- How many more may start, in each of the queues that are not paused: of all, and of each concurrency key; there 0 is
-- one at a time, in the order in which they were added.
CREATE FUNCTION {schema}.rooms(
    queues text[], most integer, moment float8, serially boolean,
    OUT names text[], OUT left_over integer[], OUT per_key integer[], OUT again_in float8, OUT stirred float8,
    OUT rated boolean
) LANGUAGE plpgsql AS $$
DECLARE
    q record;
    room integer;
    period float8;
    begun integer;
    oldest float8;
BEGIN
    names := '{{}}'; left_over := '{{}}'; per_key := '{{}}'; stirred := 0; rated := false;
    FOR q IN
        SELECT DISTINCT ON (w.name) w.name, coalesce(k.limited, false) AS limited, k.max_running,
            CASE WHEN k.in_order THEN 0 ELSE k.max_running_per_key END AS max_running_per_key, k.rate,
            coalesce(k.stirred_at, 0) AS stirred_at
        FROM unnest(queues) AS w (name) LEFT JOIN {schema}.queue k ON k.name = w.name
        WHERE k.paused IS NOT TRUE
    LOOP
        room := most;
        stirred := greatest(stirred, q.stirred_at);
        IF q.limited THEN
            IF serially THEN  -- nobody else counts, until this transaction is over
                PERFORM {schema}.check_isolation('limits');
                PERFORM pg_advisory_xact_lock(hashtextextended('{schema}.' || q.name, 0));
            END IF;
            IF q.max_running IS NOT NULL THEN
                SELECT q.max_running - count(*) INTO begun FROM {schema}.task t
                WHERE t.queue = q.name AND t.status = 'running';
                room := least(room, begun);
            END IF;
            IF room > 0 AND q.rate IS NOT NULL THEN
                period := greatest(1, 1 / q.rate);
                SELECT count(*), min(s.at) INTO begun, oldest FROM {schema}.start s
                WHERE s.queue = q.name AND s.at > moment - period;
                room := least(room, ceil(q.rate * period)::integer - begun);
                IF room <= 0 THEN
                    again_in := least(coalesce(again_in, 'infinity'), oldest + period - moment);
                END IF;
            END IF;
        END IF;
        IF room > 0 THEN
            names := names || q.name;
            left_over := left_over || room;
            per_key := array_append(per_key, CASE WHEN q.limited THEN q.max_running_per_key END);
            rated := rated OR q.limited AND q.rate IS NOT NULL;
        END IF;
    END LOOP;
END $$;

-- The next tasks that may start, in the order of claims. `floors`: behind which `eta` and id to look for them, and then
-- where to go on; ten for each queue, one for each priority. Not where keys are limited: what those hold back stays in
-- front. What is there of which priority is looked at first, for most have nothing.
CREATE FUNCTION {schema}.pick(
    names text[], left_over integer[], per_key integer[], most integer, moment float8,
    INOUT floors float8[], INOUT floor_ids text[], OUT picked text[]
) LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    asked integer;
    place integer;
    ids text[];
    etas float8[];
    whose integer[];  -- the queues that they are of
    taken integer[];  -- how many in each queue
    short boolean[];  -- whether those are all
    mine integer[];
    last integer;
    more_ids text[];
    more_etas float8[];
    need integer := most;
    running jsonb[];  -- how many of each concurrency key, by queue
    counts jsonb;
    of_key integer;
    full_keys text[];
    behind text[];  -- keys whose first task is another one, in a queue that keeps their order, and
    firsts text[];  -- those
    first_id text;
    from_eta float8;
    from_id text;
    in_vain integer;
    priorities integer[];
    p integer;
    c record;
BEGIN
    picked := '{{}}';
    SELECT array_agg(CASE WHEN d.due THEN floors[d.place] ELSE moment - {overlap} END ORDER BY d.place),
        array_agg(CASE WHEN d.due THEN floor_ids[d.place] ELSE '' END ORDER BY d.place),
        coalesce(array_agg(DISTINCT (d.place - 1) % 10) FILTER (WHERE d.due), '{{}}')
    INTO floors, floor_ids, priorities FROM (
        SELECT s.place, EXISTS (
            SELECT 1 FROM {schema}.task t
            WHERE t.status = 'pending' AND t.queue = names[(s.place - 1) / 10 + 1] AND t.priority = (s.place - 1) % 10
                AND (t.eta, t.id) > (CASE WHEN per_key[(s.place - 1) / 10 + 1] IS NULL THEN floors[s.place] ELSE 0 END,
                    CASE WHEN per_key[(s.place - 1) / 10 + 1] IS NULL THEN floor_ids[s.place] ELSE '' END)
                AND t.eta <= moment
        ) AS due
        FROM generate_series(1, 10 * cardinality(names)) AS s (place) OFFSET 0  -- or it is looked at again for each use
    ) AS d;
    FOR i IN 1 .. cardinality(names) LOOP
        running[i] := '{{}}';
        IF per_key[i] IS NOT NULL THEN
            SELECT coalesce(jsonb_object_agg(k, n), '{{}}') INTO counts FROM (
                SELECT t.concurrency_key AS k, count(*) AS n FROM {schema}.task t
                WHERE t.queue = names[i] AND t.status = 'running' AND t.concurrency_key IS NOT NULL GROUP BY 1
            ) AS counted;
            running[i] := counts;
        END IF;
    END LOOP;
    FOR rank IN REVERSE cardinality(priorities) .. 1 LOOP  -- the highest first
        p := priorities[rank];
        ids := '{{}}'; etas := '{{}}'; whose := '{{}}'; taken := '{{}}'; short := '{{}}';
        FOR i IN 1 .. cardinality(names) LOOP
            CONTINUE WHEN left_over[i] <= 0;
            asked := least(need, left_over[i]);
            IF per_key[i] IS NULL THEN
                place := (i - 1) * 10 + p + 1;
                SELECT coalesce(array_agg(d.id), '{{}}'), coalesce(array_agg(d.eta), '{{}}')
                INTO more_ids, more_etas FROM (
                    SELECT t.id, t.eta FROM {schema}.task t
                    WHERE t.status = 'pending' AND t.queue = names[i] AND t.priority = p
                        AND (t.eta, t.id) > (floors[place], floor_ids[place]) AND t.eta <= moment
                        AND (t.expires IS NULL OR t.expires > moment)
                    ORDER BY t.eta, t.id LIMIT asked FOR UPDATE SKIP LOCKED
                ) AS d;
                taken[i] := cardinality(more_ids);
                short[i] := taken[i] < asked;
            ELSE
                more_ids := '{{}}'; more_etas := '{{}}'; behind := '{{}}'; firsts := '{{}}';
                from_eta := '-infinity'; from_id := '';
                <<reading>> LOOP  -- begun again when many were read in vain, now without those of their keys
                    in_vain := 0;
                    SELECT coalesce(array_agg(k.name), '{{}}') INTO full_keys
                    FROM jsonb_each_text(running[i]) AS k (name, n) WHERE k.n::integer >= greatest(per_key[i], 1);
                    FOR c IN
                        SELECT t.id, t.eta, t.concurrency_key FROM {schema}.task t
                        WHERE t.status = 'pending' AND t.queue = names[i] AND t.priority = p AND t.eta <= moment
                            AND (t.eta, t.id) > (from_eta, from_id) AND (t.expires IS NULL OR t.expires > moment)
                            AND (t.concurrency_key IS NULL OR t.concurrency_key <> ALL (full_keys))
                            AND (t.concurrency_key IS NULL OR t.concurrency_key <> ALL (behind)
                                OR t.id = ANY (firsts) OR left(t.id, 8) = 'ffffffff')
                        ORDER BY t.eta, t.id
                    LOOP
                        from_eta := c.eta; from_id := c.id;
                        IF c.concurrency_key IS NOT NULL THEN
                            of_key := coalesce((running[i] ->> c.concurrency_key)::integer, 0);
                            first_id := c.id;
                            IF per_key[i] = 0 AND left(c.id, 8) <> 'ffffffff' THEN
                                SELECT o.id INTO first_id FROM {schema}.task o WHERE o.queue = names[i]
                                    AND o.concurrency_key = c.concurrency_key AND o.status IN ('pending', 'running')
                                    AND left(o.id, 8) <> 'ffffffff'
                                ORDER BY o.created_at, o.id LIMIT 1;
                            END IF;
                            IF of_key >= greatest(per_key[i], 1) OR first_id <> c.id THEN
                                IF first_id <> c.id AND c.concurrency_key <> ALL (behind) THEN
                                    behind := behind || c.concurrency_key;
                                    firsts := firsts || first_id;
                                END IF;
                                in_vain := in_vain + 1;
                                EXIT WHEN in_vain >= {read_in_vain};
                                CONTINUE;
                            END IF;
                            running[i] := running[i] || jsonb_build_object(c.concurrency_key, of_key + 1);
                        END IF;
                        more_ids := more_ids || c.id;
                        more_etas := more_etas || c.eta;
                        EXIT reading WHEN cardinality(more_ids) >= asked;
                    END LOOP;
                    EXIT WHEN in_vain < {read_in_vain};
                END LOOP;
            END IF;
            left_over[i] := left_over[i] - cardinality(more_ids);
            ids := ids || more_ids;
            etas := etas || more_etas;
            whose := whose || array_fill(i, ARRAY[cardinality(more_ids)]);
        END LOOP;
        IF cardinality(names) > 1 AND cardinality(ids) > 0 THEN
            SELECT array_agg(o.id), array_agg(o.eta), array_agg(o.queue) INTO ids, etas, whose FROM (
                SELECT u.id, u.eta, u.queue FROM unnest(ids, etas, whose) AS u (id, eta, queue)
                ORDER BY u.eta, u.id LIMIT need
            ) AS o;
        END IF;
        FOR i IN 1 .. cardinality(names) LOOP
            CONTINUE WHEN taken[i] IS NULL;
            place := (i - 1) * 10 + p + 1;
            mine := array_positions(whose, i);
            IF short[i] AND cardinality(mine) = taken[i] THEN
                floors[place] := moment - {overlap}; floor_ids[place] := '';
            ELSIF cardinality(mine) > 0 THEN
                last := mine[cardinality(mine)];
                IF etas[last] < moment - {overlap} THEN
                    floors[place] := etas[last]; floor_ids[place] := ids[last];
                ELSE
                    floors[place] := moment - {overlap}; floor_ids[place] := '';
                END IF;
            END IF;
        END LOOP;
        picked := picked || ids;
        need := need - cardinality(ids);
        EXIT WHEN need <= 0;
    END LOOP;
END $$;

-- What the end of a task means for those behind it: the same as `links.followed` says.
CREATE FUNCTION {schema}.ended(member {schema}.task, moment float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    follower {schema}.task;
    problem text;
BEGIN
    WHILE member.then_id IS NOT NULL LOOP
        SELECT * INTO follower FROM {schema}.task t WHERE t.id = member.then_id FOR UPDATE;
        IF NOT FOUND OR follower.status <> 'pending' OR follower.waits_for <= 0 THEN
            RETURN;
        END IF;
        IF member.status = 'success' OR coalesce((follower.follows::json ->> 'anyway')::boolean, false) THEN
            UPDATE {schema}.task t
            SET waits_for = t.waits_for - 1, eta = CASE WHEN t.waits_for = 1 THEN moment ELSE t.eta END
            WHERE t.id = follower.id;
            IF follower.waits_for = 1 THEN
                PERFORM pg_notify('{channel}', 'w' || follower.queue);
            END IF;
            RETURN;
        END IF;
        problem := json_build_object('kind', 'upstream', 'attempt', follower.attempt, 'at', moment, 'message',
            'it waited for task ' || member.id || ', which '
            || CASE member.status WHEN 'cancelled' THEN 'was cancelled' ELSE 'failed' END)::text;
        UPDATE {schema}.task t SET status = 'cancelled', finished_at = moment, waits_for = {given_up},
            errors = (t.errors || problem)[greatest(1, cardinality(t.errors) + 2 - {errors_kept}):],
            prune_at = greatest(moment + coalesce(t.result_ttl, 'infinity'), t.unique_until)
        WHERE t.id = follower.id RETURNING t.* INTO follower;
        IF follower.awaited THEN
            PERFORM pg_notify('{channel}', 'r' || follower.id);
        END IF;
        member := follower;
    END LOOP;
END $$;

CREATE TYPE {schema}.answer AS ({claimed_record}, line text);

-- Settle what has ended, then claim the next. Returns what was refused (an id and an attempt), where the next claim may
-- begin (as `line`, JSON: the queues, their floors, the moment, and whether the whole index was searched), and what was
-- claimed, in order.
CREATE FUNCTION {schema}.exchange(
    ids text[], attempts integer[], statuses text[], delays float8[], etas float8[], fires float8[], nexts boolean[],
    failed integer[], crashed integer[], ran integer[], results bytea[], dropped text[], problems text[],
    owner text, queues text[], most integer, lease float8, claim text, floors float8[], floor_ids text[], swept float8
) RETURNS SETOF {schema}.answer LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    moment float8 := {schema}.now();
    row {schema}.answer;
    applied text[] := '{{}}';
    applied_attempts integer[] := '{{}}';
    finished text[] := '{{}}';  -- queues, once for each task
    again text[];  -- queues
    awaited_ids text[];
    members text[];
    whole boolean;
    r record;
    picked text[] := '{{}}';
BEGIN
    IF '{forgotten}' = ANY (statuses) THEN
        WITH forgotten AS (
            DELETE FROM {schema}.task t USING unnest(ids, attempts, statuses) AS s (id, attempt, status)
            WHERE s.status = '{forgotten}' AND t.id = s.id AND t.attempt = s.attempt AND t.status || '' = 'running'
                AND NOT t.awaited AND t.then_id IS NULL AND coalesce(t.unique_until, 0) <= moment
            RETURNING t.id, t.attempt, t.queue
        )
        SELECT coalesce(array_agg(z.id), '{{}}'), array_agg(z.attempt), coalesce(array_agg(z.queue), '{{}}')
        INTO applied, applied_attempts, finished FROM forgotten z;
        statuses := array_replace(statuses, '{forgotten}', 'success');  -- those that are still there
    END IF;
    IF cardinality(applied) < cardinality(ids) THEN
        WITH settled AS (
            UPDATE {schema}.task t SET
                status = CASE WHEN s.status <> 'pending' OR NOT t.cancel_requested THEN s.status
                    WHEN s.runs > t.runs THEN 'success' ELSE 'cancelled' END,
                eta = CASE WHEN s.status <> 'pending' OR t.cancel_requested THEN t.eta
                    WHEN t.hold = 'paused' THEN {never}
                    WHEN t.hold = 'changed' AND s.next_run THEN moment
                    ELSE coalesce(s.eta, moment + s.delay) END,
                fire = CASE WHEN s.status <> 'pending' OR t.cancel_requested THEN t.fire
                    WHEN t.hold = 'changed' AND s.next_run THEN {unplanned} ELSE s.fire END,
                hold = CASE WHEN s.status = 'pending' AND NOT t.cancel_requested AND t.hold = 'changed' AND s.next_run
                    THEN '' ELSE t.hold END,
                failures = s.failures,
                crashes = s.crashes,
                runs = s.runs,
                result = CASE WHEN s.status = 'success' OR s.status = 'pending' AND s.runs > t.runs
                    THEN s.result ELSE t.result END,
                result_dropped = CASE WHEN s.status = 'success' OR s.status = 'pending' AND s.runs > t.runs
                    THEN s.result_dropped ELSE t.result_dropped END,
                errors = CASE WHEN s.error IS NULL THEN t.errors
                    ELSE (t.errors || s.error)[greatest(1, cardinality(t.errors) + 2 - {errors_kept}):] END,
                worker = CASE WHEN s.status <> 'pending' OR t.cancel_requested THEN t.worker END,
                claim_id = NULL,
                lease_until = NULL,
                finished_at = CASE WHEN s.status <> 'pending' OR t.cancel_requested OR s.runs > t.runs
                    THEN moment END,
                prune_at = CASE WHEN s.status <> 'pending' OR t.cancel_requested
                    THEN greatest(moment + coalesce(t.result_ttl, 'infinity'), t.unique_until) END
            FROM unnest(ids, attempts, statuses, delays, etas, fires, nexts, failed, crashed, ran, results, dropped,
                    problems)
                AS s (id, attempt, status, delay, eta, fire, next_run, failures, crashes, runs, result, result_dropped,
                    error)
            WHERE t.id = s.id AND t.attempt = s.attempt AND t.status || '' = 'running'
            RETURNING t.id, t.attempt, t.status, t.queue, t.awaited, t.then_id
        )
        SELECT applied || array_agg(z.id), applied_attempts || array_agg(z.attempt),
            finished || array_agg(z.queue) FILTER (WHERE z.status <> 'pending'),
            array_agg(DISTINCT z.queue) FILTER (WHERE z.status = 'pending'),
            array_agg(z.id) FILTER (WHERE z.awaited),
            array_agg(z.id) FILTER (WHERE z.then_id IS NOT NULL AND z.status <> 'pending')
        INTO applied, applied_attempts, finished, again, awaited_ids, members FROM settled z;
        PERFORM pg_notify('{channel}', 'r' || u) FROM unnest(awaited_ids) AS u;
        PERFORM pg_notify('{channel}', 'w' || u) FROM unnest(again) AS u;
        IF members IS NOT NULL THEN  -- in one order everywhere, so that nobody waits for each other
            PERFORM {schema}.ended(m.member, moment)
            FROM (SELECT t AS member FROM {schema}.task t WHERE t.id = ANY (members) ORDER BY t.then_id, t.id) AS m;
        END IF;
        IF cardinality(applied) < cardinality(ids) THEN
            SELECT coalesce(array_agg(u.id || ' ' || u.attempt), '{{}}') INTO applied
            FROM unnest(applied, applied_attempts) AS u (id, attempt);
            FOR i IN 1 .. cardinality(ids) LOOP
                IF ids[i] || ' ' || attempts[i] <> ALL (applied) THEN
                    row := NULL;
                    row.id := ids[i]; row.attempt := attempts[i];
                    RETURN NEXT row;
                END IF;
                applied := array_remove(applied, ids[i] || ' ' || attempts[i]);  -- a second one is refused
            END LOOP;
        END IF;
    END IF;
    IF most > 0 AND cardinality(queues) > 0 THEN
        SELECT * INTO r FROM {schema}.rooms(queues, most, moment, true);
        IF cardinality(r.names) > 0 THEN
            whole := r.stirred >= swept;
            IF whole THEN
                floors := array_fill(0::float8, ARRAY[cardinality(r.names) * 10]);
                floor_ids := array_fill(''::text, ARRAY[cardinality(r.names) * 10]);
            ELSIF r.names <> queues THEN  -- those of the queues that are open
                SELECT array_agg(floors[(w.place - 1) * 10 + p.n + 1] ORDER BY o.place, p.n),
                    array_agg(floor_ids[(w.place - 1) * 10 + p.n + 1] ORDER BY o.place, p.n) INTO floors, floor_ids
                FROM unnest(r.names) WITH ORDINALITY AS o (name, place)
                    JOIN unnest(queues) WITH ORDINALITY AS w (name, place) ON w.name = o.name,
                    generate_series(0, 9) AS p (n);
            END IF;
            SELECT * INTO floors, floor_ids, picked
            FROM {schema}.pick(r.names, r.left_over, r.per_key, most, moment, floors, floor_ids);
            row := NULL;
            row.line := json_build_array(json_build_array(r.names, floors, floor_ids), moment, whole);
            RETURN NEXT row;
        END IF;
    END IF;
    IF cardinality(finished) > 0 THEN  -- others hear of room that is not used here
        PERFORM pg_notify('{channel}', 'w' || q.name) FROM {schema}.queue q
        WHERE q.limited AND cardinality(array_positions(finished, q.name)) > (
            SELECT count(*) FROM {schema}.task t WHERE t.id = ANY (picked) AND t.queue = q.name
        );
    END IF;
    IF cardinality(picked) = 0 THEN
        RETURN;
    END IF;
    IF r.rated THEN
        INSERT INTO {schema}.start (queue, at)
            SELECT t.queue, moment FROM {schema}.task t JOIN {schema}.queue q ON q.name = t.queue
            WHERE t.id = ANY (picked) AND q.rate IS NOT NULL;
        DELETE FROM {schema}.start s USING {schema}.queue q
        WHERE q.name = ANY (r.names) AND s.queue = q.name AND s.at <= moment - greatest(1, 1 / q.rate);
    END IF;
    RETURN QUERY
        WITH taken AS (
            UPDATE {schema}.task t SET status = 'running', attempt = t.attempt + 1, worker = owner, claim_id = claim,
                lease_until = moment + lease, started_at = moment, progress = NULL
            WHERE t.id = ANY (picked) AND t.status || '' = 'pending'
            RETURNING t.*
        )
        SELECT {claimed_values}, NULL FROM taken t ORDER BY t.priority DESC, t.eta, t.id;
END $$;

-- Settle what is in one JSON array, for drivers of any kind: the ids that were refused, as a JSON array.
CREATE FUNCTION {schema}.settle(settlements json) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT coalesce(json_agg(x.id), '[]')::text
        FROM (SELECT {settle_aggregates} FROM json_to_recordset(settlements) AS r ({settle_record})) AS c,
            {schema}.exchange({settle_arrays}, '', '{{}}', 0, 0, '', '{{}}', '{{}}', 0) AS x
    );
END $$;

-- Have the end of a task told: 0 if it is over already, or has completed more than so many runs, and NULL if it will be
-- told. Whoever claims or settles it at this moment is waited for, but not for long: its own function may settle it,
-- and take its time until it commits: then this says in how many seconds to ask again. The mark does not wait for the
-- disk, with the task locked meanwhile: if a crash takes it away, those who wait look for themselves.
CREATE FUNCTION {schema}.await_end(task_id text, known_runs integer) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    SELECT t.status, t.runs, t.awaited INTO r FROM {schema}.task t WHERE t.id = task_id;
    IF NOT FOUND OR r.status NOT IN ('pending', 'running') OR r.runs > known_runs THEN
        RETURN 0;
    ELSIF r.awaited THEN
        RETURN NULL;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '{lock_patience}', true);
    UPDATE {schema}.task t SET awaited = true WHERE t.id = task_id RETURNING t.status, t.runs INTO r;
    RETURN CASE WHEN NOT FOUND OR r.status NOT IN ('pending', 'running') OR r.runs > known_runs THEN 0 END;
EXCEPTION WHEN lock_not_available THEN
    RETURN {locked_pause};
END $$;

-- In how many seconds something may start, of what is behind the floors; NULL if that is not known. What somebody has
-- locked for a moment counts too: it may be free the next.
CREATE FUNCTION {schema}.next_work(queues text[], floors float8[], floor_ids text[]) RETURNS float8
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    moment float8 := {schema}.now();
    r record;
    place integer;
    startable integer;
    soonest float8;
BEGIN
    SELECT * INTO r FROM {schema}.rooms(queues, 1, moment, false);
    soonest := r.again_in;
    FOR i IN 1 .. cardinality(r.names) LOOP
        IF r.per_key[i] IS NOT NULL THEN
            SELECT cardinality(k.picked) INTO startable
            FROM {schema}.pick(r.names[i:i], r.left_over[i:i], r.per_key[i:i], 1, moment, NULL, NULL) AS k;
            IF startable > 0 THEN
                RETURN 0;
            END IF;
        END IF;
        place := (array_position(queues, r.names[i]) - 1) * 10 + 1;
        SELECT least(soonest, min((
            SELECT t.eta - moment FROM {schema}.task t
            WHERE t.status = 'pending' AND t.queue = r.names[i] AND t.priority = p.n
                AND (t.eta, t.id) > (floors[place + p.n], floor_ids[place + p.n])
                AND (r.per_key[i] IS NULL OR t.eta > moment)
                AND (t.expires IS NULL OR t.expires > greatest(moment, t.eta))
            ORDER BY t.eta, t.id LIMIT 1
        ))) INTO soonest FROM generate_series(0, 9) AS p (n);
        IF soonest <= 0 THEN
            RETURN 0;
        END IF;
    END LOOP;
    RETURN soonest;
END $$;
"""


class Migration(NamedTuple):
    """What makes the next version: a script, and the oldest version whose clients can use what it makes. They do so
    while it is made: keep the functions that they call, with all that they take, and the columns that they read.
    """

    script: str
    oldest: int


MIGRATIONS = (Migration(_FIRST, oldest=1),)  # the n-th makes version n + 1; never change one that was released
VERSION = len(MIGRATIONS)


class Found(NamedTuple):
    """What there is."""

    version: int = 0
    oldest: int = 0  # of those who can use it

    def check(self, storage: str) -> None:
        if self.version > VERSION and self.oldest > VERSION:
            raise SchemaTooNew(storage=storage, found=self.version, known=VERSION)


def steps(found: int, schema: str) -> tuple[str, ...]:
    """What leads from the version that was found to the present one."""
    begin = (
        f"CREATE SCHEMA IF NOT EXISTS {schema};\n"
        f"CREATE TABLE {schema}.version (version integer NOT NULL, oldest integer NOT NULL);\n"
        f"INSERT INTO {schema}.version VALUES (0, 0);\n"
    )
    return tuple(
        f"{'' if version else begin}{script(version, schema)}\n"
        f"UPDATE {schema}.version SET version = {version + 1}, oldest = {MIGRATIONS[version].oldest};\n"
        for version in range(found, VERSION)
    )


def script(version: int, schema: str) -> str:
    """What makes `version` + 1 of `version`."""
    return MIGRATIONS[version].script.format(
        schema=schema,
        channel=channel(schema),
        errors_kept=ERRORS_KEPT,
        never=NEVER,
        given_up=GIVEN_UP,
        overlap=OVERLAP,
        read_in_vain=READ_IN_VAIN,
        unplanned=UNPLANNED,
        lock_patience=LOCK_PATIENCE,
        locked_pause=LOCKED_PAUSE,
        forgotten=FORGOTTEN,
        queue_name=f"^{QUEUE_NAME.pattern}$",
        queue_words=QUEUE_WORDS.replace("'", "''"),
        lowest_priority=LOWEST_PRIORITY,
        highest_priority=HIGHEST_PRIORITY,
        max_seconds=MAX_SECONDS,
        max_retries=MAX_RETRIES,
        max_key=MAX_KEY,
        claimed_record=_record(CLAIMED),
        claimed_values=", ".join(map(_unless_usual, CLAIMED)),
        add_columns=", ".join(NEW),
        add_parameters=", ".join(f"{_plural(name)} {kind}[]" for name, kind in NEW.items()),
        add_arrays=", ".join(map(_plural, NEW)),
        add_values=", ".join("coalesce(g.eta, moment)" if name == "eta" else f"g.{name}" for name in NEW),
        add_aggregated=", ".join(f"c.{_plural(name)}" for name in NEW),
        add_record=_record(NEW),
        add_aggregates=", ".join(f"array_agg(r.{name} ORDER BY r.place) AS {_plural(name)}" for name in NEW),
        settle_record=_record(SETTLED),
        settle_aggregates=", ".join(f"array_agg(r.{name}) AS {_plural(name)}" for name in SETTLED),
        settle_arrays=", ".join(f"c.{_plural(name)}" for name in SETTLED),
    )


def channel(schema: str) -> str:
    return f"bullpen:{schema}"


def checked_name(schema: str) -> str:
    """A name that needs no quotes, and can be put into statements as it is."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,48}", schema):
        raise InvalidOption("schema", schema, "lower-case letters, digits and underscores, at most 49")
    return schema


def _unless_usual(name: str) -> str:
    return f"nullif(t.{name}, {USUAL[name]})" if name in USUAL else f"t.{name}"


def _record(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _plural(name: str) -> str:
    return f"{name}s"
