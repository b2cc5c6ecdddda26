"""`colmlm-lab evaluate documents`: asks people's questions of raw texts, the whole way from the text to the answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, examples
from colmlm.cli.output import progress
from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.records import SPAN, Answer
from colmlm.kb.lookup.options import KEY, READER
from colmlm.kb.lookup.options import RANKINGS as DECODED_BY
from colmlm.lab.bench.machine import print_report
from colmlm.lab.methods.ablations import RANKINGS, WHOLE, Ablations, Decoding, format_ranking
from colmlm.lab.methods.answer_shares import (
    RawAnswer,
    RawQuestion,
    RawTexts,
    WildAnswer,
    WildQuestion,
    WildTexts,
    answering_as_many,
    ask_all,
    ask_wild,
    coverage,
    draw,
    judge,
    num_answered,
    read_wild,
    report,
    report_shipped,
    tables,
)
from colmlm.lab.methods.generating_baseline import BM25Reading
from colmlm.lab.methods.own_base import NO_KEYS, fill_own_base, own_base, remembering_answers

EXAMPLES = examples(
    "colmlm-lab evaluate documents --squad dev.jsonl --documents 100 --plot curve.png",
    "colmlm-lab evaluate documents --squad dev.jsonl --questions 1000 --base all-of-dev --ablations --json",
    "colmlm-lab evaluate documents --squad dev.jsonl --documents 100 --no-threshold --no-baselines --keys none",
    "colmlm-lab evaluate documents --wild handbook/ --base handbook-base --json",
)


def documents(
    squad: Annotated[
        Path | None,
        typer.Option(
            "--squad", exists=True, dir_okay=False, help="Texts with people's questions, in SQuAD's form."
        ),
    ] = None,
    wild: Annotated[
        Path | None,
        typer.Option(
            "--wild", exists=True, file_okay=False, help="Files of an organisation with questions, instead."
        ),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option("--documents", min=1, help="How many paragraphs, drawn by the seed. Default: all."),
    ] = None,
    questions: Annotated[
        int | None, typer.Option("--questions", min=1, help="How many of their questions. Default: all.")
    ] = None,
    unanswerable: Annotated[
        int, typer.Option("--unanswerable", min=0, help="How many questions of paragraphs that are left out.")
    ] = 200,
    no_threshold: Annotated[
        bool, typer.Option("--no-threshold", help="Count the best answer to every question, however unsure.")
    ] = False,
    spans: Annotated[
        str | None,
        typer.Option(
            "--spans", help="Another threshold of the annotator, or none: an answer need touch no fact."
        ),
    ] = None,
    keys: Annotated[
        str, typer.Option("--keys", help="context, question, both with a comma between them, or none.")
    ] = "context",
    ranking: Annotated[
        str, typer.Option("--ranking", help="What finds the answer: of key, words and reader, with commas.")
    ] = format_ranking(WHOLE),
    mode: Annotated[
        str, typer.Option("--mode", help="read, or paper: the nearest fact by its key alone.")
    ] = "read",
    ablations: Annotated[
        bool, typer.Option("--ablations", help="Also measure the other rankings, and answers of any span.")
    ] = False,
    decoded: Annotated[
        bool,
        typer.Option("--decoded", help="Also ask the decoder, by each ranking of its lookups."),
    ] = False,
    no_baselines: Annotated[
        bool, typer.Option("--no-baselines", help="Only the product, without baselines.")
    ] = False,
    generated: Annotated[
        int,
        typer.Option(
            "--generated", min=0, help="How many questions retrieval-augmented generation is asked."
        ),
    ] = 200,
    generators: Annotated[
        list[Path] | None,
        typer.Option(
            "--generator", exists=True, file_okay=False, help="A checkpoint that generates, too. Repeatable."
        ),
    ] = None,
    checkpoint: CheckpointPath = None,
    base: Annotated[
        Path | None,
        typer.Option(
            "--base", file_okay=False, help="Keep the knowledge base here, and take it again from here."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws paragraphs and questions.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", dir_okay=False, help="Draw right against wrong answers here, as PNG."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", dir_okay=False, help="Write every answer here, as JSON Lines.")
    ] = None,
) -> None:
    """Ask people's questions of raw texts, and compare the answers with the gold ones.

    Facts are marked as `colmlm corpus add` does, and keyed, in a knowledge base of its own. Right is an answer that
    equals or holds a gold one; near, one that a gold one holds. Intervals are of 95 %.
    """
    if (squad is None) == (wild is None):
        raise typer.BadParameter("name one of the two, --squad or --wild.", param_hint="--squad")
    if wild is not None:
        found = wild_report(
            wild, checkpoint, base, spans_of(spans), keys, 0 if no_baselines else generated, out
        )
        print_report(_round_floats(found), only_json="curve")
        return
    assert squad is not None
    if decoded and keys == NO_KEYS:
        raise typer.BadParameter("the decoder's lookups need keys; leave --keys out.", param_hint="--decoded")
    parts, threshold = ranking_of(ranking, keys, mode), spans_of(spans)
    texts = draw(squad, number, questions, unanswerable, seed)
    if not texts.questions:
        raise typer.BadParameter(
            "it has no question with an answer; name another file.", param_hint="--squad"
        )
    with own_base(checkpoint, base) as runtime:
        documents = fill_own_base(runtime, texts.documents, threshold, keys)
        answers = remembering_answers(runtime, keys=keys != NO_KEYS)
        asking = Asking(runtime, answers, texts, seed)
        asked, absent = asking.ask_both("colmlm", way_of(answers, parts, mode, any_span=spans == ANY_SPAN))
        least = -math.inf if no_threshold else threshold_of(runtime, answers, parts)
        found, said = report(asked, absent, least, seed), asked
        if not no_threshold and is_product(answers, parts, mode, any_span=spans == ANY_SPAN):
            said, absent = asking.ask_both(
                "at the shipped thresholds", partial(answers.ask, threshold=least, nearest=0)
            )
            found, least = report_shipped(said, absent, found, seed), 0.0
        found |= coverage(texts, documents)
        if ablations:
            found["ablations"] = asking.ablations()
        if decoded:
            found["decoded"] = asking.measure_decoder()
        found["baselines"] = (
            {} if no_baselines else asking.baselines(said, least, generated, generators or ())
        )
    if out is not None:
        _write(out, said, absent)
    if plot is not None:
        draw_curves({"colmlm": found, **found["baselines"]}, plot)
    print_report(_round_floats(found), only_json="curve")


def _write(path: Path, asked: Sequence[RawAnswer], absent: Sequence[RawAnswer]) -> None:
    with path.open("w", encoding="utf-8") as target:
        for number, one in enumerate((*asked, *absent)):
            row = {
                "answerable": number < len(asked),
                "question": one.question.text,
                "answers": one.question.answers,
                "document": one.question.document,
                "said": one.said,
                "score": round(one.score, 4),
                "outcome": one.outcome,
                "cited": one.cited,
                "grain": one.grain,
            }
            target.write(json.dumps(row, ensure_ascii=False) + "\n")


def _round_floats(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list):
        return [_round_floats(one) for one in value]
    return {name: _round_floats(one) for name, one in value.items()} if isinstance(value, dict) else value


# The parts of the product that `colmlm-lab evaluate documents` asks, from its options.

ANY_SPAN = "none"


def ranking_of(said: str, keys: str, mode: str) -> frozenset[str]:
    """Read what finds an answer. Without keys it is words and the reader, in the paper's mode the key alone."""
    if mode not in ("read", "paper"):
        raise typer.BadParameter(f"there is no mode {mode!r}; choose read or paper.", param_hint="--mode")
    parts = frozenset(said.split(",")) if mode == "read" else frozenset((KEY,))
    if keys == NO_KEYS and mode == "read":
        parts -= {KEY}
    if parts not in RANKINGS or (keys == NO_KEYS and KEY in parts):
        ways = "; ".join(map(format_ranking, RANKINGS))
        without = " with --keys none" if keys == NO_KEYS else ""
        raise typer.BadParameter(
            f"there is no ranking {said!r}{without}; choose one of: {ways}.", param_hint="--ranking"
        )
    return parts


def spans_of(said: str | None) -> float | None:
    """Read a threshold of the annotator (None: its own)."""
    if said is None or said == ANY_SPAN:
        return None
    try:
        threshold = float(said)
    except ValueError:
        threshold = math.nan
    if not 0 < threshold < 1:
        raise typer.BadParameter(
            f"{said!r} is no threshold; give none, or a number between 0 and 1.", param_hint="--spans"
        )
    return threshold


def is_product(answers: Answering, parts: frozenset[str], mode: str, *, any_span: bool) -> bool:
    """Tell whether this way of answering is the product's own, with no part left out."""
    return mode == "read" and parts == (WHOLE if answers.questions else WHOLE - {KEY}) and not any_span


def way_of(answers: Answering, parts: frozenset[str], mode: str, *, any_span: bool) -> Ask:
    """Give what is asked, at the lowest threshold. The product itself is asked wherever it can answer so."""
    if mode == "paper" or parts == {KEY}:
        return partial(answers.nearest_fact, threshold=-1.0)
    if is_product(answers, parts, mode, any_span=any_span):
        return partial(_likeliest, answers)
    return partial(Ablations(answers).answer_by, ranking=parts, any_span=any_span)


def _likeliest(answers: Answering, question: str) -> Answer:
    """Answer whatever the scores; a passage has the highest threshold of spans beside which it is said."""
    found = answers.ask(question, threshold=0.0, nearest=0)
    if found.grain == SPAN:
        return found
    return replace(found, score=answers.reader.confidence.span_threshold_of(found.score))


def threshold_of(runtime: Runtime, answers: Answering, parts: frozenset[str]) -> float:
    """Give the shipped threshold: that of the confidence where a reader reads, else that of the keys."""
    if READER in parts:
        return answers.reader.confidence.threshold
    return runtime.kb.keysets.active().threshold


# Documents of an organisation: the tables of `colmlm-lab evaluate documents --wild`.

Tables = dict[str, dict[str, dict[str, float]]]


def wild_report(
    folder: Path,
    checkpoint: Path | None,
    base: Path | None,
    spans: float | None,
    keys: str,
    generated: int,
    out: Path | None,
) -> dict[str, Any]:
    """Ask the questions of a folder at the shipped thresholds, without any, and by two baselines.

    A baseline answers about as many questions as the product: its threshold is chosen so. With `out` all that the
    product said is written there.
    """
    texts = read_wild(folder)
    with own_base(checkpoint, base) as runtime:
        fill_own_base(runtime, texts.documents, spans, keys)
        answers = remembering_answers(runtime, keys=keys != NO_KEYS)
        ours = _ask_questions("colmlm", texts, lambda question: answers.ask(question, nearest=0))
        found: dict[str, Any] = {"questions": len(ours), "threshold": answers.reader.confidence.threshold}
        found["colmlm"] = tables(ours)
        found["no_threshold"] = tables(
            _ask_questions(
                "no threshold", texts, lambda question: answers.ask(question, nearest=0, threshold=0.0)
            )
        )
        if out is not None:
            lines = (json.dumps(_row(one), ensure_ascii=False) for one in ours)
            out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        if generated:
            found["baselines"] = _baselines(runtime, answers, texts, ours, generated)
    return found


def _ask_questions(way: str, texts: WildTexts, ask: Callable[[str], Answer]) -> list[WildAnswer]:
    with progress(f"Asking: {way}") as advance:
        return ask_wild(texts.questions, ask, texts.documents, advance)


def _baselines(
    runtime: Runtime, answers: Answering, texts: WildTexts, ours: Sequence[WildAnswer], generated: int
) -> dict[str, Tables]:
    from colmlm.lab.methods.generating_baseline import CHATS, Generating, generator

    said = {
        "bm25_reader": _ask_questions(
            "BM25 and the reader", texts, BM25Reading(answers.reader, texts.documents).ask
        )
    }
    asked = [
        RawQuestion(one.question, tuple(one.answers), one.file or "", None)
        for one in texts.questions[:generated]
    ]
    with progress("Asking: generation") as advance:
        told = Generating(generator(runtime, None), texts.documents, CHATS).ask_all(asked, advance)
    for name, those in told.items():
        said[name] = [
            _judge_generated(*one)
            for one in zip(
                texts.questions[:generated], ((o.said, o.score, o.outcome) for o in those), strict=True
            )
        ]
    given = sum(one.outcome != "silent" for one in ours)
    return {
        name: tables(_as_many(those, round(given * len(those) / len(ours)))) for name, those in said.items()
    }


def _judge_generated(question: WildQuestion, told: tuple[str | None, float, str]) -> WildAnswer:
    said, score, found = told
    if said is None:
        judged = "silent"
    elif found == "made_up" and question.is_answerable:
        judged = "made_up"
    else:
        judged = judge(question, said, SPAN, None)
    return WildAnswer(question, said, SPAN, score, judged, None)


def _as_many(answers: Sequence[WildAnswer], given: int) -> list[WildAnswer]:
    """Silence those with the least scores, so that as many are given as wanted."""
    falling = sorted((one.score for one in answers if one.outcome != "silent"), reverse=True)
    least = falling[min(given, len(falling)) - 1] if given and falling else float("inf")
    return [
        one if one.score >= least else WildAnswer(one.question, None, one.grain, one.score, "silent", None)
        for one in answers
    ]


def _row(one: WildAnswer) -> dict[str, Any]:
    return {**asdict(one), "question": one.question.question, "id": one.question.id, "form": one.question.form,
            "kind": one.question.kind, "answers": one.question.answers, "file": one.question.file}  # fmt: skip


# Draws right against wrong answers over the threshold.


def draw_curves(ways: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Write a PNG with a curve for each way of answering, and a point where its threshold is.

    `ways` holds reports of `answer_shares.report`. Wrong is what is neither right nor held by a gold answer.
    """
    from matplotlib.figure import Figure  # the import takes half a second, and no other command needs it

    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.subplots()
    for number, (name, found) in enumerate(ways.items()):
        color = f"C{number}"
        curve = found["curve"][::-1]  # the highest threshold first
        wrong = [0.0, *(one["wrong"] + one["made_up"] for one in curve)]
        axes.plot(
            wrong,
            [0.0, *(one["right"] for one in curve)],
            color=color,
            label=f"{name} ({found['questions']})",
        )
        axes.plot(found["wrong"] + found["made_up"], found["right"], "o", color=color)
    axes.axvline(0.05, color="black", linestyle=":", linewidth=1)
    axes.set_xlabel("wrong or made up, share of the questions")
    axes.set_ylabel("right, share of the questions")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(title="a point: at its threshold", loc="upper right")
    figure.savefig(path, format="png", dpi=120)


# The ways in which raw texts are asked: the product, with a part left out, and the baselines beside it.

Ask = Callable[[str], Answer]


@dataclass(frozen=True, slots=True)
class Asking:
    """Asks all questions of the texts. Baselines answer as many questions as `ours` does at `threshold`."""

    runtime: Runtime
    answers: Answering
    texts: RawTexts
    seed: int

    def ask_both(self, way: str, ask: Ask) -> tuple[list[RawAnswer], list[RawAnswer]]:
        """Ask the questions that the texts answer and those that they don't; give the answers to each."""
        with progress(f"Asking: {way}") as advance:
            asked = ask_all(self.texts.questions, ask, self.texts.documents, advance)
            return asked, ask_all(self.texts.unanswerable, ask, self.texts.documents, advance)

    def ablations(self) -> dict[str, Any]:
        """Measure each way of ranking, and any span of what is read. Thresholds are those of the fitted confidence."""
        without, keyed = Ablations(self.answers), self.answers.questions is not None
        ways = {
            format_ranking(one): partial(without.answer_by, ranking=one)
            for one in RANKINGS
            if keyed or KEY not in one
        }
        whole = WHOLE if keyed else WHOLE - {KEY}
        ways["any span"] = partial(without.answer_by, ranking=whole, any_span=True)
        return {name: self._measure_ablation(name, ask) for name, ask in ways.items()}

    def _measure_ablation(self, name: str, ask: Ask) -> dict[str, Any]:
        threshold = self.answers.reader.confidence.threshold if READER in name or name == "any span" else None
        asked, absent = self.ask_both(name, ask)
        return drop_time(report(asked, absent, -float("inf") if threshold is None else threshold, self.seed))

    def measure_decoder(self) -> dict[str, Any]:
        """Measure what the decoder splices first, by each ranking of its lookups at that one's own threshold."""
        decoding = Decoding(self.runtime)
        return {
            name: report(
                *self.ask_both(f"decoder by {name}", partial(decoding.answer_by, ranking=name)),
                decoding.threshold(name),
                self.seed,
            )
            for name in DECODED_BY
        }

    def baselines(
        self, ours: Sequence[RawAnswer], threshold: float, generated: int, generators: Sequence[Path]
    ) -> dict[str, Any]:
        """Measure others on the same questions, each at the threshold at which it answers as many as we do."""
        ways: dict[str, Ask] = {"reader": BM25Reading(self.answers.reader, self.texts.documents).ask}
        if self.answers.questions is not None:
            ways["paper"] = partial(self.answers.nearest_fact, threshold=-1.0)
        found = {
            name: drop_time(self._beside(ours, threshold, *self.ask_both(name, ask)))
            for name, ask in ways.items()
        }
        if generated:
            found |= {
                name: self._beside(ours, threshold, *both)
                for name, both in self._ask_generators(generated, generators).items()
            }
        return found

    def _ask_generators(
        self, number: int, others: Sequence[Path]
    ) -> dict[str, tuple[list[RawAnswer], list[RawAnswer]]]:
        from colmlm.lab.methods.generating_baseline import AS_THE_PAPER, CHATS, Generating, generator

        questions, absent = self.texts.questions[:number], self.texts.unanswerable[: number // 2]
        found: dict[str, tuple[list[RawAnswer], list[RawAnswer]]] = {}
        for path, forms in ((None, CHATS), *((one, {f"rag_{one.name}": AS_THE_PAPER}) for one in others)):
            writer = Generating(generator(self.runtime, path), self.texts.documents, forms)
            with progress(f"Asking: {', '.join(forms)}") as advance:
                told = writer.ask_all((*questions, *absent), advance)
            found |= {name: (of[: len(questions)], of[len(questions) :]) for name, of in told.items()}
        return found

    def _beside(
        self,
        ours: Sequence[RawAnswer],
        threshold: float,
        asked: Sequence[RawAnswer],
        absent: Sequence[RawAnswer],
    ) -> dict[str, Any]:
        least = -float("inf")
        if threshold > least:
            least = answering_as_many(asked, num_answered(ours[: len(asked)], threshold))
        return report(asked, absent, least, self.seed)


def drop_time(found: dict[str, Any]) -> dict[str, Any]:
    """Remove the time from the report of a way of answering, some of whose work had been done before."""
    return {name: value for name, value in found.items() if name != "milliseconds"}
