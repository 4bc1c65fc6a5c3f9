-- Events.

-- name: emit
SELECT {schema}.emit($1, $2, $3);

-- name: find_event
SELECT name, payload, at, expires_at FROM {schema}.event WHERE name = $1;

-- name: list_events
SELECT name, payload, at, expires_at FROM {schema}.event WHERE name > $1 ORDER BY name LIMIT $2;
