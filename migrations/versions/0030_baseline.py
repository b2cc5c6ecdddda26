"""Creates all tables, functions and triggers, as `migrations/baseline` has them by subject.

It goes by the number of the last of the migrations whose place it took, so that a database at that one is at head.

Procrastinate's own schema, which queues jobs for workers, is that of the installed package, which pyproject.toml holds
to one minor release; the last of its migration scripts is `LAST` (a test compares the two). A release with more scripts
needs a migration of ours that runs those where the database lacks what they add. They cannot be run here from the first
to the last: before PostgreSQL 17 a value that is added to an enum cannot be used in the transaction that adds it.
"""

from __future__ import annotations

import secrets
from importlib.resources import files

import sqlalchemy as sa
from alembic import op

from colmlm.migrations.statements import run

revision = "0030"
down_revision = None
branch_labels = None
depends_on = None

LAST = "03.04.00_50_post_add_retry_failed_job_procedure.sql"
SUBJECTS = ("facts", "keys", "service")  # each refers to those before it
_KEEP_SECRET = sa.text("INSERT INTO secret (name, value) VALUES ('change_log', :value)")


def upgrade() -> None:
    run((files("procrastinate.sql") / "schema.sql").read_text(encoding="utf-8"))
    for subject in SUBJECTS:
        run((files("colmlm.migrations") / "baseline" / f"{subject}.sql").read_text(encoding="utf-8"))
    op.get_bind().execute(_KEEP_SECRET, {"value": secrets.token_bytes(32)})


def downgrade() -> None:
    raise NotImplementedError("nothing comes before this migration; drop the database in its place")
