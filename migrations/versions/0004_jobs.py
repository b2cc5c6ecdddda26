"""Adds jobs: our table of them, and procrastinate's own schema, which queues them for workers.

Procrastinate's schema is that of the installed package, which pyproject.toml holds to one minor release; the last of
its migration scripts is `LAST` (a test compares the two). A release with more scripts needs a migration of ours that
runs those where the database lacks what they add. They cannot be run here from the first to the last:
before PostgreSQL 17 a value that is added to an enum cannot be used in the transaction that adds it.
"""

from __future__ import annotations

from importlib.resources import files

from colmlm.migrations.statements import run

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

LAST = "03.04.00_50_post_add_retry_failed_job_procedure.sql"

UPGRADE = """
CREATE TABLE job (
    id           bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT job_pkey PRIMARY KEY,
    kind         text NOT NULL,
    arguments    jsonb NOT NULL,
    actor        text NOT NULL,
    request_id   text,
    state        text NOT NULL,
    ticket       bigint,
    done         bigint NOT NULL DEFAULT 0,
    total        bigint,
    message      text,
    result       jsonb,
    error        jsonb,
    attempts     integer NOT NULL DEFAULT 0,
    cancelled_by text,
    created_at   timestamptz NOT NULL DEFAULT now(),
    started_at   timestamptz,
    finished_at  timestamptz,
    heartbeat_at timestamptz,
    CONSTRAINT job_state_check CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled'))
);
CREATE INDEX job_unfinished_idx ON job (id) WHERE state IN ('queued', 'running');
"""

DOWNGRADE = """
DROP TABLE job;
DROP TABLE procrastinate_periodic_defers, procrastinate_events, procrastinate_jobs, procrastinate_workers CASCADE;
DO $$
DECLARE
    name regprocedure;
BEGIN
    FOR name IN SELECT oid FROM pg_proc
        WHERE proname LIKE 'procrastinate%' AND pronamespace = current_schema()::regnamespace
    LOOP
        EXECUTE format('DROP FUNCTION %s', name);
    END LOOP;
END
$$;
DROP TYPE procrastinate_job_to_defer_v1, procrastinate_job_event_type, procrastinate_job_status;
"""


def upgrade() -> None:
    run((files("procrastinate.sql") / "schema.sql").read_text(encoding="utf-8"))
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
