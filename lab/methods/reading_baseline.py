"""Baselines for answers from raw texts: an extractive reader over BM25, and retrieval-augmented generation."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.answers.reading import Reader
from colmlm.kb.answers.records import Answer
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.facts.records import Source
from colmlm.kb.texts.sentences import sentence_ends

WINDOWS = 4
MAX_TOKENS = 16


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


class Generating:
    """The base model with the four best passages of 100 words before the prompt; a text without a place."""

    def __init__(self, runtime: Runtime, documents: Sequence[AnnotatedDocument]) -> None:
        from colmlm.model.baselines.passages import PassageIndex, passages_of
        from colmlm.model.decoding.config import DecodeConfig
        from colmlm.model.decoding.decoder import Decoder
        from colmlm.model.lm.base_models import WHEEL_BASE
        from colmlm.model.lm.checkpoint import base_checkpoint
        from colmlm.model.text.markup import STANDARD

        loaded = base_checkpoint(WHEEL_BASE, runtime.settings.home / "models", markup=STANDARD)
        self.decoder = Decoder(loaded, None)
        self.passages = PassageIndex(passages_of(documents))
        self.config = DecodeConfig(mode="off", max_tokens=MAX_TOKENS, repetition_penalty=1.0)

    def ask(self, question: str) -> Answer:
        """Gives the first line that the model goes on with."""
        from colmlm.model.baselines.passages import augmented

        prompt = f"Question: {question}\nAnswer:"
        (found,) = self.passages.search([question])
        (made,) = self.decoder.generate([augmented(prompt, found)], self.config)
        said = re.split(r"[\n.]\s", made.output.strip(), maxsplit=1)[0].strip()
        return Answer(question, said or None, 1.0, 0.0, (), None, False, (), 0)
