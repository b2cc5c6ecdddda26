"""`colmlm-lab evaluate recall`: measures how often a question finds its own fact, by kind of query and of key."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from colmlm.cli.composition.bulk.errands import keying_elsewhere, with_questions
from colmlm.cli.composition.bulk.spreading import Ray, RayWorkers
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import examples
from colmlm.cli.output import counting, note, progress
from colmlm.kb.corpus.format import AnnotatedDocument, read_annotated, to_record
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.lookup.index import KeyIndex
from colmlm.kb.lookup.specs import bits_code_bytes
from colmlm.lab.bench.machine import print_report
from colmlm.lab.evaluate.perplexity import KINDS, IndexKind, spec_of
from colmlm.lab.methods.ablations import shares_found
from colmlm.model.evaluate.answers import share
from colmlm.model.evaluate.recall import (
    AskedFacts,
    Encodes,
    Floats,
    Table,
    WrittenQuestions,
    in_batches,
    num_encodings,
    table,
)
from colmlm.model.lm.checkpoint import WHEEL_BASE

if TYPE_CHECKING:
    from colmlm.model.annotate.annotators import QuestionGenerator


RECALL_EXAMPLES = examples(
    "colmlm-lab evaluate recall --corpus demo --json",
    "colmlm-lab evaluate recall --corpus demo --no-baselines --answers 500",
    "colmlm-lab evaluate recall --corpus squad-dev --no-baselines --decoder-queries",
    "colmlm-lab evaluate recall --corpus squad-dev --no-baselines --ray auto",
    "colmlm-lab evaluate recall --corpus squad-dev --no-baselines --index exact --index bits --num-keys 10000 --json",
    "colmlm-lab evaluate recall --corpus squad-dev --generated asked.jsonl --questions-by runs/questions",
    "colmlm-lab evaluate recall --corpus squad-dev --checkpoint runs/a --checkpoint runs/b --decoder-queries --json",
)


def recall_command(
    corpus: Annotated[str, typer.Option("--corpus", help="The corpus whose facts are asked for.")],
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines/--no-baselines", help="Also all-MiniLM-L6-v2 and the untrained base model."
        ),
    ] = True,
    with_decoder_queries: Annotated[
        bool, typer.Option("--decoder-queries", help="Also ask as the decoder does, at <FACT>.")
    ] = False,
    generated: Annotated[
        Path | None,
        typer.Option(
            "--generated",
            dir_okay=False,
            help="The same documents with questions that an annotator wrote: also keys of these, and of both.",
        ),
    ] = None,
    questions_by: Annotated[
        Path | None,
        typer.Option(
            "--questions-by",
            exists=True,
            file_okay=False,
            help="A question generator that writes what the file of --generated does not have yet.",
        ),
    ] = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(
            "--checkpoint",
            exists=True,
            file_okay=False,
            help="A checkpoint directory; may be repeated, to compare. Default: COLMLM_CHECKPOINT or the released one.",
        ),
    ] = None,
    answers: Annotated[
        int,
        typer.Option(
            "--answers",
            min=0,
            help="Also by words and by the reader, for so many questions, drawn by a seed.",
        ),
    ] = 0,
    index: Annotated[
        list[IndexKind] | None,
        typer.Option("--index", help="Also in such an index of all corpora's keys; may be repeated."),
    ] = None,
    num_keys: Annotated[
        list[int] | None,
        typer.Option(
            "--num-keys", min=1, help="With --index: of so many of these keys; may be repeated. Default: all."
        ),
    ] = None,
    ray: Ray = None,
    ray_workers: RayWorkers = None,
) -> None:
    """Measure recall of question -> fact over all facts of a corpus.

    Facts without a key of the first checkpoint are keyed first. The figures at the top are of that checkpoint, its
    context keys, and human questions at <FACT-q>: a fact's key is read from the text before it. Other keys (of
    generated questions, baselines, further checkpoints) stay in memory. With --index the keys of other corpora, which
    must be there already, are in the way too.
    """
    named = checkpoint or []
    with Runtime.from_environment(checkpoint=named[0] if named else None) as runtime:
        runtime.use_ray(ray, ray_workers)
        runtime.open()
        questions = _load_questions(runtime, corpus, generated, questions_by)
        report = _report(runtime, corpus, named[1:], questions, baselines, with_decoder_queries)
        if answers:
            report["answers"] = _measure_answers(runtime, corpus, answers)
        if index:
            report["indexes"] = _measure_indexes(runtime, corpus, index, num_keys or [])
    print_report(report)


def _report(
    runtime: Runtime,
    corpus: str,
    others: Sequence[Path],
    generated: WrittenQuestions | None,
    baselines: bool,
    as_decoder: bool,
) -> dict[str, Any]:
    started = monotonic()
    kb, encoder = runtime.kb, runtime.encoder
    with progress(f"keys of {corpus}") as update:
        elsewhere = keying_elsewhere(runtime)
        keyset = kb.keysets.rekey(encoder, corpus=corpus, on_facts=update, elsewhere=elsewhere)
    fact_ids, keys_KD = kb.keysets.keys(keyset.keyset_id, corpus=corpus)
    facts = {fact.fact_id: fact for fact in runtime.kb.facts.every(corpus)}
    asked = _asked_facts([facts[int(fact_id)] for fact_id in fact_ids])
    _refuse_empty(asked, generated)
    asking = with_questions(runtime, encoder, keyset.keyset_id, asked.questions)
    own = _measure_recall(encoder.checkpoint.name, asking, asked, keys_KD, generated, as_decoder)
    top = own["question"]["context"]
    report: dict[str, Any] = {
        "corpus": corpus,
        "checkpoint": encoder.checkpoint.name,
        "keyset_id": keyset.keyset_id,
        **asdict(top),
    }
    if as_decoder:
        report["decoder_queries"] = asdict(own["decoder"]["context"])
    report["seconds"] = round(monotonic() - started, 1)
    tables = {encoder.checkpoint.name: own}
    if generated is not None:
        report["generated_questions"] = {
            "facts": sum(question is not None for question in generated.of_facts(asked)),
            "same_as_asked": generated.num_asked(asked),
        }
    documents = list(kb.corpora.export(corpus)) if baselines or others else []
    for name, load in _others(runtime, others, baselines).items():
        started = monotonic()
        measured = _measure_recall(
            name, load(), AskedFacts.of(documents), documents, generated, as_decoder and name != "minilm"
        )
        name = name if name not in tables else f"{name} ({len(tables)})"
        tables[name] = measured
        if name in ("minilm", "untrained"):
            report[name] = asdict(measured["question"]["context"]) | {
                "seconds": round(monotonic() - started, 1)
            }
    return report | {"tables": tables}


def _measure_answers(runtime: Runtime, corpus: str, number: int) -> dict[str, dict[str, Any]]:
    asked = [fact for fact in runtime.kb.facts.every(corpus) if fact.question is not None]
    drawn = random.Random(0).sample(asked, min(number, len(asked)))
    with progress("Asking") as advance:
        found = shares_found(runtime.answering(runtime.reader), drawn, advance)
    return {name: asdict(shares) for name, shares in found.items()}


ASKED_OF_INDEXES = 1000


def _measure_indexes(
    runtime: Runtime, corpus: str, kinds: Sequence[IndexKind], sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """Measure how often a question's fact comes first in indexes of several kinds, at several numbers of keys.

    The same questions are asked everywhere, at most a thousand: as many as the smallest index has keys. Each index
    holds their facts and others at random, of all corpora. `first` is by the index's own order, `rescored` by exact
    scores of the candidates that a lookup asks it for. `bytes_per_key` is the file's size, with what was trained and
    the ids, `code_bytes` that of a key's code alone.
    """
    encoder, rng = runtime.encoder, np.random.default_rng(0)
    keyset = runtime.kb.keysets.rekey(encoder, corpus=corpus)
    fact_ids, keys_KD = runtime.kb.keysets.keys(keyset.keyset_id)
    facts = {fact.fact_id: fact.question for fact in runtime.kb.facts.every(corpus) if fact.question}
    asked = rng.permutation([row for row, one in enumerate(fact_ids.tolist()) if one in facts])
    asked = asked[: min(ASKED_OF_INDEXES, *sizes, len(fact_ids))]
    others = rng.permutation(np.setdiff1d(np.arange(len(fact_ids)), asked))
    with counting("questions of the indexes", len(asked)) as done:
        queries_QD = in_batches(encoder.encode_questions, [facts[int(fact_ids[row])] for row in asked], done)
    measured = []
    for size in sorted({min(size, len(fact_ids)) for size in sizes or [len(fact_ids)]}):
        rows = np.concatenate([asked, others[: size - len(asked)]])
        measured += [_measure_index(kind, keys_KD[rows], queries_QD) for kind in dict.fromkeys(kinds)]
    return measured


def _measure_index(kind: IndexKind, keys_KD: Floats, queries_QD: Floats) -> dict[str, Any]:
    """Measure an index of these keys, the first of which are those that the queries ask for, in order."""
    num_keys, dim = keys_KD.shape
    index = KeyIndex(dim, spec_of(kind, num_keys, dim))
    if num_keys < index.train_min:
        raise typer.BadParameter(
            f"{kind} is trained on {index.train_min} keys, there are {num_keys}; choose more.",
            param_hint="--num-keys",
        )
    if index.train_min:
        index.train(keys_KD[:: max(1, num_keys // index.train_size)])
    index.add(range(num_keys), keys_KD)
    _, found_QC = index.search(queries_QD, max(1, index.over_fetch(1)))
    scores_QC = np.einsum("qd,qcd->qc", queries_QD, keys_KD[found_QC])
    scores_QC[found_QC < 0] = -np.inf
    best_Q = found_QC[np.arange(len(found_QC)), scores_QC.argmax(axis=1)]
    wanted_Q = np.arange(len(queries_QD))
    with tempfile.TemporaryDirectory(prefix="colmlm-index-") as folder:
        index.save(Path(folder), keyset_id=1, applied_seq=0)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    return {
        "index": str(kind),
        "spec": index.spec,
        "keys": num_keys,
        "questions": len(queries_QD),
        "first": asdict(share((found_QC[:, 0] == wanted_Q).tolist())),
        "rescored": asdict(share((best_Q == wanted_Q).tolist())),
        "bytes_per_key": round(size / num_keys, 1),
        "code_bytes": {0: 4 * dim, 8: bits_code_bytes(dim)}.get(KINDS[kind], dim // max(1, KINDS[kind])),
    }


def _asked_facts(facts: Sequence[FactRecord]) -> AskedFacts:
    sources = [fact.source for fact in facts]
    places = [(s.external_id, s.start, s.end) if s else ("", 0, 0) for s in sources]
    return AskedFacts.at_places(places, [fact.value for fact in facts], [fact.question for fact in facts])


def _load_questions(
    runtime: Runtime, corpus: str, file: Path | None, questions_by: Path | None
) -> WrittenQuestions | None:
    """Read the questions of the file, after the generator, if one is named, has added the missing ones."""
    if file is None:
        if questions_by is not None:
            raise typer.BadParameter("name the file to keep the questions in.", param_hint="--generated")
        return None
    if questions_by is not None:
        from colmlm.model.annotate.annotators import QuestionGenerator

        documents = list(runtime.kb.corpora.export(corpus))
        generator = QuestionGenerator.load(questions_by, runtime.settings.home / "models")
        write_generated(generator, documents, file)
    return read_generated(file)


def _refuse_empty(asked: AskedFacts, generated: WrittenQuestions | None) -> None:
    """Refuse, before minutes of encoding, to run without a question, or with generated ones of other documents."""
    if not asked.questions:
        raise typer.BadParameter("it has no fact with a question to ask.", param_hint="--corpus")
    if generated is not None:
        try:
            generated.of_facts(asked)
        except ValueError as error:
            raise typer.BadParameter(f"{error}.", param_hint="--generated") from error


def _others(
    runtime: Runtime, checkpoints: Sequence[Path], baselines: bool
) -> dict[str, Callable[[], Encodes]]:
    """Give the other encoders to measure, by name, as functions that load them when their turn comes."""
    from colmlm.model.lm.checkpoint import base_checkpoint
    from colmlm.model.lm.encoder import KeyEncoder, SentenceEncoder

    cache = runtime.settings.home / "models"
    loads: dict[str, Callable[[], Encodes]] = {
        str(path): partial(runtime.encoder_at, path) for path in checkpoints
    }
    if baselines:
        loads["minilm"] = SentenceEncoder
        loads["untrained"] = lambda: KeyEncoder(base_checkpoint(WHEEL_BASE, cache))
    return loads


def _measure_recall(
    name: str,
    encoder: Encodes,
    asked: AskedFacts,
    contexts: Floats | Sequence[AnnotatedDocument],
    generated: WrittenQuestions | None,
    as_decoder: bool,
) -> Table:
    has_contexts = not isinstance(contexts, Sequence)
    total = num_encodings(asked, has_contexts=has_contexts, generated=generated, as_decoder=as_decoder)
    with counting(f"keys and questions of {name}", total) as done:
        return table(encoder, asked, contexts, generated=generated, as_decoder=as_decoder, done=done)


# Questions that the question generator writes for facts, stored in a file: `colmlm-lab evaluate recall
# --generated`.


def read_generated(file: Path) -> WrittenQuestions:
    """Read the questions of an annotated file."""
    return WrittenQuestions.of(list(_documents(file)))


def write_generated(generator: QuestionGenerator, documents: Sequence[AnnotatedDocument], file: Path) -> None:
    """Append the documents that the file lacks, with generated questions in place of their own.

    The generator is given text and spans, and never an existing question. A run that was stopped can be continued.
    """
    _end_at_a_line(file)
    there = {document.external_id: document.text for document in _documents(file)}
    if clashing := [d.external_id for d in documents if there.get(d.external_id, d.text) != d.text]:
        raise typer.BadParameter(
            f"it has another text of document {clashing[0]}; name another file.", param_hint="--generated"
        )
    missing = [d for d in documents if d.facts and d.external_id not in there]
    if there:
        note(f"{len(there)} documents are in {file} already.")
    from colmlm.model.annotate.annotators import documents_together

    with file.open("a", encoding="utf-8") as target, progress("Asking about documents") as advance:
        together = documents_together(generator.device)
        for start in range(0, len(missing), together):
            for document in _asked_generated(generator, missing[start : start + together]):
                target.write(json.dumps(to_record(document), ensure_ascii=False) + "\n")
            target.flush()
            advance(min(start + together, len(missing)), len(missing))


def _end_at_a_line(file: Path) -> None:
    """Create the file if it is missing, and remove a last line that a kill left incomplete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab+") as target:
        target.seek(0)
        target.truncate(target.read().rfind(b"\n") + 1)


def _asked_generated(
    generator: QuestionGenerator, documents: Sequence[AnnotatedDocument]
) -> Iterator[AnnotatedDocument]:
    from colmlm.model.evaluate.annotators import passage

    found = generator.annotate([passage(document) for document in documents])
    for document, questions in zip(documents, found, strict=True):
        facts = tuple(
            replace(span, question=asked.question if asked else None, answer=asked.answer if asked else None)
            for span, asked in zip(document.facts, questions, strict=True)
        )
        yield replace(document, facts=facts)


def _documents(file: Path) -> Iterator[AnnotatedDocument]:
    return (parsed.document for parsed in read_annotated(file) if parsed.document is not None)
