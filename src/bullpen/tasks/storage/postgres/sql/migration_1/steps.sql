-- The kept steps of tasks. They are deleted with their task, and when its next run begins: then `task.steps` becomes 0.

CREATE TABLE {schema}.step (
    task_id text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    record  text NOT NULL,  -- JSON
    PRIMARY KEY (task_id, name)
);

CREATE FUNCTION {schema}.delete_steps() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM {schema}.step WHERE task_id = OLD.id;
    RETURN NULL;
END $$;
CREATE TRIGGER steps_of_deleted AFTER DELETE ON {schema}.task FOR EACH ROW WHEN (OLD.steps <> 0)
    EXECUTE FUNCTION {schema}.delete_steps();
CREATE TRIGGER steps_of_earlier_run AFTER UPDATE OF steps ON {schema}.task FOR EACH ROW
    WHEN (NEW.steps = 0 AND OLD.steps <> 0) EXECUTE FUNCTION {schema}.delete_steps();

-- Keeps a step, a JSON object, if the attempt still holds its task. Returns 'true' or 'false'. Any driver can call it in
-- the user's transaction.
CREATE FUNCTION {schema}.save_step(step json) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE {schema}.task t SET steps = 1
    WHERE t.id = step->>'task_id' AND t.attempt = (step->>'attempt')::integer AND t.status || '' = 'running';
    IF NOT FOUND THEN
        RETURN 'false';
    END IF;
    INSERT INTO {schema}.step VALUES (step->>'task_id', step->>'name', step->>'record')
    ON CONFLICT (task_id, name) DO UPDATE SET record = excluded.record;
    RETURN 'true';
END $$;
