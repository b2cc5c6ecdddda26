"""Adds the sentences of texts, by whose words they are found, and writes those of the texts there are.

The rules by which a text is cut and its words are read are those of the release that this came with, so that they stay
when the program's change.

Edits go on while most texts are read. What keeps them waiting comes last: constraints and triggers, and then the texts
that were changed meanwhile.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import islice, pairwise

import sqlalchemy as sa
from alembic import op

from colmlm.migrations.statements import run

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TABLE = """
CREATE TABLE sentence (
    id          bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT sentence_pkey PRIMARY KEY,
    document_id bigint,
    fact_id     bigint,
    ordinal     integer NOT NULL,
    span_start  integer NOT NULL,
    span_end    integer NOT NULL,
    words       tsvector NOT NULL,
    CONSTRAINT sentence_of_one_check CHECK ((document_id IS NULL) <> (fact_id IS NULL)),
    CONSTRAINT sentence_order_check CHECK (span_start >= 0 AND span_start < span_end)
);

-- Without compression, so that a scan of the files finds erased words.
ALTER TABLE sentence ALTER COLUMN words SET STORAGE EXTERNAL;
CREATE TEMPORARY TABLE text_read (document_id bigint PRIMARY KEY, sha256 text NOT NULL) ON COMMIT DROP;
"""

# Made once the rows are there, which takes a fraction of the time.
INDEXES = """
CREATE UNIQUE INDEX sentence_document_id_key ON sentence (document_id, ordinal) WHERE document_id IS NOT NULL;
CREATE UNIQUE INDEX sentence_fact_id_key ON sentence (fact_id, ordinal) WHERE fact_id IS NOT NULL;
CREATE INDEX sentence_words_idx ON sentence USING gin (words);
"""

# No edit is under way once the log's lock is held, so no two lock these tables in different orders.
GUARDS = """
SELECT pg_advisory_xact_lock(427071139074);
ALTER TABLE sentence ADD CONSTRAINT sentence_document_id_fkey FOREIGN KEY (document_id) REFERENCES document;
ALTER TABLE sentence ADD CONSTRAINT sentence_fact_id_fkey FOREIGN KEY (fact_id) REFERENCES fact;

CREATE FUNCTION forget_sentences_of_document() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN DELETE FROM sentence WHERE document_id = OLD.id; RETURN NULL; END
$$;
CREATE TRIGGER document_says_something_else AFTER UPDATE OF text, title, replaced_seq ON document FOR EACH ROW
    WHEN ((OLD.text, OLD.title, OLD.replaced_seq) IS DISTINCT FROM (NEW.text, NEW.title, NEW.replaced_seq))
    EXECUTE FUNCTION forget_sentences_of_document();

CREATE FUNCTION forget_sentences_of_fact() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN DELETE FROM sentence WHERE fact_id = OLD.fact_id; RETURN NULL; END
$$;
CREATE TRIGGER fact_version_says_something_else AFTER UPDATE OF value, to_seq ON fact_version FOR EACH ROW
    WHEN ((OLD.value, OLD.to_seq) IS DISTINCT FROM (NEW.value, NEW.to_seq))
    EXECUTE FUNCTION forget_sentences_of_fact();

CREATE FUNCTION forget_sentences_of_question() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN DELETE FROM sentence WHERE fact_id = OLD.id; RETURN NULL; END
$$;
CREATE TRIGGER fact_asks_something_else AFTER UPDATE OF question, document_id ON fact FOR EACH ROW
    WHEN (OLD.document_id IS NULL
        AND (OLD.question, OLD.document_id) IS DISTINCT FROM (NEW.question, NEW.document_id))
    EXECUTE FUNCTION forget_sentences_of_question();
"""

UPGRADE = TABLE + INDEXES + GUARDS

DOWNGRADE = """
DROP TRIGGER fact_asks_something_else ON fact;
DROP TRIGGER fact_version_says_something_else ON fact_version;
DROP TRIGGER document_says_something_else ON document;
DROP FUNCTION forget_sentences_of_question, forget_sentences_of_fact, forget_sentences_of_document;
DROP TABLE sentence;
"""

_DOCUMENTS = sa.text("""
SELECT d.id, d.title, d.text, d.sha256 FROM document d LEFT JOIN text_read r ON r.document_id = d.id
WHERE d.replaced_seq IS NULL AND r.document_id IS NULL AND d.id > :after ORDER BY d.id LIMIT 100
""")
_READ = sa.text("""
INSERT INTO text_read SELECT * FROM unnest(CAST(:ids AS bigint[]), CAST(:digests AS text[]))
""")
# A redaction gives a text another digest, and a title comes with a new row.
_CHANGED = (
    """DELETE FROM sentence s USING text_read r, document d WHERE s.document_id = r.document_id
    AND d.id = r.document_id AND (d.sha256 <> r.sha256 OR d.replaced_seq IS NOT NULL)""",
    "DELETE FROM text_read r USING document d WHERE d.id = r.document_id AND d.sha256 <> r.sha256",
)
_FACTS = sa.text("""
SELECT f.id, f.question || ' ' || v.value AS text FROM fact f
JOIN fact_version v ON v.fact_id = f.id AND v.to_seq IS NULL
WHERE f.document_id IS NULL AND f.id > :after ORDER BY f.id LIMIT 1000
""")
_WRITE = sa.text("""
INSERT INTO sentence (document_id, fact_id, ordinal, span_start, span_end, words)
SELECT document_id, fact_id, ordinal, span_start, span_end, to_tsvector('pg_catalog.english', said)
FROM unnest(
    CAST(:document_id AS bigint[]), CAST(:fact_id AS bigint[]), CAST(:ordinal AS integer[]),
    CAST(:span_start AS integer[]), CAST(:span_end AS integer[]), CAST(:said AS text[])
) AS given (document_id, fact_id, ordinal, span_start, span_end, said)
""")
_COLUMNS = ("document_id", "fact_id", "ordinal", "span_start", "span_end", "said")
_AT_ONCE = 2_000


_Row = tuple[int | None, int | None, int, int, int, str]


def upgrade() -> None:
    run(TABLE)
    _write(_of_documents())
    run(INDEXES)
    run(GUARDS)
    for statement in _CHANGED:
        run(statement)
    _write(_of_documents())
    _write(_of_facts())
    run("DROP TABLE text_read; ANALYZE sentence")


def downgrade() -> None:
    run(DOWNGRADE)


def _write(rows: Iterator[_Row]) -> None:
    while some := list(islice(rows, _AT_ONCE)):
        columns = zip(_COLUMNS, zip(*some, strict=True), strict=True)
        op.get_bind().execute(_WRITE, {name: list(column) for name, column in columns})


def _of_documents() -> Iterator[_Row]:
    """Gives the rows of the documents that were not read yet."""
    after = 0
    while texts := op.get_bind().execute(_DOCUMENTS, {"after": after}).all():
        for document_id, title, text, _ in texts:
            led = _words((title or "")[:500])
            for ordinal, (start, end) in enumerate(_spans(text)):
                yield document_id, None, ordinal, start, end, f"{led} {_words(text[start:end])}"
        ids, digests = [row.id for row in texts], [row.sha256 for row in texts]
        op.get_bind().execute(_READ, {"ids": ids, "digests": digests})
        after = ids[-1]


def _of_facts() -> Iterator[_Row]:
    after = 0
    while texts := op.get_bind().execute(_FACTS, {"after": after}).all():
        for fact_id, text in texts:
            for ordinal, (start, end) in enumerate(_cut(text, 0, len(text))):
                yield None, fact_id, ordinal, start, end, f" {_words(text[start:end])}"
        after = texts[-1].id


# The rules of `kb.texts.searched` and `kb.texts.searched`, as they were.

_OPENERS, _CLOSERS = "\"'“‘«(\\[", "\"'”’»)\\]"
_BREAK = re.compile(
    rf"(?P<stop>[.!?…])[{_CLOSERS}]*\s+(?=[{_OPENERS}]*[^\W_a-z])|[。！？][{_CLOSERS}」』]*\s*|\n[^\S\n]*\n\s*"
)
_ABBREVIATIONS = (
    "approx aug ca capt cf col dec dr ed eds feb fig figs fr ft gen gov hon jan lt mr mrs ms mt no nos nov oct"
    " p pp pres prof rep rev sen sep sept sgt st vol vols vs"
)
_ABBREVIATED = frozenset(_ABBREVIATIONS.split())
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]+$")
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
)
_SEARCHED = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_DROPPED = re.compile(
    "[\u0300-\u036f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)


def _words(text: str) -> str:
    bare = _DROPPED.sub("", unicodedata.normalize("NFKD", text)).casefold()
    return " ".join(_SEARCHED.findall(unicodedata.normalize("NFKC", bare)))


def _spans(text: str) -> list[tuple[int, int]]:
    ends = [m.end() for m in _BREAK.finditer(text) if m["stop"] != "." or not _abbreviated(text, m.start())]
    spans: list[tuple[int, int]] = []
    start = 0
    for end in (*ends, len(text)):
        if text[start:end].strip():
            spans += _cut(text, start, end)
            start = end
    return spans


def _abbreviated(text: str, stop: int) -> bool:
    found = _LAST_WORD.search(text[max(0, stop - 40) : stop])
    if found is None:
        return False
    _, dot, last = found.group().rpartition(".")
    initial = len(last) == 1 and (last.isupper() or (last.isalpha() and dot != ""))
    return initial or last.lower() in _ABBREVIATED


def _cut(text: str, start: int, end: int) -> list[tuple[int, int]]:
    if end - start < 120:
        return [(start, end)]
    words = [
        (at, min(at + 500, found.end()))
        for found in re.finditer(r"\S+", text[start:end])
        for at in range(found.start(), found.end(), 500)
    ]
    most = -(-len(words) // -(-len(words) // 60))
    starts, first, count = [0], words[0][0], 0
    for word, stop in words:
        if count == most or stop - first > 500:
            starts.append(word)
            first, count = word, 0
        count += 1
    return [(start + a, start + b) for a, b in pairwise([*starts, end - start])]
