"""Adds the work list of misses, with those of the outputs that are stored already, and what people say of outputs."""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE miss_group (
    id            bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT miss_group_pkey PRIMARY KEY,
    state         text NOT NULL DEFAULT 'open'
                  CONSTRAINT miss_group_state_check CHECK (state IN ('open', 'dismissed', 'solved')),
    asked         bigint NOT NULL,
    wrong         bigint NOT NULL,
    last_at       timestamptz NOT NULL,
    generation_id bigint NOT NULL,
    ordinal       integer NOT NULL,
    fact_id       bigint,
    seq           bigint
);
CREATE INDEX miss_group_asked_idx ON miss_group (state, asked, id);
CREATE INDEX miss_group_last_at_idx ON miss_group (state, last_at, id);

CREATE TABLE miss (
    generation_id bigint NOT NULL CONSTRAINT miss_generation_id_fkey REFERENCES generation ON DELETE CASCADE,
    ordinal       integer NOT NULL,
    group_id      bigint CONSTRAINT miss_group_id_fkey REFERENCES miss_group,
    at            timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT miss_pkey PRIMARY KEY (generation_id, ordinal)
);
INSERT INTO miss (generation_id, ordinal, at)
SELECT a.generation_id, a.ordinal, g.at FROM attribution a JOIN generation g ON g.id = a.generation_id
WHERE a.outcome = 'no_match';
CREATE INDEX miss_group_id_idx ON miss (group_id, generation_id);
CREATE INDEX miss_at_idx ON miss (at);

CREATE TABLE feedback (
    id            bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT feedback_pkey PRIMARY KEY,
    generation_id bigint NOT NULL CONSTRAINT feedback_generation_id_fkey REFERENCES generation ON DELETE CASCADE,
    thumb         text NOT NULL CONSTRAINT feedback_thumb_check CHECK (thumb IN ('up', 'down')),
    comment       text,
    value         text,
    actor         text NOT NULL,
    on_behalf_of  text NOT NULL DEFAULT '',
    at            timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX feedback_one_each_key ON feedback (generation_id, actor, on_behalf_of);

-- Without compression, so that a scan of the files finds erased words.
ALTER TABLE feedback ALTER COLUMN comment SET STORAGE EXTERNAL, ALTER COLUMN value SET STORAGE EXTERNAL;
ANALYZE miss;

-- A query says what its prompt did, and so goes with that.
UPDATE attribution a SET query = NULL FROM generation g
WHERE g.id = a.generation_id AND g.redacted_seq IS NOT NULL AND a.outcome <> 'hit' AND a.query IS NOT NULL;
"""

DOWNGRADE = """
DROP TABLE feedback;
DROP TABLE miss;
DROP TABLE miss_group;
"""


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
