"""Restricts the rows of the change log: each has the number after the last, and values that its readers can hold.

A row with a number far ahead would move the numbers of all later changes too, and one with the largest number would
end all edits. Rows that exist already are left as they are.
"""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE FUNCTION refuse_out_of_order() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    head bigint := coalesce((SELECT max(seq) FROM change), 0);
BEGIN
    IF NEW.seq <> head + 1 THEN
        RAISE EXCEPTION 'the change log goes on with change %, not with %', head + 1, NEW.seq;
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER change_in_order BEFORE INSERT ON change FOR EACH ROW EXECUTE FUNCTION refuse_out_of_order();

ALTER TABLE change ADD CONSTRAINT change_readable CHECK (
    seq > 0 AND num_facts >= 0
    AND at >= '0002-01-01 00:00:00+00' AND at < '9999-01-01 00:00:00+00'
    AND coalesce(array_ndims(fact_ids), 1) = 1 AND array_position(fact_ids, NULL) IS NULL
    AND jsonb_typeof(payload) = 'object'
    AND NOT payload @? '$.**{20 to last}'
    AND NOT payload @? '$.** ? (@ > 9223372036854775807 || @ < -9223372036854775808)'
) NOT VALID;
DO $$ BEGIN
    ALTER TABLE change VALIDATE CONSTRAINT change_readable;
EXCEPTION WHEN check_violation THEN -- it holds for what comes
    NULL;
END $$;
"""

DOWNGRADE = """
ALTER TABLE change DROP CONSTRAINT change_readable;
DROP TRIGGER change_in_order ON change;
DROP FUNCTION refuse_out_of_order;
"""


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
