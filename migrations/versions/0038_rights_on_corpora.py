"""Let callers of some corpora have webhooks, jobs and forget runs of their own, and say here alone which those are.

The release before knows of no webhook on corpora. It neither sends to one, whose state is `limited` in place of
`active`, nor can it make it `active`. What a webhook on corpora is told is what the policy of `change` shows. One that
a token made is told it while that token is in use, may read the log, and has a right on all of its corpora.
"""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

_SCOPE = "(SELECT corpora_in_scope())::text[]"
_ALL_SEEN = (
    "NOT EXISTS (SELECT FROM unnest(fact_ids) AS one (id)"
    " WHERE NOT EXISTS (SELECT FROM fact f WHERE f.id = one.id))"
)
# Holds are of the whole base, whichever facts they name.
_CHANGES = f"payload ->> 'corpus' = ANY ({_SCOPE}) OR (fact_ids <> '{{}}' AND {_ALL_SEEN})"
_SEEN = {
    "change": f"kind NOT IN ('place-hold', 'release-hold') AND ({_CHANGES})",
    "job": f"kind IN ('documents', 'ingest', 'sync') AND principal -> 'corpora' <@ to_jsonb({_SCOPE})",
    "forget_run": f"corpora <@ {_SCOPE} AND {_ALL_SEEN}",
}
_POLICY = "CREATE POLICY scope ON {} USING ((SELECT current_user <> scoped_role()) OR ({}));\n"

# A view whose reader is asked for its rights shows a scoped caller what the policies of its tables let it see.
UPGRADE = """
ALTER VIEW standing_pair SET (security_invoker = true);
ALTER TABLE webhook ADD COLUMN corpora text[];
ALTER TABLE webhook ADD COLUMN key_id bigint CONSTRAINT webhook_key_id_fkey REFERENCES api_key (id);
ALTER TABLE webhook DROP CONSTRAINT webhook_state_check;
ALTER TABLE webhook ADD CONSTRAINT webhook_state_check CHECK (state IN ('active', 'limited', 'paused', 'failed'));
ALTER TABLE webhook ADD CONSTRAINT webhook_corpora_check CHECK (
    corpora <> '{}' AND (key_id IS NULL OR corpora IS NOT NULL)
    AND CASE WHEN corpora IS NULL THEN state <> 'limited' ELSE state <> 'active' END
);
CREATE FUNCTION webhook_is_entitled(key_id bigint, corpora text[]) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT key_id IS NULL OR EXISTS (
        SELECT FROM api_key k
        WHERE k.id = webhook_is_entitled.key_id AND k.revoked_at IS NULL AND k.role IN ('operator', 'admin')
          AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
          AND (k.corpora IS NULL OR webhook_is_entitled.corpora <@ k.corpora)
    )
$$;
ALTER TABLE forget_run ADD COLUMN corpora text[];
DROP POLICY scope ON change;
"""
UPGRADE += "".join(_POLICY.format(table, seen) for table, seen in _SEEN.items())


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run("DELETE FROM webhook WHERE corpora IS NOT NULL")
    run("ALTER TABLE webhook DROP CONSTRAINT webhook_corpora_check")
    run("ALTER TABLE webhook DROP CONSTRAINT webhook_state_check")
    run(
        "ALTER TABLE webhook ADD CONSTRAINT webhook_state_check CHECK (state IN ('active', 'paused', 'failed'))"
    )
    run("DROP FUNCTION webhook_is_entitled(bigint, text[])")
    run("ALTER TABLE webhook DROP COLUMN key_id")
    run("ALTER TABLE webhook DROP COLUMN corpora")
    for table in _SEEN:
        run(f"DROP POLICY scope ON {table}")
    for table in ("job", "forget_run"):
        run(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
    run("ALTER TABLE forget_run DROP COLUMN corpora")
    run(_POLICY.format("change", _CHANGES))
