"""Adds forgetting, erasure and gates: tombstones, forget runs, suppressed facts, stored queries, reports of gates.

Long texts are stored uncompressed after it, so that a scan of the files finds erased texts.
"""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE tombstone (
    fact_id bigint NOT NULL CONSTRAINT tombstone_pkey PRIMARY KEY CONSTRAINT tombstone_fact_id_fkey REFERENCES fact,
    seq     bigint NOT NULL
);

CREATE TABLE suppression (
    digest bytea CONSTRAINT suppression_pkey PRIMARY KEY,
    seq    bigint NOT NULL
);

CREATE TABLE forget_run (
    id           bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT forget_run_pkey PRIMARY KEY,
    state        text NOT NULL,
    policy       text NOT NULL,
    selector     jsonb NOT NULL,
    fact_ids     bigint[] NOT NULL,
    plan         jsonb NOT NULL,
    verification jsonb,
    certificate  jsonb,
    planned_seq  bigint NOT NULL,
    applied_seq  bigint,
    restored_seq bigint,
    actor        text NOT NULL,
    reason       text NOT NULL,
    at           timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT forget_run_state_check CHECK (state IN ('planned', 'applied', 'restored', 'erased')),
    CONSTRAINT forget_run_policy_check CHECK (policy IN ('successor', 'abstain'))
);

-- A partition exists only for a keyset that does, so this says nothing new, once for every key.
ALTER TABLE fact_key DROP CONSTRAINT fact_key_keyset_id_fkey;
ALTER TABLE fact ADD COLUMN erased_seq bigint;
ALTER TABLE fact_version DROP CONSTRAINT fact_version_range_check;
ALTER TABLE fact_version ADD CONSTRAINT fact_version_range_check CHECK (to_seq >= from_seq);
ALTER TABLE keyset ADD COLUMN gate jsonb;
ALTER TABLE generation ADD COLUMN redacted_seq bigint;
ALTER TABLE attribution ADD COLUMN query bytea;
ALTER TABLE attribution DROP CONSTRAINT attribution_outcome_check;
ALTER TABLE attribution ADD CONSTRAINT attribution_outcome_check
    CHECK (outcome IN ('hit', 'no_match', 'abstained'));

CREATE FUNCTION begin_change(lock_key bigint, OUT at timestamptz, OUT secret bytea, OUT seq bigint, OUT hash text)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(lock_key);
    SELECT clock_timestamp(), s.value, head.seq, head.hash INTO at, secret, seq, hash
    FROM secret s LEFT JOIN (SELECT c.seq, c.hash FROM change c ORDER BY c.seq DESC LIMIT 1) AS head ON true
    WHERE s.name = 'change_log';
END
$$;

CREATE FUNCTION announce_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('colmlm_change', NEW.seq::text);
    RETURN NULL;
END
$$;
CREATE TRIGGER change_announced AFTER INSERT ON change FOR EACH ROW EXECUTE FUNCTION announce_change();

ALTER TABLE document ALTER COLUMN text SET STORAGE EXTERNAL;
ALTER TABLE fact ALTER COLUMN question SET STORAGE EXTERNAL, ALTER COLUMN answer SET STORAGE EXTERNAL;
ALTER TABLE fact_version ALTER COLUMN value SET STORAGE EXTERNAL;
ALTER TABLE generation ALTER COLUMN prompt SET STORAGE EXTERNAL, ALTER COLUMN output SET STORAGE EXTERNAL;
UPDATE document SET text = text || '';
UPDATE generation SET prompt = prompt || '', output = output || '';
"""

DOWNGRADE = """
UPDATE attribution SET outcome = 'no_match' WHERE outcome = 'abstained';
ALTER TABLE attribution DROP CONSTRAINT attribution_outcome_check;
ALTER TABLE attribution ADD CONSTRAINT attribution_outcome_check CHECK (outcome IN ('hit', 'no_match'));
ALTER TABLE attribution DROP COLUMN query;
ALTER TABLE generation DROP COLUMN redacted_seq;
ALTER TABLE keyset DROP COLUMN gate;
ALTER TABLE fact DROP COLUMN erased_seq;
ALTER TABLE fact_key ADD CONSTRAINT fact_key_keyset_id_fkey FOREIGN KEY (keyset_id) REFERENCES keyset;
ALTER TABLE fact_version DROP CONSTRAINT fact_version_range_check;
ALTER TABLE fact_version ADD CONSTRAINT fact_version_range_check CHECK (to_seq > from_seq) NOT VALID;
DROP TRIGGER change_announced ON change;
DROP FUNCTION announce_change, begin_change;
DROP TABLE forget_run, suppression, tombstone;
"""


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
