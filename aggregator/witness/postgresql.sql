-- The witness of Pointillist Helpers, in a server that nobody on the Leader's side runs. Run this
-- once as the database's owner:
--   pointillist witness schema | psql --dbname pointillist
-- Each Helper connects as a role that may read and append, and can change nothing that was appended:
--   CREATE ROLE pointillist_helper LOGIN PASSWORD '...' CONNECTION LIMIT 4;

BEGIN;

CREATE TABLE pointillist_witness (
    version integer NOT NULL
);
INSERT INTO pointillist_witness VALUES (1);

-- One chain for each Helper. A link is taken only where its place is free (the primary key) and the
-- link that it names is there (the foreign key): compare and set at any level of isolation.
CREATE TABLE pointillist_links (
    helper_pk bytea NOT NULL CHECK (length(helper_pk) = 32),
    sequence bigint NOT NULL CHECK (sequence >= 1),
    prev bytea NOT NULL CHECK (length(prev) = 32),
    closed_s bigint NOT NULL CHECK (closed_s >= 0),
    kind smallint NOT NULL CHECK (kind IN (1, 2)),
    item bytea NOT NULL CHECK (length(item) = 32),
    -- "plst1/link" in 16 bytes, as wire/SPEC.md has a link.
    hash bytea NOT NULL GENERATED ALWAYS AS (sha256(
        '\x706c7374312f6c696e6b000000000000'::bytea || helper_pk || int8send(sequence) || prev
        || int8send(closed_s) || substring(int2send(kind) FROM 2) || item)) STORED,
    before bigint GENERATED ALWAYS AS (NULLIF(sequence - 1, 0)) STORED,
    taken_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (helper_pk, sequence),
    UNIQUE (helper_pk, sequence, hash),
    FOREIGN KEY (helper_pk, before, prev) REFERENCES pointillist_links (helper_pk, sequence, hash),
    CHECK ((sequence = 1) = (prev = decode(repeat('00', 32), 'hex')))
);

REVOKE ALL ON pointillist_witness, pointillist_links FROM PUBLIC;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'pointillist_helper') THEN
        GRANT SELECT ON pointillist_witness TO pointillist_helper;
        GRANT SELECT, INSERT (helper_pk, sequence, prev, closed_s, kind, item)
            ON pointillist_links TO pointillist_helper;
    ELSE
        RAISE EXCEPTION 'expected a role pointillist_helper; CREATE ROLE pointillist_helper LOGIN';
    END IF;
END
$$;

COMMIT;
