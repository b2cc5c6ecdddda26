"""Give tokens a right on some corpora only, and write down which rows the role of their callers sees.

The role is made, and row-level security turned on, with the first such token (`kb.store.scoped_role`): a role belongs
to the whole server, and a base without such a token stays as it is. Other roles see every row, as before.
"""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

# Which rows the role sees, by table.
_OF_SCOPE = "= ANY ((SELECT corpora_in_scope())::text[])"
_OF_FACT = "EXISTS (SELECT FROM fact f WHERE f.id = {}.fact_id)"
_OF_OUTPUT = "EXISTS (SELECT FROM generation g WHERE g.id = {}.generation_id)"
_SEEN = {
    "document": f"corpus {_OF_SCOPE}",
    "corpus_review": f"corpus {_OF_SCOPE}",
    "fact_pair": f"corpus {_OF_SCOPE} AND other_corpus {_OF_SCOPE}",
    "fact": "EXISTS (SELECT FROM document d WHERE d.id = fact.document_id)",
    "sentence": "EXISTS (SELECT FROM document d WHERE d.id = sentence.document_id)",
    **{table: _OF_FACT.format(table) for table in ("fact_version", "fact_past", "fact_key", "tombstone")},
    # What others asked may say anything, also of what they may read.
    "generation": "is_scoped AND corpora <> '{}' AND corpora <@ (SELECT corpora_in_scope())::text[]",
    **{table: _OF_OUTPUT.format(table) for table in ("attribution", "feedback", "miss")},
    "change": "payload ->> 'corpus' = ANY ((SELECT corpora_in_scope())::text[]) OR (fact_ids <> '{}' AND NOT EXISTS ("
    "SELECT FROM unnest(fact_ids) AS one (id) WHERE NOT EXISTS (SELECT FROM fact f WHERE f.id = one.id)))",
}

UPGRADE = """
ALTER TABLE api_key ADD COLUMN corpora text[];
ALTER TABLE api_key ADD CONSTRAINT api_key_corpora_check CHECK (corpora <> '{}');
ALTER TABLE generation ADD COLUMN is_scoped boolean NOT NULL DEFAULT false;
CREATE FUNCTION corpora_in_scope() RETURNS text[] LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT ARRAY(SELECT jsonb_array_elements_text(nullif(current_setting('colmlm.corpora', true), '')::jsonb))
$$;
CREATE FUNCTION scoped_role() RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT 'colmlm_scoped_' || left(md5(current_database()), 12)
$$;
""" + "".join(
    f"CREATE POLICY scope ON {table} USING ((SELECT current_user <> scoped_role()) OR ({seen}));\n"
    for table, seen in _SEEN.items()
)


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    for table in _SEEN:
        run(f"DROP POLICY scope ON {table}")
        run(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
    run("DROP FUNCTION scoped_role()")
    run("DROP FUNCTION corpora_in_scope()")
    run("UPDATE api_key SET revoked_at = now() WHERE corpora IS NOT NULL AND revoked_at IS NULL")
    run("ALTER TABLE api_key DROP COLUMN corpora")
    run("ALTER TABLE generation DROP COLUMN is_scoped")
