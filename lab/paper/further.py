"""Measurements beyond the paper's main tables: judged answers, understanding, other methods, edits, growth, cost."""

from __future__ import annotations

from functools import partial

from colmlm.lab.paper.declared import PaperStep, Places
from colmlm.lab.paper.sizes import QUICK, VariantSizes, some


def understanding(places: Places, sizes: VariantSizes) -> list[PaperStep]:
    """Declares multiple choice. A script makes its items beforehand: see docs/evaluation.md."""
    if sizes is QUICK:
        return []
    seeds = tuple(word for seed in ("0", "1", "2") for word in ("--seed", seed))
    titles = {
        "csqa": "CSQA",
        "hellaswag": "HellaSwag",
        "piqa": "PIQA",
        "siqa": "SIQA",
        "arc_easy": "ARC-Easy",
    }
    items = {name: places.out / "data" / "nlu" / f"{name}.jsonl" for name in titles}
    shots = {name: file.with_suffix(".shots.jsonl") for name, file in items.items()}
    return [
        PaperStep(
            name=f"understanding-{name}",
            section="understanding",
            label=title,
            data=f"{title}, up to {sizes.questions} items, five exemplars, three seeds",
            shows=f"{title} by likelihood, lookups forbidden",
            argv=(
                "evaluate", "choices", str(items[name]), "--shots", str(shots[name]), *seeds,
                "--limit", str(sizes.questions), "--out", str(places.out / "rows" / f"understanding-{name}.jsonl"),
            ),
            needs=(items[name],),
        )
        for name, title in titles.items()
    ]  # fmt: skip


def judged(places: Places, sizes: VariantSizes) -> list[PaperStep]:
    """Declares SimpleQA's answers and FActScore's biographies, graded by the local judge, which anyone can repeat."""
    if sizes is QUICK:
        return []
    rows, people = places.out / "rows", places.data / "factscore" / "labeled_prompt_entities.txt"
    judge = ("--judge", "local")
    simple_qa = [
        PaperStep(
            name=f"judged-simpleqa-{way}",
            section="judged",
            label=f"SimpleQA, {way}",
            data=f"the answers of qa-simpleqa-{way}, judged by strings",
            shows=f"SimpleQA's figures of what was answered, {way}",
            argv=("evaluate", "judge-answers", str(rows / f"qa-simpleqa-{way}.jsonl"), *judge),
            needs=(places.data / "simpleqa",),
        )
        for way in ("auto", "off", "standard")
    ]
    biographies: list[PaperStep] = []
    for mode in ("auto", "off"):
        written = rows / f"biographies-{mode}.jsonl"
        step = partial(PaperStep, section="judged", preparations=("vital",), needs=(people,))
        biographies += [
            step(
                name=f"biographies-{mode}",
                label=f"biographies, {mode}",
                data="the 183 people of FActScore",
                shows=f"biographies are written, {mode}",
                argv=("evaluate", "biographies", str(people), "--mode", mode, "--out", str(written)),
            ),
            step(
                name=f"judged-biographies-{mode}",
                label=f"FActScore, {mode}",
                data=f"the texts of biographies-{mode}, judged by strings beside the vital articles' leads",
                shows=f"FActScore of the biographies, {mode}",
                argv=("evaluate", "judge-biographies", str(written), "--corpus", "vital", *judge),
            ),
        ]
    return simple_qa + biographies  # fmt: skip


def asker(places: Places, sizes: VariantSizes) -> list[PaperStep]:
    """Declares LMLM-Asker on facts whose questions the annotator wrote, and Co-LMLM on the same knowledge base."""
    if sizes is QUICK:
        return []
    asker = ("--method", "asker", "--checkpoint", str(places.released / "lmlm-asker-135m"))
    squad = ("--corpus", "squad-dev", "--squad", str(places.out / "data" / "squad.jsonl"))
    return [
        PaperStep(
            name=f"qa-asked-{way}",
            section="answers",
            label=f"SQuAD with generated questions, {way}",
            data=f"SQuAD, {sizes.questions} questions drawn; knowledge base of its facts with generated questions",
            shows=f"SQuAD by a model that asks in words, beside Co-LMLM: {way}",
            argv=(
                "evaluate", "qa", *squad, "--limit", str(sizes.questions), *method, "--mode", "forced",
                "--out", str(places.out / "rows" / f"qa-asked-{way}.jsonl"),
            ),
            preparations=("asked",),
        )
        for way, method in {"forced": (), "asker": asker}.items()
    ]  # fmt: skip


def questioned(places: Places, sizes: VariantSizes) -> list[PaperStep]:
    """Declares PopQA again, with a generated question for each fact where possible, and keys of both kinds."""
    if sizes is QUICK:
        return []
    return [
        PaperStep(
            name="qa-popqa-questioned",
            section="answers",
            label="PopQA with generated questions, forced",
            data=f"PopQA, {sizes.questions} questions; knowledge base of its passages, keys of both kinds",
            shows="PopQA by keys of contexts and of generated questions",
            argv=(
                "evaluate", "qa", "--corpus", "popqa",
                "--questions", str(places.out / "data" / "popqa-questions.jsonl"),
                "--limit", str(sizes.questions), "--mode", "forced",
                "--out", str(places.out / "rows" / "qa-popqa-questioned.jsonl"),
            ),
            preparations=("popqa-questioned",),
        )
    ]  # fmt: skip


def updates(places: Places, sizes: VariantSizes) -> list[PaperStep]:
    records = places.data / "editing" / "counterfact_500.json"
    limit = () if sizes.updated is None else ("--limit", str(sizes.updated))
    return [
        PaperStep(
            name="updates",
            section="updates",
            label="CounterFact",
            data=f"CounterFact, {some(sizes.updated, 'records', 'the first')}, their statements in the knowledge base "
            "beside SQuAD's facts",
            shows="whether a fact's new value is given, in other words too, and nothing else changes",
            argv=(
                "evaluate", "updates", "--records", str(records), *limit,
                "--out", str(places.out / "rows" / "updates.jsonl"),
            ),
            preparations=("updates",),
            needs=(records,),
        )
    ]  # fmt: skip


def growth(places: Places, sizes: VariantSizes) -> list[PaperStep]:
    if sizes is QUICK:
        return []
    return [
        PaperStep(
            name="growth",
            section="growth",
            label="SQuAD",
            data="SQuAD dev, 200 questions of 500 facts, with made-up facts to a thousand, ten thousand, ... a million",
            shows="answers, lookups and bytes as the knowledge base grows",
            argv=(
                "evaluate",
                "growth",
                "--corpus",
                "squad-dev",
                "--out",
                str(places.out / "rows" / "growth.jsonl"),
            ),
            preparations=("squad",),
        )
    ]


def cost(places: Places, sizes: VariantSizes) -> list[PaperStep]:
    squad = places.data / "squad" / "dev.jsonl"
    if sizes is QUICK:
        return []
    return [
        PaperStep(
            name="query-cost",
            section="cost",
            label="what it costs to form a query",
            data="SQuAD dev, at 500 marked facts",
            shows="milliseconds to form a query, of Co-LMLM and of LMLM-Asker, at the same places",
            argv=(
                "bench", "query", "--squad", str(squad), "--asker", str(places.released / "lmlm-asker-135m"),
                "--sites", "500",
            ),
            needs=(squad,),
        )
    ]  # fmt: skip
