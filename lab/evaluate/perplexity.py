"""`colmlm-lab evaluate perplexity`: measures how well texts with marked facts are predicted, with and without facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import typer
from sqlalchemy import or_, select

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, Threshold, examples
from colmlm.cli.output import counting, note
from colmlm.kb.corpus.format import AnnotatedDocument, read_annotated
from colmlm.kb.errors import InvalidValue
from colmlm.kb.facts import reading
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keycopy import indexed_keys
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.lookup.in_process import FaissCandidates
from colmlm.kb.lookup.index import KeyIndex
from colmlm.kb.lookup.replica import Replica
from colmlm.kb.lookup.searcher import Searcher
from colmlm.kb.lookup.specs import FLAT_SPEC, bits_spec, coded_spec
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import DocumentRow, FactKeyRow, FactRow, key_kinds
from colmlm.lab.bench.machine import print_report
from colmlm.lab.evaluate.kept import FromTheFirst
from colmlm.lab.methods.methods import keyset_of
from colmlm.model.evaluate.perplexity import (
    DocumentSums,
    NearestValue,
    TextTally,
    dynamic_readings,
    opening_probabilities,
    perplexities,
    plain_tallies,
    static_tally,
)
from colmlm.model.lm.checkpoint import WHEEL_BASE, Checkpoint, base_checkpoint, load

EXAMPLES = examples(
    "colmlm-lab evaluate perplexity --annotated articles.jsonl --limit 200",
    "colmlm-lab evaluate perplexity --annotated articles.jsonl --beside runs/standard --base --json",
    "colmlm-lab evaluate perplexity --annotated a.jsonl --index exact --index pq4 --index pq10 --unrelated squad",
)

_TOGETHER = 16  # documents that an accelerator reads side by side


class IndexKind(StrEnum):
    exact = "exact"
    bits = "bits"
    pq4 = "pq4"
    pq10 = "pq10"
    pq4_first = "pq4-first"
    pq10_first = "pq10-first"


def perplexity(
    annotated: Annotated[
        Path,
        typer.Option("--annotated", exists=True, dir_okay=False, help="Documents with marked facts (JSONL)."),
    ],
    limit: FromTheFirst = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=2, help="Of a longer document so many tokens are read.")
    ] = 1024,
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            "--beside", exists=True, file_okay=False, help="A checkpoint without lookups. Repeatable."
        ),
    ] = None,
    base: Annotated[
        bool, typer.Option("--base", help="Also SmolLM2-135M-Instruct, from which adapters are trained.")
    ] = False,
    index: Annotated[
        list[IndexKind] | None,
        typer.Option(
            "--index",
            help="Also with lookups in such an index: all of a key, a bit a number, d/4 or d/10 bytes.",
        ),
    ] = None,
    unrelated: Annotated[
        list[str] | None,
        typer.Option(
            "--unrelated", help="A corpus about other things: each --index without its keys and with them."
        ),
    ] = None,
    threshold: Threshold = None,
    checkpoint: CheckpointPath = None,
) -> None:
    """Measure perplexity outside of the marked spans: with the spans given, and with what lookups find.

    `static` gives the annotator's paraphrases, as the paper does, `static_own_spans` the text's own. `dynamic` splices
    the nearest fact at any score, as the paper does; `dynamic_gated` undoes a lookup without a match and predicts the
    span itself, as decoding does. The documents should not be in the knowledge base, or lookups would find their own
    facts.
    """
    if unrelated and not index:
        raise typer.BadParameter(
            "say which --index is measured with and without them.", param_hint="--unrelated"
        )
    documents = _read(annotated, limit)
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.open()
        loaded, home = runtime.checkpoint, runtime.settings.home / "models"
        others = [load(path, home) for path in beside or []]
        others += [base_checkpoint(WHEEL_BASE, home)] if base else []
        trials = _trials(runtime.kb, index or [], unrelated or [])
        own = runtime.kb.lookups.in_keyset(keyset_of(runtime, None, loaded, "--checkpoint").keyset_id)
        measured = _measure_perplexity(own, loaded, others, trials, documents, max_tokens, threshold)
    report = {
        "checkpoint": loaded.config.name,
        "documents": len(documents),
        "max_tokens": max_tokens,
        "lookups": sum(t.lookups for t in measured.static),
        "paraphrased": sum(t.matched - t.right for t in measured.static),
        "right_nearest": sum(t.right for t in measured.nearest),
        "matched_gated": sum(t.matched for t in measured.gated),
        "right_gated": sum(t.right for t in measured.gated),
        "indexes": {
            name: {
                "spec": one.spec,
                "keys": one.num_keys,
                "right": sum(t.right for t in measured.indexes[name]),
            }
            for name, one in trials.items()
        },
        "opening_probability": opening_probabilities(measured.static),
        "perplexity": perplexities(measured.sums(), len(documents)),
    }
    print_report(report)


def _read(file: Path, limit: int | None) -> list[AnnotatedDocument]:
    parsed = list(read_annotated(file))
    documents = [p.document for p in parsed if p.document is not None]
    if len(documents) < len(parsed):
        note(f"{len(parsed) - len(documents)} lines of {file.name} are no documents and were passed over.")
    if not documents:
        raise typer.BadParameter(
            f"it has no document; name another file than {file}.", param_hint="--annotated"
        )
    return documents[:limit]


def _measure_perplexity(
    own: Searcher,
    checkpoint: Checkpoint,
    others: Sequence[Checkpoint],
    trials: Mapping[str, TrialIndex],
    documents: Sequence[AnnotatedDocument],
    max_tokens: int,
    threshold: float | None,
) -> DocumentSums:
    checkpoint_id = checkpoint.checkpoint_id
    finds = [NearestValue(own, checkpoint_id, at) for at in (-1, threshold)]
    finds += [NearestValue(one.lookups, checkpoint_id, -1) for one in trials.values()]
    beside: dict[str, tuple[list[TextTally], list[TextTally]]] = {
        other.config.name: ([], []) for other in others
    }
    found = DocumentSums([], [], [], [], beside, {name: [] for name in trials})
    looked_up = (found.nearest, found.gated, *found.indexes.values())
    together = 1 if checkpoint.lm.device.type == "cpu" else _TOGETHER
    with counting("Reading", len(documents)) as done:
        for start in range(0, len(documents), together):
            some = documents[start : start + together]
            for readings in dynamic_readings(checkpoint, some, finds, max_tokens=max_tokens):
                for tallies, tally in zip(looked_up, readings, strict=True):
                    tallies.append(tally)
            done(len(some))
    for document in documents:
        found.static.append(static_tally(checkpoint, document, max_tokens=max_tokens))
        found.own_spans.append(static_tally(checkpoint, document, max_tokens=max_tokens, own_spans=True))
        for other in others:
            both = plain_tallies(other, checkpoint.tokenizer, document, max_tokens=max_tokens)
            for tallies, tally in zip(found.beside[other.config.name], both, strict=True):
                tallies.append(tally)
    return found


def _trials(kb: KnowledgeBase, kinds: Sequence[IndexKind], unrelated: Sequence[str]) -> dict[str, TrialIndex]:
    """Give the indexes to measure, by the name of their figure."""
    made = {}
    for kind in dict.fromkeys(kinds):
        note(f"Building an index, {kind}")
        made[str(kind)] = TrialIndex.of(kb, kind, unrelated)
        if unrelated:
            made[f"{kind}, grown"] = TrialIndex.of(kb, kind)
    return made


# Looks up in a trial index of another kind than the active one, to measure what compressing keys costs.
#
# The trial index is built in memory from keys of the active keyset, with or without those of some corpora,
# and is never saved. Its lookups work as usual: candidates come from the index, and their exact scores,
# values and liveness from the database. With a kind that ends in "-first", the only candidate is the one that
# the index ranks first, as in the paper.

# How many numbers of a key one byte of its code stands for; 0: keys are not compressed. With "bits" a bit stands for
# each number, as in the index that wide keys get by default.
KINDS = {"exact": 0, "bits": 8, "pq4": 4, "pq10": 10, "pq4-first": 4, "pq10-first": 10}
AS_FOUND = "-first"


class FirstFound(KeyIndex):
    """An index that fetches no more than k candidates, in the order of their compressed keys."""

    def over_fetch(self, k: int) -> int:
        return k


def spec_of(kind: str, num_keys: int, dim: int) -> str:
    """Give the Faiss factory string of a kind: exact, a bit for each number, or the paper's with d/4 or d/10 bytes."""
    if (share := KINDS[kind]) == 0:
        return FLAT_SPEC
    if kind == IndexKind.bits:
        return bits_spec(num_keys, dim)
    return coded_spec(num_keys, dim, max(1, dim // share))


@dataclass(frozen=True, slots=True)
class TrialIndex:
    """A trial index and the lookups in it. `spec` is its factory string; it holds `num_keys` keys."""

    lookups: Searcher
    spec: str
    num_keys: int

    @classmethod
    def of(
        cls, kb: KnowledgeBase, kind: str, without: Sequence[str] = (), *, kinds: Sequence[str] = key_kinds
    ) -> Self:
        """Build an index of this kind over the active keyset's keys, without those of the corpora in `without`.

        Only keys of these kinds are in it. Raises `CorpusNotFound`, and `InvalidValue` where there are too few
        keys to train it.
        """
        with kb.sessions() as session:
            for corpus in without:
                reading.require_corpus(session, corpus)
            head = keysets.active_head(session)
            seq = audit.head_seq(session)  # read before the keys
            left_out = _keys_left_out(session, head.keyset_id, without, kinds)
            num_keys = sum(len(ids) for ids, _ in _kept_keys(session, head, left_out))
            if num_keys == 0:
                raise InvalidValue("index", "there is no key to put into it")
            made = FirstFound if kind.endswith(AS_FOUND) else KeyIndex
            index = made(head.dim, spec_of(kind, num_keys, head.dim))
            if num_keys < index.train_min:
                raise InvalidValue(
                    "index", f"{kind} is trained on {index.train_min} keys, there are {num_keys}"
                )
            if index.train_min:
                every = max(1, num_keys // index.train_size)
                index.train(
                    np.concatenate([keys[::every] for _, keys in _kept_keys(session, head, left_out)])
                )
            for ids, keys in _kept_keys(session, head, left_out):
                index.add(ids, keys)
        replica = Replica(head.keyset_id, head.checkpoint_id, head.dim, FaissCandidates(index, seq))
        return cls(kb.searcher.of_keyset(head.keyset_id, replica), index.spec, num_keys)


def _keys_left_out(session: Any, keyset_id: int, corpora: Sequence[str], kinds: Sequence[str]) -> Ids:
    """Give the ids of these corpora's keys, and of those that are of none of these kinds, ascending."""
    statement = (
        select(FactKeyRow.id)
        .join(FactRow, FactRow.id == FactKeyRow.fact_id)
        .join(DocumentRow, DocumentRow.id == FactRow.document_id, isouter=True)
        .where(
            FactKeyRow.keyset_id == keyset_id,
            or_(DocumentRow.corpus.in_(corpora), FactKeyRow.kind.not_in(kinds)),
        )
    )
    is_partial = bool(corpora) or set(kinds) < set(key_kinds)
    return np.sort(np.array(session.scalars(statement).all() if is_partial else [], dtype=np.int64))


def _kept_keys(session: Any, head: KeysetHead, left_out: Ids) -> Iterator[tuple[Ids, Vectors]]:
    for ids, keys in indexed_keys(session, head.keyset_id, head.dim):
        kept = ~np.isin(ids, left_out)
        yield ids[kept], keys[kept]
