"""A baseline for answers from raw texts: an extractive reader over BM25."""

from __future__ import annotations

import math
from collections.abc import Sequence

from colmlm.kb.answers.reading import Reader
from colmlm.kb.answers.records import Answer
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.facts.records import Source
from colmlm.kb.texts.searched import sentence_ends

WINDOWS = 4


class BM25Reading:
    """The same reader over the four windows (a sentence and the one before) that BM25 finds, without facts or keys."""

    def __init__(self, reader: Reader, documents: Sequence[AnnotatedDocument]) -> None:
        import bm25s

        self.reader = reader
        self.windows: list[tuple[AnnotatedDocument, int, int]] = []
        sentences: list[str] = []
        for document in documents:
            starts = [0, *sentence_ends(document.text)]
            for number, end in enumerate(starts[1:], start=1):
                self.windows.append((document, starts[max(0, number - 2)], end))
                sentences.append(f"{document.title or ''} {document.text[starts[number - 1] : end]}")
        self._bm25 = bm25s.BM25()
        self._bm25.index(bm25s.tokenize(sentences, stopwords="en", show_progress=False), show_progress=False)

    def ask(self, question: str) -> Answer:
        import bm25s

        from colmlm.kb.answers.reading import Passage

        tokens = bm25s.tokenize([question], stopwords="en", return_ids=False, show_progress=False)
        found, _ = self._bm25.retrieve(tokens, k=min(WINDOWS, len(self.windows)), show_progress=False)
        chosen = [self.windows[n] for n in found[0].tolist()]
        readings = self.reader.read(question, [Passage(d.title or "", d.text[a:b]) for d, a, b in chosen])
        best: tuple[float, str | None, Source | None] = (-math.inf, None, None)
        for (document, start, _), reading in zip(chosen, readings, strict=True):
            for a, b, logit in reading.spans[:1]:
                place = Source(
                    0, "", document.external_id, document.title, None, None, None, start + a, start + b
                )
                best = max(
                    best,
                    (logit - reading.none, document.text[start + a : start + b], place),
                    key=lambda one: one[0],
                )
        score = 1 / (1 + math.exp(-max(-60.0, min(60.0, best[0]))))
        return Answer(question, best[1], score, 0.0, (), best[2], False, (), 0)
