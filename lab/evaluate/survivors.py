"""`colmlm-lab evaluate survivors`: measures which planted texts a plan to forget lists, and which it should not."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from colmlm.cli.composition.keying import key_everything
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, examples
from colmlm.cli.output import counting
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.corpus.squad import read_squad
from colmlm.kb.facts.reading import document_text
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.records import ForgetPlan, Verification
from colmlm.kb.removal.selector import Selector
from colmlm.kb.texts.alike import compare_wording
from colmlm.kb.texts.sentences import sentence_ends
from colmlm.lab.bench.machine import print_report
from colmlm.lab.methods.own_base import own_base
from colmlm.model.evaluate.answers import share
from colmlm.model.text.passages import statement_of

EXAMPLES = examples("colmlm-lab evaluate survivors --squad dev.jsonl --documents 300 --facts 100 --json")
CORPUS = "squad"


def survivors(
    squad: Annotated[
        Path,
        typer.Option(
            "--squad", exists=True, dir_okay=False, help="Texts with people's questions, in SQuAD's form."
        ),
    ],
    documents: Annotated[
        int, typer.Option("--documents", min=1, help="How many paragraphs, drawn by the seed.")
    ] = 300,
    facts: Annotated[
        int, typer.Option("--facts", min=1, help="How many of their facts are forgotten, all together.")
    ] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws paragraphs, facts and texts.")] = 0,
    checkpoint: CheckpointPath = None,
) -> None:
    """Plant texts that tell facts in other words, or only seem to, and plan to forget the facts.

    The facts are those that people marked, in a knowledge base of its own. For each that is forgotten a text is planted
    in another document: one that tells it by its value, by another wording of the value, and for control one on another
    subject, with that subject's value of the same sort or with this value.
    """
    with own_base(checkpoint) as runtime:
        parsed = list(read_squad(squad))
        random.Random(seed).shuffle(parsed)
        runtime.kb.corpora.ingest(parsed[:documents], CORPUS, actor=ACTOR, reason=REASON)
        key_everything(runtime, kinds="context,question")
        audit = SurvivorAudit(runtime, CORPUS, facts, seed)
        if len(audit.others) < facts:
            cause = f"there are too few facts with a question for {facts}; give fewer, or raise --documents."
            raise typer.BadParameter(cause, param_hint="--facts")
        with counting("Planning", len(KINDS)) as done:
            measured = audit.measure(done)
        after = audit.measure_after()
    report: dict[str, Any] = {"facts": facts, "documents": documents}
    report |= {"survivors": measured, "after": after}
    print_report(report)


# Measures what a plan to forget finds in texts that were planted, which tell a forgotten fact or only seem
# to.

ACTOR, REASON = "evaluate survivors", "colmlm-lab evaluate survivors"


class SurvivorAudit:
    """Plants texts beside a sample of facts, and plans to forget the sample."""

    def __init__(self, runtime: Runtime, corpus: str, facts: int, seed: int) -> None:
        self.kb, self.encoder = runtime.kb, runtime.encoder
        asked = [fact for fact in self.kb.facts.every(corpus) if fact.question and fact.source]
        self.random = random.Random(seed)
        self.random.shuffle(asked)
        self.sample = asked[:facts]
        self.others = controls(self.sample, asked[facts:], self.random)
        most = 2 * max(1, len(self.sample))  # also where others are taken along
        self.forgetting = Forgetting(
            self.kb, runtime.encoder, runtime.reader, runtime.sentence_encoder, sample=most
        )
        with self.kb.sessions() as session:
            sources = [fact.source for fact in (*self.sample, *self.others) if fact.source]
            documents = {source.document_id for source in sources}
            self.texts = {number: document_text(session, number) for number in documents}

    def measure(self, on_kind: Callable[[int], None]) -> list[dict[str, Any]]:
        """Measure every kind by itself; texts of another are deleted before."""
        measured = []
        for kind in KINDS:
            with self._plant_texts(kind) as owners:
                measured.append(_survival(kind, owners, self._plan("only-list")))
            on_kind(1)
        return measured

    def measure_after(self) -> dict[str, Any]:
        """Forget the sample with what says the same, verifies that, and undoes it."""
        plan = self._plan("include")
        self.forgetting.apply(plan.run_id, actor=ACTOR, reason=REASON)
        found: Verification = self.forgetting.verify(plan.run_id)
        self.forgetting.restore(plan.run_id, actor=ACTOR, reason=REASON)
        answered = len({one.asked_fact_id for one in found.survivors})
        return {"level": found.level, "probes": dict(found.probes), "answered": answered}

    def _plan(self, equivalents: str) -> ForgetPlan:
        selector = Selector(fact_ids=tuple(fact.fact_id for fact in self.sample))
        return self.forgetting.plan(
            selector, actor=ACTOR, reason=REASON, equivalents=equivalents, policy="abstain"
        )

    @contextmanager
    def _plant_texts(self, kind: str) -> Iterator[dict[int, int]]:
        """Plant texts with keys; give for each of their facts the fact that it was planted for."""
        made = [
            planted_text(kind, number, fact, other, self.texts, self.random)
            for number, (fact, other) in enumerate(zip(self.sample, self.others, strict=True))
        ]
        owners = self._ingest_with_keys(kind, made)
        yield owners
        self.kb.facts.delete(list(owners), actor=ACTOR, reason=REASON)

    def _ingest_with_keys(self, kind: str, made: Sequence[PlantedText]) -> dict[int, int]:
        documents = [one.document for one in made]
        self.kb.corpora.ingest([Parsed(one) for one in documents], kind, actor=ACTOR, reason=REASON)
        ids = {fact.source.external_id: fact.fact_id for fact in self.kb.facts.every(kind) if fact.source}
        ordered = [ids[document.external_id] for document in documents]
        self.kb.keysets.store_keys(
            self.kb.keysets.active().keyset_id,
            np.array(ordered, dtype=np.int64),
            np.concatenate(self.encoder.encode_documents(documents)),
            "context",
            actor=ACTOR,
            reason=REASON,
        )
        return {number: one.fact.fact_id for number, one in zip(ordered, made, strict=True)}


def _survival(kind: str, owners: dict[int, int], plan: ForgetPlan) -> dict[str, Any]:
    """Give the figures of the texts of one kind, one for each forgotten fact.

    `listed` is the share that the plan lists for their fact, `taken` the share that it would take along, and `says`
    counts how the listed ones say the value. `unplanted` counts the places of other texts that it lists.
    """
    says: Counter[str] = Counter()
    listed: set[int] = set()
    unplanted = 0
    for one in plan.survivors:
        ours = {fact_id for fact_id in one.fact_ids if owners.get(fact_id) == one.asked_fact_id}
        unplanted += not any(fact_id in owners for fact_id in one.fact_ids)
        says.update([one.says] * len(ours - listed))
        listed |= ours
    taken = set(plan.equivalents)
    return {
        "kind": kind,
        "planted": len(owners),
        "listed": share([fact_id in listed for fact_id in owners]),
        "taken": share([fact_id in taken for fact_id in owners]),
        "says": dict(says),
        "unplanted": unplanted,
    }


# Texts that tell a fact in another document, as templates write them, and texts that only seem to.
#
# A text says the value as the fact does, or in another wording. What only seems to tell it says another subject's
# value of the same sort, or the fact's value of another subject.

KINDS = ("text", "reworded text", "other subject", "other subject, same value")
TELLING = KINDS[:2]

_FRAMES = (
    'A quiz put it like this: "{question}" The solution was {value}.',
    "Somebody wanted to know: {question} The librarian found {value}.",
    "{value} is what the old card says where it is asked: {question}",
)
_LEADS = ("As others have written, {}", "A later account repeats this. {}", "{} So the notes have it.")
_IN_ORDER = """
    January February March April May June July August September October November December
    one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
    nineteen twenty thirty forty fifty sixty seventy eighty ninety
"""
_ALL_WORDS = _IN_ORDER.split()
_MONTHS, _SMALL, _TENS = _ALL_WORDS[:12], ["zero", *_ALL_WORDS[12:31]], _ALL_WORDS[31:]
_MONTH_FIRST = re.compile(rf"(?P<m>{'|'.join(_MONTHS)}) (?P<d>\d{{1,2}}),? (?P<y>\d{{4}})")
_DAY_FIRST = re.compile(rf"(?P<d>\d{{1,2}}) (?P<m>{'|'.join(_MONTHS)}),? (?P<y>\d{{4}})")
_YEAR, _COUNT = re.compile(r"1[1-9]\d\d"), re.compile(r"\d{1,3}(?:,\d{3})+|\d+")
_NAME = re.compile(r"[A-Z][\w'’-]+(?: [A-Z][\w'’-]+)+")


@dataclass(frozen=True, slots=True)
class PlantedText:
    """A text to plant: the fact that it is planted for, and the document with its one fact."""

    fact: FactRecord
    document: AnnotatedDocument


def sort_of(value: str) -> str:
    """Give the sort of a value, by which a control is as like it as can be."""
    if _MONTH_FIRST.search(value) or _DAY_FIRST.search(value):
        return "date"
    if any(character.isdigit() for character in value):
        return "year" if _YEAR.fullmatch(value) else "number"
    return "name" if _NAME.fullmatch(value) else "words"


def reword_value(value: str, rng: random.Random) -> str:
    """Give another wording of a value, by what people write and not by what a program may know."""
    if date := _MONTH_FIRST.fullmatch(value) or _DAY_FIRST.fullmatch(value):
        month, day, year = date["m"], int(date["d"]), date["y"]
        forms = [
            f"{day} {month} {year}",
            f"{month} {day}, {year}",
            f"{day}.{1 + _MONTHS.index(month)}.{year}",
        ]
        forms.append(f"the {_ordinal(day)} day of {month} in {year}")
    elif _YEAR.fullmatch(value):
        forms = [f"the year {value}", f"{_small(int(value[:2]))} {_small(int(value[2:]))}", f"{value} or so"]
    elif _COUNT.fullmatch(value):
        number = int(value.replace(",", ""))
        forms = [f"{number:,}", str(number), f"some {value}", f"exactly {value}"]
        forms += [_small(number)] if number < 100 else []
    elif _NAME.fullmatch(value):
        words = value.split()
        forms = [words[-1], f"{words[0][0]}. {words[-1]}", f"{words[0]} R. {' '.join(words[1:])}"]
        forms.append("".join(word[0] for word in words) if len(words) > 2 else f"{words[-1]}, {words[0]}")
    else:
        forms = [f"what is called {value}", f"{value} as such", f"{value}, and nothing else"]
    other = [form for form in forms if form != value]
    return rng.choice(other)


def _ordinal(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10 * (number // 10 != 1), 'th') }"


def _small(number: int) -> str:
    if number < 20:
        return _SMALL[number]
    tens = _TENS[number // 10 - 2]
    return tens if number % 10 == 0 else f"{tens}-{_SMALL[number % 10]}"


def planted_text(
    kind: str, number: int, fact: FactRecord, other: FactRecord, texts: Mapping[int, str], rng: random.Random
) -> PlantedText:
    """Write a text of a kind for a fact; `other` is a fact of another subject, and `texts` are those of documents.

    A text is the statement that the question makes where rules make one, the fact's own sentence in another document,
    or the question with its value in a frame.
    """
    told = fact if kind in TELLING else other
    value = reword_value(fact.value, rng) if kind == "reworded text" else told.value
    if kind == "other subject, same value":
        value = fact.value
    before, after = rng.choice(_sides(told, texts, rng))
    question = f"What does note {number} say about {_subject(told)}?"
    start, end = len(before), len(before) + len(value)
    span = FactSpan(start, end, value, question, value)
    title = told.source.title if told.source else None
    return PlantedText(
        fact, AnnotatedDocument(f"{kind} {number}", before + value + after, (span,), title=title)
    )


def _sides(fact: FactRecord, texts: Mapping[int, str], rng: random.Random) -> list[tuple[str, str]]:
    """Give what a text may say before and after the value."""
    question, sides = fact.question or "", []
    if (said := statement_of(question)) is not None:
        sides.append((f"{said[:1].upper()}{said[1:]} ", "."))
    frame = rng.choice(_FRAMES).replace("{question}", question)
    before, _, after = frame.partition("{value}")
    sides.append((before, after))
    if fact.source is not None:
        text = texts[fact.source.document_id]
        start, end = next((start, end) for start, end in _spans(text) if start <= fact.source.start < end)
        lead, _, tail = rng.choice(_LEADS).partition("{}")
        sides.append((lead + text[start : fact.source.start], text[fact.source.end : end].rstrip() + tail))
    return sides


def _spans(text: str) -> list[tuple[int, int]]:
    ends = sentence_ends(text)
    return list(zip([0, *ends], ends, strict=False))


def _subject(fact: FactRecord) -> str:
    return (fact.source.title if fact.source and fact.source.title else fact.question) or "it"


def controls(
    sample: Sequence[FactRecord], others: Sequence[FactRecord], rng: random.Random
) -> list[FactRecord]:
    """Choose a fact of another value for each that has one, of its sort, title and question word as far as it can."""
    chosen = []
    for fact in sample:
        unlike = [one for one in others if compare_wording(fact.value, one.value) is None]
        if unlike:
            chosen.append(max(unlike, key=lambda one: (_likeness(fact, one), rng.random())))
    return chosen


def _likeness(fact: FactRecord, other: FactRecord) -> int:
    words = [(one.question or "").split(" ", 1)[0].casefold() for one in (fact, other)]
    of_sort = sort_of(fact.value) == sort_of(other.value)
    return 4 * of_sort + 2 * (_subject(fact) == _subject(other)) + (words[0] == words[1])
