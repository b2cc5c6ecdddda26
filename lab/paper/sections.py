"""The sections of the results page: what each shows, and what a reader must know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from colmlm.lab.paper import cost_tables, edit_tables, tables


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page: its table, what a reader must know, and its plot's file."""

    title: str
    remark: str
    render: tables.Render
    plot: str | None = None


def ordered(names: Iterable[str]) -> list[str]:
    """Gives the sections in the page's order: those declared here, then the others."""
    known = list(_SECTIONS)
    return sorted(dict.fromkeys(names), key=lambda name: known.index(name) if name in known else len(known))


def section(name: str) -> Section:
    """Gives the section of that name. One that is not declared here shows all numbers of its steps."""
    return _SECTIONS.get(name) or Section(name.replace("-", " ").capitalize(), "", tables.anything)


_SECTIONS = {
    "perplexity": Section(
        "Perplexity",
        "Facts are hard tokens and are not scored where they are looked up, so a model without lookups is also scored "
        "on the *same tokens*: that is the fair comparison. The paper's models were trained on 3 billion tokens and "
        "look up 240 million facts; what ours finds depends on how much of these articles its knowledge base has.",
        tables.perplexity,
        "perplexity.png",
    ),
    "answers": Section(
        "Questions without their text",
        "Share of questions of which a gold answer stands in the first 100 characters (T-REx: in the first five "
        "tokens). *Covered*: of which a gold answer is the value of some fact in the knowledge base. The paper asks "
        "all of each set, of all of Wikipedia; its PopQA is the long tail of 1,399 questions.",
        tables.answers,
        "answers.png",
    ),
    "understanding": Section(
        "Understanding",
        "Multiple choice by likelihood with five exemplars, means of three seeds, lookups forbidden. The paper does "
        "not say which of the two accuracies it gives.",
        tables.understanding,
    ),
    "judged": Section(
        "Judged answers",
        "SimpleQA and FActScore by a grader that compares strings, since the page is to be repeatable without a paid "
        "model: **not comparable** with the paper's, which gpt-4.1 and gemini-2.5-flash judged (SimpleQA 18.2 for "
        "Co-LMLM-135M, 1.0 without its knowledge base, 0.1 for Standard; FActScore 35.0, 18.0 and 10.4). The kept "
        "answers can be judged by a model, see `colmlm evaluate judge-answers --help`.",
        tables.anything,
    ),
    "recall": Section(
        "Recall of keys", "No table of the paper: whether a question finds its own fact.", tables.recall
    ),
    "tofu": Section(
        "TOFU",
        "Model utility against forget quality: the p-value of a test that the model and one that never saw the forget "
        "set answer alike; above 0.05 they cannot be told apart, which with few examples (forget01 has 40) says "
        "little. The paper draws this and gives no numbers: deletion lies above 0.05 with utility as before, NPO loses "
        "utility (360M models, forget05). *spoken* and *masked* are two readings of answer masking, *none* is of a "
        "model without lookups. Go by *spoken*: *masked* cannot fail, since what is masked costs nothing whether it is "
        "found or not, so *full, masked* is above 0.05 as well as *deleted, masked*. The knowledge base is TOFU alone, "
        "where the paper adds it to Wikipedia's: nothing else can be found once it is deleted. The paper's NPO has 8 "
        "epochs at 6e-5 of all "
        "weights with batches of 32, ours 5 at 3e-4 of an adapter with batches of 8, a rate that was not searched for. "
        "Published models are not ours: they say that the formulas are right.",
        tables.tofu,
        "tofu.png",
    ),
    "deletion": Section(
        "What is left after a deletion",
        "No table of the paper. A leak is a lookup that finds a forgotten fact; *others lost* are other facts, found "
        "before and not after, *neighbours lost* the same of the nearest ones. *Now another value*: of the questions "
        "that got a forgotten fact's value before. *abstain* answers near a forgotten fact with no match, *successor* "
        "with the next fact.",
        edit_tables.deletion,
        "deletion.png",
    ),
    "updates": Section(
        "Updates",
        "No table of the paper. CounterFact's records as facts, given another value, asked for, and set back: efficacy "
        "is the share of prompts that give the new value, locality of neighbours that are answered as before.",
        edit_tables.updates,
    ),
    "growth": Section(
        "Growth",
        "No table of the paper: answers and costs while made-up facts are added.",
        cost_tables.growth,
        "growth.png",
    ),
    "timing": Section("When it looks up", "By bias on the opening token.", tables.anything),
    "cost": Section(
        "Cost of a query",
        "The paper, on a GPU with 360M models: 2.2 ms for Co-LMLM and 28.6 ms for LMLM-Asker.",
        cost_tables.query,
    ),
}
