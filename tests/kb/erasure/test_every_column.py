"""Whatever column of whatever table says a fact, an erasure redacts it, or the list here says why not."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from colmlm.kb.erasure.purge import TABLES
from colmlm.kb.erasure.verbs import Erasure
from colmlm.kb.evidence.records import NewFeedback
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import fact_id
from tests.kb.full import fill

WORDS = "Cusco"  # what the fact says that is erased
# Texts of other facts and documents, which stay where these say it on purpose, and the log, which cannot be altered.
OF_OTHERS = {"document", "fact", "fact_version", "fact_past", "sentence", "change"}
# Names, codes and digests that operators and programs give, and what holds numbers and ids alone.
NAMES = {
    "alembic_version": {"version_num"},
    "answer_calibration": {"reader", "report"},
    "api_key": {"name", "prefix"},
    "checkpoint": {"checkpoint_id", "name", "path", "tokenizer_hash", "trained_on"},
    "corpus_review": {"corpus"},
    "denial": {"actor", "cause", "method", "path", "request_id"},
    "erasure_request": {"actor", "mentions"},
    "fact_pair": {"corpus", "other_corpus"},
    "feedback": {"actor"},
    "forget_run": {"actor", "certificate"},
    "generation": {"checkpoint_id", "mode"},
    "idempotency": {"claim", "key", "media_type"},
    "job": {"actor", "cancelled_by", "kind", "principal", "request_id", "state"},
    "keyset": {
        "gate",
        "index_fit",
        "index_spec",
        "shared_snapshot",
        "whole_index_fit",
        "whole_shared_snapshot",
    },
    "procrastinate_events": {"type"},
    "procrastinate_jobs": {"args", "lock", "queue_name", "queueing_lock", "task_name"},
    "procrastinate_periodic_defers": {"periodic_id", "queue_name", "task_name"},
    "question_outcome": {"reason"},
    "question_run": {"actor", "checkpoint_id", "reader"},
    "question_set": {"actor", "corpus", "name"},
    "secret": {"name"},
    "synced_file": {"corpus", "digest", "documents", "path"},
    "synced_folder": {"corpus", "places"},
    "webhook": {"format", "kinds", "last_error", "state", "url"},  # the address that an admin gave
}
_JOB = text("""
INSERT INTO job (kind, arguments, actor, state, message, result, error, finished_at)
VALUES ('ingest', '{}', 'ann', 'succeeded', 'm', '{}', '{}', now())
""")


class _Column(NamedTuple):
    table: str
    name: str
    type: str


_COLUMNS = text("""
SELECT c.table_name, c.column_name, c.udt_name FROM information_schema.columns c
JOIN information_schema.tables t USING (table_schema, table_name)
WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE' AND c.udt_name IN ('text', 'varchar', '_text', 'jsonb')
ORDER BY 1, 2
""")
_SAYING = {
    "text": "coalesce({0}, '') || ' They said Cusco there.'",
    "varchar": "coalesce({0}, '') || ' They said Cusco there.'",
    "_text": "{0} || '{{Cusco}}'::text[]",
    "jsonb": """CASE WHEN jsonb_typeof({0}) = 'object' OR {0} IS NULL
                THEN coalesce({0}, '{{}}') || '{{"said": ["in Cusco", {{"deep": "Cusco."}}]}}' ELSE {0} END""",
}


def _write_everywhere(connection: Connection) -> set[tuple[str, str]]:
    """Says the fact in each column that takes a text, and gives those that took it."""
    said = set()
    for column in map(_Column._make, connection.execute(_COLUMNS).all()):
        if column.table in OF_OTHERS or column.name in NAMES.get(column.table, ()):
            continue
        value = _SAYING[column.type].format(f'"{column.name}"')
        try:
            with connection.begin_nested():
                connection.execute(text(f'UPDATE {column.table} SET "{column.name}" = {value}'))
        except DBAPIError:
            continue  # one of a few known words, or a name that another table refers to
        said.add((column.table, column.name))
    return said


def _saying(connection: Connection) -> set[tuple[str, str]]:
    found = set()
    for column in map(_Column._make, connection.execute(_COLUMNS).all()):
        where = f'SELECT count(*) FROM {column.table} WHERE "{column.name}"::text LIKE :said'
        if connection.scalar(text(where), {"said": f"%{WORDS}%"}):
            found.add((column.table, column.name))
    return found


@pytest.fixture
def said_everywhere(kb: KnowledgeBase, encoder: FakeEncoder) -> set[tuple[str, str]]:
    """The columns that say a fact, which are all that take a text and are no names."""
    fill(kb, encoder)
    with kb.engine.begin() as connection:
        connection.execute(_JOB)
        return _write_everywhere(connection)


def test_no_column_says_an_erased_fact_but_names(
    kb: KnowledgeBase, said_everywhere: set[tuple[str, str]]
) -> None:
    assert {table for table, _ in said_everywhere} >= {
        "generation",
        "question",
        "question_outcome",
        "feedback",
        "job",
    }
    Erasure(kb).erase([fact_id(kb, WORDS)], actor="tester", reason="request")
    with kb.engine.connect() as connection:
        assert _saying(connection) == set()
    assert kb.upkeep.fsck().chain_ok


def test_every_table_that_an_erasure_redacts_is_rewritten_at_level_three(
    said_everywhere: set[tuple[str, str]],
) -> None:
    assert {table for table, _ in said_everywhere} <= set(TABLES)


def test_thumbs_of_people_whose_names_are_redacted_stay_apart(
    kb: KnowledgeBase, encoder: FakeEncoder
) -> None:
    fill(kb, encoder)
    for person in ("Cusco", "CUSCO"):
        kb.outputs.give_feedback(1, NewFeedback("down"), actor="ann", on_behalf_of=person)
    Erasure(kb).erase([fact_id(kb, WORDS)], actor="tester", reason="request")
    thumbs = kb.outputs.trace(1).feedback
    assert len({one.on_behalf_of for one in thumbs}) == 2
    assert all((one.on_behalf_of or "").startswith(MARK * 5) for one in thumbs)
