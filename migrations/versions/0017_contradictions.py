"""Adds the pairs of facts that ask the same or have keys near one another, and finds questions by their words.

Where there are facts already, the indexes are built before the migration, while edits go on. The pairs of facts that
are there already come with the first job of the kind "compare".
"""

from __future__ import annotations

from sqlalchemy import Connection

from colmlm.migrations.statements import build_beforehand, building, run

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# Capitals of Latin, Greek and Cyrillic, and marks that stand between words; the server's locale is not asked.
_CAPITALS = [
    (c, c.casefold()) for c in map(chr, range(0xC0, 0x530)) if len(c.casefold()) == 1 and c != c.casefold()
]
_MARKS = "«»¿¡·‘’‚“”„‹›–—―‐…、。「」『』【】〈〉《》・،؛؟।"
_FROM = "".join(capital for capital, _ in _CAPITALS) + _MARKS
_TO = "".join(small for _, small in _CAPITALS) + " " * len(_MARKS)

FUNCTION = rf"""
CREATE OR REPLACE FUNCTION asked_as(question text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashtextextended(nullif(btrim(regexp_replace(lower(
        CASE WHEN octet_length(question) = char_length(question) THEN question
             ELSE translate(normalize(question, NFKC), '{_FROM}', '{_TO}') END COLLATE "C"
    ), '[\x01-\x2f\x3a-\x60\x7b-\x7f]+', ' ', 'g')), ''), 0)
$$
"""
INDEXES = {
    "fact_asked_idx": "fact (asked_as(question), id) WHERE question IS NOT NULL",
    "document_replaced_idx": "document (corpus, external_id, replaced_seq) WHERE replaced_seq IS NOT NULL",
}
TABLE = """
CREATE TABLE fact_pair (
    id              bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT fact_pair_pkey PRIMARY KEY,
    fact_id         bigint NOT NULL CONSTRAINT fact_pair_fact_id_fkey REFERENCES fact,
    other_id        bigint NOT NULL CONSTRAINT fact_pair_other_id_fkey REFERENCES fact,
    version         integer NOT NULL,
    other_version   integer NOT NULL,
    given_seq       bigint NOT NULL,
    other_given_seq bigint NOT NULL,
    corpus          text,
    other_corpus    text,
    same_value      boolean NOT NULL,
    score           real,
    found_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    held_seq        bigint,
    CONSTRAINT fact_pair_order_check CHECK (fact_id < other_id)
);
CREATE UNIQUE INDEX fact_pair_facts_key ON fact_pair (fact_id, other_id);
CREATE INDEX fact_pair_other_id_idx ON fact_pair (other_id);
CREATE INDEX fact_pair_corpus_idx ON fact_pair (corpus, same_value);
CREATE INDEX fact_pair_other_corpus_idx ON fact_pair (other_corpus, same_value);
CREATE INDEX fact_pair_open_idx ON fact_pair (same_value, id) WHERE held_seq IS NULL
"""
VIEWS = """
-- The change that gave a fact the value it has: a later version may only ask something else, or be restored.
CREATE VIEW value_given AS
SELECT DISTINCT ON (fact_id) fact_id, from_seq AS seq FROM (
    SELECT fact_id, version, from_seq,
           value IS DISTINCT FROM lag(value) OVER (PARTITION BY fact_id ORDER BY version) AS gave
    FROM fact_version
) AS history WHERE gave ORDER BY fact_id, version DESC;

-- Pairs whose facts are live, each with the version that was compared.
CREATE VIEW standing_pair AS
SELECT p.* FROM fact_pair p
JOIN fact_version a ON a.fact_id = p.fact_id AND a.version = p.version AND a.to_seq IS NULL
JOIN fact_version b ON b.fact_id = p.other_id AND b.version = p.other_version AND b.to_seq IS NULL;

-- Which fact is to answer in place of another: one that contradicts it by the words of its question where nobody has
-- said that both hold, and that was accepted where the other was not, or else was given its value later.
CREATE VIEW fact_yield AS
SELECT mine.id AS fact_id, rival.version, theirs.id AS to_id
FROM (
    SELECT fact_id, version, given_seq AS since, other_id AS to_id, other_version AS to_version,
           other_given_seq AS given
    FROM fact_pair WHERE NOT same_value AND score IS NULL AND held_seq IS NULL
    UNION ALL
    SELECT other_id, other_version, other_given_seq, fact_id, version, given_seq
    FROM fact_pair WHERE NOT same_value AND score IS NULL AND held_seq IS NULL
) AS rival
JOIN fact mine ON mine.id = rival.fact_id
JOIN fact theirs ON theirs.id = rival.to_id
JOIN fact_version live ON live.fact_id = rival.to_id AND live.version = rival.to_version AND live.to_seq IS NULL
WHERE (theirs.review = 'accepted', rival.given, rival.to_id) > (mine.review = 'accepted', rival.since, rival.fact_id)
"""
UPGRADE = ";\n".join([FUNCTION, *building(INDEXES), TABLE, VIEWS, "ANALYZE fact"])
DOWNGRADE = f"""
DROP VIEW fact_yield, standing_pair, value_given; DROP TABLE fact_pair; DROP INDEX {", ".join(INDEXES)};
DROP FUNCTION asked_as
"""


def beforehand(connection: Connection) -> None:
    """Builds the indexes of a base that has facts, each in a transaction of its own; what is there already stays."""
    run(FUNCTION, connection)
    build_beforehand(connection, INDEXES)


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
