-- The clock, and the isolation level that the functions need.

-- The search path of a caller may lead to functions of another role that fit a call better than those of pg_catalog.
-- So every function sets its own, except this one, which PostgreSQL then could not inline: all its names are qualified.
CREATE FUNCTION {schema}.now() RETURNS float8 LANGUAGE sql VOLATILE AS
    $$ SELECT extract(epoch FROM pg_catalog.clock_timestamp())::pg_catalog.float8 $$;

-- Raises unless the transaction is READ COMMITTED. In any other, a statement that has waited for a lock does not see
-- the rows that were committed while it waited.
CREATE FUNCTION {schema}.check_isolation(need text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION '% need a transaction that is READ COMMITTED, not %', need,
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'invalid_transaction_state';
    END IF;
END $$;
