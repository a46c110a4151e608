-- The state of one Leader that runs on several machines. Run it once as the database's owner:
--   pointillist leader schema | psql --dbname pointillist
-- Every machine of the Leader connects as one role, which may read and change these rows:
--   CREATE ROLE pointillist_leader LOGIN PASSWORD '...' CONNECTION LIMIT 16;

BEGIN;

CREATE TABLE pointillist_leader (
    version integer NOT NULL
);
INSERT INTO pointillist_leader VALUES (1);

-- Whose term it is: it changes when the lead changes hands, and every change of the state reads it
-- under a lock. Where a failover lost commits a fence may come twice; a holder's random bytes do not.
CREATE TABLE leadership (
    one integer PRIMARY KEY CHECK (one = 1),
    leader_pk bytea CHECK (length(leader_pk) = 32),
    fence bigint NOT NULL,
    holder bytea CHECK (length(holder) = 16)
);
INSERT INTO leadership VALUES (1, NULL, 0, NULL);

-- Who leads puts another mark here several times while its lease lasts. None: nobody leads.
CREATE TABLE lease (
    one integer PRIMARY KEY CHECK (one = 1),
    holder bytea CHECK (length(holder) = 16),
    renewal bytea CHECK (length(renewal) = 16)
);
INSERT INTO lease VALUES (1, NULL, NULL);

CREATE TABLE windows (
    task_id bytea, cohort bigint, "window" bigint, series text NOT NULL, state text NOT NULL,
    reason text, closed_s double precision NOT NULL, rejections text NOT NULL,
    batch bytea, share bytea, entry bytea, vector bytea,
    PRIMARY KEY (task_id, cohort, "window")
);
CREATE INDEX windows_chain ON windows (series, cohort, "window");
CREATE INDEX windows_state ON windows (state);
CREATE TABLE kept_epochs (
    host_id bytea NOT NULL, epoch_id bytea NOT NULL, not_after bigint NOT NULL,
    dead smallint NOT NULL, raw bytea NOT NULL, PRIMARY KEY (host_id, epoch_id)
);
CREATE TABLE counters (
    host_id bytea PRIMARY KEY, ledger_ctr bigint NOT NULL, not_before bigint NOT NULL
);
CREATE TABLE tasks (
    task_id bytea PRIMARY KEY, accepted_s double precision NOT NULL
);
CREATE TABLE to_publish (
    place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, series text NOT NULL,
    cohort bigint NOT NULL, entry bytea NOT NULL
);

REVOKE ALL ON pointillist_leader, leadership, lease, windows, kept_epochs, counters, tasks, to_publish
    FROM PUBLIC;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'pointillist_leader') THEN
        GRANT SELECT ON pointillist_leader TO pointillist_leader;
        GRANT SELECT, UPDATE ON leadership, lease TO pointillist_leader;
        GRANT SELECT, INSERT, UPDATE, DELETE
            ON windows, kept_epochs, counters, tasks, to_publish TO pointillist_leader;
    ELSE
        RAISE EXCEPTION 'expected a role pointillist_leader; CREATE ROLE pointillist_leader LOGIN';
    END IF;
END
$$;

COMMIT;
