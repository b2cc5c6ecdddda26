"""Likeness: how near the meaning of a sentence is to that of a question, by vectors of a sentence encoder.

Words find sentences, and their vectors rank first those that mean what is asked. `fill_sentence_vectors` stores missing
vectors. A question encodes a few missing ones for itself. A sentence that is removed takes its vector with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.store.store import Store, is_read_only

AT_ONCE = 256  # sentences

WHILE_ASKED = 32  # sentences that get their vectors while a question waits


# The title and the lines that lead a sentence say what it is about, so they are encoded before it.
_TEXTS = """
SELECT s.id, concat_ws('. ', nullif(d.title, ''), (
    SELECT string_agg(substr(d.text, s.led_by[n] + 1, s.led_by[n + 1] - s.led_by[n]), '. ' ORDER BY n)
    FROM generate_series(1, cardinality(s.led_by), 2) AS n
), substr(d.text, s.span_start + 1, s.span_end - s.span_start)) AS said
FROM sentence s JOIN document d ON d.id = s.document_id
LEFT JOIN sentence_vector v ON v.sentence_id = s.id AND v.encoder = :encoder
WHERE v.sentence_id IS NULL
"""


_MISSING = text(f"{_TEXTS} AND s.id > :after ORDER BY s.id LIMIT :most")

_MISSING_OF = text(
    f"{_TEXTS} AND s.id = ANY(:ids) ORDER BY array_position(CAST(:ids AS bigint[]), s.id) LIMIT :most"
)

_COUNT_LIKENESS = text("""
SELECT count(*) FROM sentence s LEFT JOIN sentence_vector v ON v.sentence_id = s.id AND v.encoder = :encoder
WHERE s.document_id IS NOT NULL AND v.sentence_id IS NULL
""")


# A sentence that went meanwhile gets none.
_WRITE = text("""
INSERT INTO sentence_vector (sentence_id, encoder, vector)
SELECT given.id, :encoder, given.vector
FROM unnest(CAST(:ids AS bigint[]), CAST(:vectors AS bytea[])) AS given (id, vector)
JOIN (SELECT id FROM sentence WHERE id = ANY(:ids) FOR KEY SHARE) AS there ON there.id = given.id
ON CONFLICT (sentence_id) DO UPDATE SET encoder = excluded.encoder, vector = excluded.vector
""")

_READ = text(
    "SELECT sentence_id, vector FROM sentence_vector WHERE encoder = :encoder AND sentence_id = ANY(:ids)"
)


class SentenceEmbedder(Protocol):
    """Encodes texts as float32 unit vectors [N, d]. Its id is `encoder`; stored vectors of others do not count."""

    @property
    def encoder(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]: ...


def fill_sentence_vectors(
    store: Store, encoder: SentenceEmbedder, on_filled: Callable[[int, int | None], None] = lambda *_: None
) -> int:
    """Store a vector for each sentence of a document that has none of this encoder, in batches; give their number."""
    with store.sessions() as session:
        total = session.scalar(_COUNT_LIKENESS, {"encoder": encoder.encoder}) or 0
    filled, after = 0, -1
    while filled < total:
        with store.sessions() as session:
            asked = {"encoder": encoder.encoder, "after": after, "most": AT_ONCE}
            rows = session.execute(_MISSING, asked).all()
        if not rows:
            break
        vectors = _quantized_bytes(encoder.encode([row.said for row in rows]))
        with store.sessions.begin() as session:
            _write(session, encoder, [row.id for row in rows], vectors)
        filled, after = filled + len(rows), rows[-1].id
        on_filled(filled, total)
    return filled


def sentence_likenesses(
    session: Session, encoder: SentenceEmbedder, question: str, sentence_ids: Collection[int]
) -> dict[int, float]:
    """Give the cosine between the question and each of these sentences, by sentence id.

    Pass the ids most promising first: the first few without a stored vector are encoded, and the others are left out.
    """
    ids = list(sentence_ids)
    asked = {"encoder": encoder.encoder, "ids": ids}
    known = {row.sentence_id: row.vector for row in session.execute(_READ, asked)}
    new: dict[int, bytes] = {}
    if len(known) < len(ids):
        rows = session.execute(_MISSING_OF, {**asked, "most": WHILE_ASKED}).all()
        if rows:
            octets = _quantized_bytes(encoder.encode([row.said for row in rows]))
            new = dict(zip((row.id for row in rows), octets, strict=True))
    known |= new
    if not known:
        return {}
    (question_D,) = encoder.encode([question])
    vectors_ND = np.stack([np.frombuffer(vector, np.int8) for vector in known.values()]).astype(np.float32)
    lengths_N = np.maximum(np.linalg.norm(vectors_ND, axis=1), 1e-6)
    return dict(zip(known, (vectors_ND @ question_D / lengths_N).tolist(), strict=True))


def _write(session: Session, encoder: SentenceEmbedder, ids: Sequence[int], vectors: Sequence[bytes]) -> None:
    if not is_read_only(session):
        session.execute(_WRITE, {"encoder": encoder.encoder, "ids": list(ids), "vectors": list(vectors)})


def _quantized_bytes(vectors_ND: NDArray[np.float32]) -> list[bytes]:
    """Give each vector as int8 bytes, scaled by its greatest number, since a cosine does not depend on length."""
    greatest_N = np.maximum(np.abs(vectors_ND).max(axis=1, keepdims=True), 1e-9)
    return [row.tobytes() for row in np.rint(vectors_ND / greatest_N * 127).astype(np.int8)]
