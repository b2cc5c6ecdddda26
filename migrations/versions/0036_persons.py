"""Keeps with a request to erase the plan for a person, and lets an erasure blank words in entries of the change log."""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE erasure_request ADD COLUMN plan jsonb;

CREATE FUNCTION is_but_blanked(before text, after text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT before = after OR length(before) = length(after) AND (
        SELECT bool_and(n IN (o, U&'\\2588'))
        FROM unnest(string_to_array(before, NULL), string_to_array(after, NULL)) AS c (o, n)
    )
$$;
CREATE FUNCTION refuse_to_rewrite_an_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.seq, NEW.kind, NEW.fact_ids, NEW.num_facts, NEW.at, NEW.prev_hash, NEW.hash)
           IS DISTINCT FROM (OLD.seq, OLD.kind, OLD.fact_ids, OLD.num_facts, OLD.at, OLD.prev_hash, OLD.hash)
       OR NOT is_but_blanked(OLD.actor, NEW.actor) OR NOT is_but_blanked(OLD.reason, NEW.reason)
       OR NOT is_but_blanked(OLD.payload::text, NEW.payload::text) THEN
        RAISE EXCEPTION 'the change log is append-only: % refused', TG_OP;
    END IF;
    RETURN NEW;
END
$$;
DROP TRIGGER change_append_only ON change;
CREATE TRIGGER change_append_only BEFORE DELETE OR TRUNCATE ON change
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_rewrite_history();
CREATE TRIGGER change_only_blanked BEFORE UPDATE ON change
    FOR EACH ROW EXECUTE FUNCTION refuse_to_rewrite_an_entry();
"""


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run("DROP TRIGGER change_only_blanked ON change")
    run("DROP TRIGGER change_append_only ON change")
    run(
        "CREATE TRIGGER change_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON change"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_rewrite_history()"
    )
    run("DROP FUNCTION refuse_to_rewrite_an_entry(), is_but_blanked(text, text)")
    run("ALTER TABLE erasure_request DROP COLUMN plan")
