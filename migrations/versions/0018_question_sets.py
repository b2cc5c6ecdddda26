"""Adds named sets of questions with the values expected of them, and the runs that asked them."""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE question_set (
    id     bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT question_set_pkey PRIMARY KEY,
    name   text NOT NULL CONSTRAINT question_set_name_key UNIQUE,
    corpus text,
    actor  text NOT NULL,
    at     timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE question (
    id       bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT question_pkey PRIMARY KEY,
    set_id   bigint NOT NULL CONSTRAINT question_set_id_fkey REFERENCES question_set ON DELETE CASCADE,
    text     text NOT NULL,
    expected text[] NOT NULL,
    fact_ids bigint[] NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX question_of_set_idx ON question (set_id, id);
CREATE TABLE question_run (
    id            bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT question_run_pkey PRIMARY KEY,
    set_id        bigint NOT NULL CONSTRAINT question_run_set_id_fkey REFERENCES question_set ON DELETE CASCADE,
    how           text NOT NULL,
    threshold     double precision NOT NULL,
    keyset_id     bigint,
    checkpoint_id text,
    reader        text,
    first_seq     bigint NOT NULL,
    seq           bigint NOT NULL,
    num_asked     integer NOT NULL,
    num_right     integer NOT NULL,
    num_wrong     integer NOT NULL,
    num_abstained integer NOT NULL,
    num_skipped   integer NOT NULL,
    actor         text NOT NULL,
    at            timestamptz NOT NULL DEFAULT now(),
    seconds       double precision NOT NULL,
    CONSTRAINT question_run_how_check CHECK (how IN ('read', 'paper', 'words', 'reader'))
);
CREATE INDEX question_run_of_set_idx ON question_run (set_id, id);
CREATE TABLE question_outcome (
    id          bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT question_outcome_pkey PRIMARY KEY,
    run_id      bigint NOT NULL CONSTRAINT question_outcome_run_id_fkey REFERENCES question_run ON DELETE CASCADE,
    question_id bigint NOT NULL,
    question    text NOT NULL,
    expected    text[] NOT NULL,
    value       text,
    fact_id     bigint,
    fact_ids    bigint[] NOT NULL,
    score       double precision NOT NULL,
    outcome     text NOT NULL,
    reason      text,
    seq         bigint NOT NULL,
    CONSTRAINT question_outcome_outcome_check CHECK (outcome IN ('right', 'wrong', 'abstained'))
);
CREATE INDEX question_outcome_of_run_idx ON question_outcome (run_id, id);
CREATE INDEX question_outcome_question_id_idx ON question_outcome (question_id);

-- Without compression, so that a scan of the files finds erased words.
ALTER TABLE question ALTER COLUMN text SET STORAGE EXTERNAL, ALTER COLUMN expected SET STORAGE EXTERNAL;
ALTER TABLE question_outcome ALTER COLUMN question SET STORAGE EXTERNAL,
    ALTER COLUMN expected SET STORAGE EXTERNAL, ALTER COLUMN value SET STORAGE EXTERNAL;
"""

DOWNGRADE = "DROP TABLE question_outcome, question_run, question, question_set;"


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
