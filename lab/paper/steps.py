"""Declares the steps of `colmlm evaluate paper`. A new measurement is one more entry here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colmlm.lab.paper.declared import PaperPlan, PaperStep, Places
from colmlm.lab.paper.further import asker, cost, growth, judged, questioned, understanding, updates
from colmlm.lab.paper.knowledge import knowledge
from colmlm.lab.paper.logs import golden, logs_found
from colmlm.lab.paper.sizes import QUICK, VariantSizes, some
from colmlm.lab.paper.unlearning import unlearning

# For each method that answers: its name in the paper's tables, and its options.
_MODES = {
    "auto": ("the model looks up when it wants to", ("--mode", "auto")),
    "forced": ("a lookup before every answer", ("--mode", "forced")),
    "off": ("the same model without its knowledge base", ("--mode", "off")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionSet:
    """Questions with gold answers, the knowledge base they are asked on, and its corpora."""

    name: str
    title: str
    option: str
    path: Path
    knowledge: str
    corpora: tuple[str, ...]


def declared(places: Places, sizes: VariantSizes, checkpoint: Path) -> PaperPlan:
    """Declares all steps and their preparations, in order, the cheap ones first."""
    sets = _question_sets(places, sizes)
    steps = [*golden(places), *_recall(places, sizes), *_timing(places, sizes)]
    steps += [step for one in sets for step in _answers(places, sizes, checkpoint, one)]
    steps += [
        *understanding(places, sizes),
        *judged(places, sizes),
        *asker(places, sizes),
        *questioned(places, sizes),
        *_perplexity(places, sizes),
        *_deletion(places, sizes),
    ]
    steps += [*updates(places, sizes), *growth(places, sizes), *cost(places, sizes)]
    preparations = knowledge(places, sizes)
    if sizes is not QUICK:
        trained, trainings = unlearning(places, checkpoint)
        steps, preparations = steps + trained, preparations + trainings
    steps += logs_found(places, {step.name for step in steps})
    return PaperPlan(tuple(steps), {one.name: one for one in preparations})


def _question_sets(places: Places, sizes: VariantSizes) -> list[QuestionSet]:
    made, data = places.out / "data", places.data
    covered = [
        QuestionSet(
            name="squad", title="SQuAD", option="--squad", path=made / "squad.jsonl", knowledge="squad",
            corpora=("squad-dev",),
        ),
        QuestionSet(
            name="popqa", title="PopQA", option="--questions", path=made / "popqa-questions.jsonl",
            knowledge="popqa", corpora=("popqa", "squad-dev"),
        ),
    ]  # fmt: skip
    if sizes is QUICK:
        return covered
    open_sets = {
        "triviaqa": ("TriviaQA", data / "triviaqa" / "triviaqa_test_random1000.jsonl"),
        "nq": ("NQ-open", data / "nq_open" / "NQ-open.dev.jsonl"),
        "entity": ("EntityQuestions", data / "entity_questions" / "dev"),
        "trex": ("T-REx", data / "lama_trex"),
        "simpleqa": ("SimpleQA, exact match", data / "simpleqa" / "simple_qa_test_set.csv"),
    }
    corpora = ("vital", "popqa", "squad-dev")
    return covered + [
        QuestionSet(
            name=name, title=title, option="--questions", path=path, knowledge="vital", corpora=corpora
        )
        for name, (title, path) in open_sets.items()
    ]


def _answers(places: Places, sizes: VariantSizes, checkpoint: Path, asked: QuestionSet) -> list[PaperStep]:
    standard, rag = str(places.released / "standard-135m"), ("--method", "rag", "--checkpoint")
    ways = {
        **_MODES,
        "standard": ("a model without lookups", ("--method", "standard", "--checkpoint", standard)),
        "rag": ("a model without lookups, with four passages in its prompt", (*rag, standard)),
        "co-lmlm-rag": ("lookups and four passages", (*rag, str(checkpoint), "--mode", "auto")),
    }
    common = ("evaluate", "qa", *(word for corpus in asked.corpora for word in ("--corpus", corpus)))
    common += (asked.option, str(asked.path))
    own = asked.path.is_relative_to(places.data)

    def step(way: str, shows: str, options: tuple[str, ...]) -> PaperStep:
        questions = sizes.with_passages if "rag" in options else sizes.questions
        rows = places.out / "rows" / f"qa-{asked.name}-{way}.jsonl"
        return PaperStep(
            name=f"qa-{asked.name}-{way}",
            section="answers",
            label=f"{asked.title}, {way}",
            data=f"{asked.title}, up to {questions} questions drawn; knowledge base of {' and '.join(asked.corpora)}",
            shows=f"{asked.title}: {shows}",
            argv=(*common, "--limit", str(questions), *options, "--out", str(rows)),
            preparations=(asked.knowledge,),
            needs=(asked.path,) if own else (),
        )

    return [step(way, shows, options) for way, (shows, options) in ways.items()]


def _recall(places: Places, sizes: VariantSizes) -> list[PaperStep]:
    baselines = ("--no-baselines",) if sizes is QUICK else ()
    return [
        PaperStep(
            name="recall-squad",
            section="recall",
            label="SQuAD",
            data=f"SQuAD dev, {some(sizes.paragraphs, 'paragraphs', 'evenly spaced')}",
            shows="how often a question's key finds its own fact",
            argv=("evaluate", "recall", "--corpus", "squad-dev", "--decoder-queries", *baselines),
            preparations=("squad",),
        )
    ]


def _timing(places: Places, sizes: VariantSizes) -> list[PaperStep]:
    """Declares the measurement of lookup timing.

    It reads all of SQuAD train, of which training left 300 paragraphs out.
    """
    squad = places.data / "squad"
    if sizes is QUICK:
        return []
    argv = ("evaluate", "timing", "--squad", str(squad / "train.jsonl"), "--dev", str(squad / "dev.jsonl"))
    return [
        PaperStep(
            name="timing",
            section="timing",
            label="SQuAD",
            data="SQuAD train, 100 of the 300 paragraphs left out; SQuAD dev, the first 100 paragraphs",
            shows="whether the model looks up where it should",
            argv=argv,
            needs=(squad / "train.jsonl", squad / "dev.jsonl"),
        )
    ]


def _perplexity(places: Places, sizes: VariantSizes) -> list[PaperStep]:
    """Declares perplexity on articles whose subjects the knowledge base covers, since others cannot be looked up; then
    on all.
    """
    knowledge = "leads" if sizes is QUICK else "vital"
    beside: tuple[str, ...] = ("--beside", str(places.released / "standard-135m"), "--base")
    if sizes is not QUICK:  # the ablation of the index
        kinds = tuple(word for kind in ("exact", "pq4", "pq10") for word in ("--index", kind))
        beside += (*kinds, "--unrelated", "squad-dev")

    def step(name: str, read: str, articles: str) -> PaperStep:
        marked = places.out / "data" / f"{read}-marked.jsonl"
        return PaperStep(
            name=name,
            section="perplexity",
            label="Simple English Wikipedia",
            data=f"Simple English Wikipedia, {articles}, up to {sizes.max_tokens} tokens each, facts marked by our "
            f"annotator; knowledge base {knowledge}, of leads of Wikipedia",
            shows="how well texts are predicted with lookups and without",
            argv=("evaluate", "perplexity", "--annotated", str(marked), "--max-tokens", str(sizes.max_tokens), *beside),
            preparations=(knowledge, read),
            needs=(places.data / "vital_articles",),
        )  # fmt: skip

    number = some(sizes.articles, "articles", "the first")
    covered = (
        f"{number} of those among the 1,000 kept aside whose subject the knowledge base has an article on"
    )
    steps = [step("perplexity", "covered", covered)]
    return steps if sizes is QUICK else [*steps, step("perplexity-all", "articles", "the 1,000 kept aside")]


def _deletion(places: Places, sizes: VariantSizes) -> list[PaperStep]:
    radii = tuple(word for radius in sizes.radii for word in ("--radius", str(radius)))
    numbers = ("--facts", str(sizes.forgotten), "--others", str(sizes.others))
    return [
        PaperStep(
            name="deletion",
            section="deletion",
            label="SQuAD",
            data=f"SQuAD dev, {some(sizes.paragraphs, 'paragraphs', 'evenly spaced')}; "
            f"{sizes.forgotten} facts forgotten, up to {sizes.others} others looked up",
            shows="what is left of forgotten facts, and what it costs the others",
            argv=("evaluate", "deletion", "--corpus", "squad-dev", *numbers, *radii),
            preparations=("deletion",),
        )
    ]
