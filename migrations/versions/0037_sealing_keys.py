"""Derive the keys that seal texts in backups from a tree of seeds, and destroy one wherever its texts are redacted.

Children of a seed are its SHA-256 with a bit behind it, and a leaf is 64 levels below the root: 8 bits for the kind of
what it belongs to (`kb.removal.sealing`), 56 for its id. To destroy a leaf's key, `destroy_sealing_key` replaces the
seed above it by those of all other branches, and by a random one for the leaf. Triggers call it, so that it happens in
the transaction of the erasure, whoever erases: also the release before, which knows no such keys.
"""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE sealing_key (
    path text CONSTRAINT sealing_key_pkey PRIMARY KEY,
    seed bytea NOT NULL
);
CREATE FUNCTION fresh_seed() RETURNS bytea LANGUAGE sql VOLATILE AS $$
    SELECT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
$$;
INSERT INTO sealing_key (path, seed) VALUES ('', fresh_seed());

CREATE FUNCTION destroy_sealing_key(kind integer, owner bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    leaf CONSTANT text := ((kind::bigint << 56) | owner)::bit(64)::text;
    reached text;
    found bytea;
    own integer;
BEGIN
    PERFORM pg_advisory_xact_lock(x'636F6C6D0D'::bigint);
    WITH above AS (DELETE FROM sealing_key
        WHERE path = ANY (ARRAY(SELECT left(leaf, n) FROM generate_series(0, 64) AS n))
        RETURNING path, seed
    ) SELECT path, seed INTO reached, found FROM above;
    WHILE length(reached) < 64 LOOP
        own := substr(leaf, length(reached) + 1, 1);
        INSERT INTO sealing_key (path, seed)
            VALUES (reached || (1 - own), sha256(found || set_byte('\\x00', 0, 1 - own)));
        found := sha256(found || set_byte('\\x00', 0, own));
        reached := reached || own;
    END LOOP;
    INSERT INTO sealing_key (path, seed) VALUES (leaf, fresh_seed());
END
$$;
CREATE FUNCTION destroy_key_of_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM destroy_sealing_key(TG_ARGV[0]::integer, OLD.id);
    RETURN NULL;
END
$$;
CREATE FUNCTION destroy_key_of_fact() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erased bigint;
BEGIN
    IF TG_TABLE_NAME = 'fact' THEN
        erased := OLD.id;
    ELSE
        erased := OLD.fact_id;
    END IF;
    PERFORM destroy_sealing_key(
        CASE WHEN place.document_id IS NULL THEN 2 ELSE 1 END, coalesce(place.document_id, erased)
    ) FROM (
        SELECT f.document_id FROM fact f WHERE f.id = erased
        UNION SELECT p.document_id FROM fact_past p WHERE p.fact_id = erased
    ) AS place;
    RETURN NULL;
END
$$;
CREATE TRIGGER sealing_key AFTER UPDATE OF text, title, uri, licence, revision ON document FOR EACH ROW
    WHEN ((OLD.text, OLD.title, OLD.uri, OLD.licence, OLD.revision) IS DISTINCT FROM
          (NEW.text, NEW.title, NEW.uri, NEW.licence, NEW.revision))
    EXECUTE FUNCTION destroy_key_of_row(1);
CREATE TRIGGER sealing_key AFTER UPDATE OF erased_seq ON fact FOR EACH ROW
    WHEN (OLD.erased_seq IS NULL AND NEW.erased_seq IS NOT NULL) EXECUTE FUNCTION destroy_key_of_fact();
CREATE TRIGGER sealing_key AFTER UPDATE OF value ON fact_version FOR EACH ROW
    WHEN (OLD.value IS DISTINCT FROM NEW.value) EXECUTE FUNCTION destroy_key_of_fact();
CREATE TRIGGER sealing_key AFTER UPDATE OF body ON idempotency FOR EACH ROW
    WHEN (OLD.body IS NOT NULL AND NEW.body IS NULL) EXECUTE FUNCTION destroy_key_of_row(9);
"""

# Rows that people may change, too: their key is destroyed where the new text has marks of a redaction.
_MARKED = {
    "generation": (3, ("prompt", "output")),
    "forget_run": (4, ("selector", "plan", "verification", "reason", "on_behalf_of")),
    "erasure_request": (5, ("reason", "on_behalf_of")),
    "feedback": (6, ("comment", "value", "on_behalf_of")),
    "question": (7, ("text", "expected")),
    "question_outcome": (8, ("question", "expected", "value")),
}
UPGRADE += "".join(
    f"""
CREATE TRIGGER sealing_key AFTER UPDATE OF {", ".join(columns)} ON {table} FOR EACH ROW
    WHEN (({", ".join(f"OLD.{one}" for one in columns)})
          IS DISTINCT FROM ({", ".join(f"NEW.{one}" for one in columns)})
          AND strpos({" || ".join(f"coalesce(NEW.{one}::text, '')" for one in columns)}, U&'\\2588') > 0)
    EXECUTE FUNCTION destroy_key_of_row({kind});
"""
    for table, (kind, columns) in _MARKED.items()
)
_TABLES = ("document", "fact", "fact_version", "idempotency", *_MARKED)


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    for table in _TABLES:
        run(f"DROP TRIGGER sealing_key ON {table}")
    run(
        "DROP FUNCTION destroy_key_of_fact(), destroy_key_of_row(), destroy_sealing_key(integer, bigint), fresh_seed()"
    )
    run("DROP TABLE sealing_key")
