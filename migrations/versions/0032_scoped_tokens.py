"""Gives tokens a right on some corpora only, and lets the role of their callers see the rows of these alone.

The role itself is made when the first such caller asks (`kb.store.scoped_role`), since a role belongs to the whole
server. Other roles see every row, as before.
"""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

# Which rows the role sees, by table.
_SEEN = {
    "document": "corpus = ANY ((SELECT corpora_in_scope())::text[])",
    "corpus_review": "corpus = ANY ((SELECT corpora_in_scope())::text[])",
    "fact": "EXISTS (SELECT FROM document d WHERE d.id = fact.document_id)",
    "fact_version": "EXISTS (SELECT FROM fact f WHERE f.id = fact_version.fact_id)",
    "fact_past": "EXISTS (SELECT FROM fact f WHERE f.id = fact_past.fact_id)",
    "fact_key": "EXISTS (SELECT FROM fact f WHERE f.id = fact_key.fact_id)",
    "tombstone": "EXISTS (SELECT FROM fact f WHERE f.id = tombstone.fact_id)",
    "fact_pair": "corpus = ANY ((SELECT corpora_in_scope())::text[])"
    " AND other_corpus = ANY ((SELECT corpora_in_scope())::text[])",
    "sentence": "EXISTS (SELECT FROM document d WHERE d.id = sentence.document_id)",
    "generation": "corpora <> '{}' AND corpora <@ (SELECT corpora_in_scope())::text[]",
    "attribution": "EXISTS (SELECT FROM generation g WHERE g.id = attribution.generation_id)",
    "feedback": "EXISTS (SELECT FROM generation g WHERE g.id = feedback.generation_id)",
    "miss": "EXISTS (SELECT FROM generation g WHERE g.id = miss.generation_id)",
    "change": "payload ->> 'corpus' = ANY ((SELECT corpora_in_scope())::text[]) OR (fact_ids <> '{}' AND NOT EXISTS ("
    "SELECT FROM unnest(fact_ids) AS one (id) WHERE NOT EXISTS (SELECT FROM fact f WHERE f.id = one.id)))",
}

UPGRADE = """
ALTER TABLE api_key ADD COLUMN corpora text[];
ALTER TABLE api_key ADD CONSTRAINT api_key_corpora_check CHECK (corpora <> '{}');
CREATE FUNCTION corpora_in_scope() RETURNS text[] LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT ARRAY(SELECT jsonb_array_elements_text(nullif(current_setting('colmlm.corpora', true), '')::jsonb))
$$;
""" + "".join(
    f"""
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
CREATE POLICY scope ON {table} USING ((SELECT current_user) <> 'colmlm_scoped' OR ({seen}));
"""
    for table, seen in _SEEN.items()
)


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    for table in _SEEN:
        run(f"DROP POLICY scope ON {table}")
        run(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
    run("DROP FUNCTION corpora_in_scope()")
    run("ALTER TABLE api_key DROP COLUMN corpora")
