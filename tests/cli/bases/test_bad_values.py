"""Ids beyond 64 bits, negative ones, lone surrogates and NULs: every verb of every noun refuses them in our words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colmlm.api.client.client import Client
from colmlm.api.client.connection import Connection
from colmlm.cli.bases.local_base import LocalBase
from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.errors import KBError
from colmlm.kb.evidence.generation import GenerationRequest
from colmlm.kb.evidence.records import NewFeedback, NewOutput, QuotedStretch, Splice
from colmlm.kb.facts.records import FactEdit, ReviewVerdict
from colmlm.kb.jobs.kinds import AskQuestions
from colmlm.kb.questions.records import DraftQuestion
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from tests.cli.bases.test_resources import HERE, OPTIONS, OPTIONS_HERE_ONLY, OURS, shared, verbs
from tests.cli.elsewhere import There
from tests.fakes import FakeEncoder
from tests.kb.corpora import PERU
from tests.kb.full import fill

NUMBERS = (2**63, 2**64, 1 << 70, -1, -(2**63) - 1, -(1 << 70))
COMPOSED = ("decoder", "forgetting", "erasures")  # of several rooms of ours, and of the model
TEXTS = ("a\ud800b", "a\x00b")


def splices(number: int) -> tuple[Splice, ...]:
    return (Splice(0, 1, "hit", number, 1, 0.9),)


def outputs() -> Iterator[NewOutput]:
    for number in NUMBERS:
        yield NewOutput("p", "o", "fake", "auto", number, ())
        yield NewOutput("p", "o", "fake", "auto", 1, splices(number))
        yield NewOutput("p", "o", "fake", "auto", 1, (Splice(0, 1, "hit", 1, number, 0.9),))
        yield NewOutput("p", "o", "fake", "read", 1, (), QuotedStretch(number, 0, 1))
    for said in TEXTS:
        yield NewOutput(said, "o", "fake", "auto", 1, ())
        yield NewOutput("p", said, "fake", "auto", 1, ())
        yield NewOutput("p", "o", said, "auto", 1, ())


def selectors() -> Iterator[Selector]:
    for number in NUMBERS:
        yield Selector(fact_ids=(number,))
        yield Selector(document=str(number))
    for part in ("document", "corpus", "uri", "uri_prefix", "text", "question", "licence"):
        yield Selector(**{part: "a\ud800b"})  # a NUL is refused where the selector is made


def requests() -> Iterator[GenerationRequest]:
    for number in NUMBERS:
        yield GenerationRequest(prompt="x", max_tokens=1, min_seq=number)
        yield GenerationRequest(prompt="x", max_tokens=1, seed=number)
        yield GenerationRequest(prompt=(number,), max_tokens=1)
    for said in TEXTS:
        yield GenerationRequest(prompt=said, max_tokens=1)
        yield GenerationRequest(prompt="x", max_tokens=1, mode=said)
        yield GenerationRequest(prompt="x", max_tokens=1, stop=(said,))
        yield GenerationRequest(prompt="x", max_tokens=1, on_miss=said)
        yield GenerationRequest(prompt="x", max_tokens=1, ranking=said)


# By the annotation of a parameter: what is good, and what is not.
SAMPLES: dict[str, tuple[Any, list[Any]]] = {
    "int": (1, list(NUMBERS)),
    "str": ("x", list(TEXTS)),
    "float": (0.5, []),
    "bool": (False, []),
    "Sequence[int]": ([1], [[number] for number in NUMBERS]),
    "Sequence[str]": (["x"], [[said] for said in TEXTS]),
    "Collection[str]": (["x"], [[said] for said in TEXTS]),
    "RetentionAction": ("delete", list(TEXTS)),
    "RetentionStart": ("seen", list(TEXTS)),
    "Marking": (
        {"text": "x"},
        [{"text": said} for said in TEXTS] + [{"start": number, "end": number + 1} for number in NUMBERS],
    ),
    "Sequence[FactEdit]": (
        [FactEdit(1, "x")],
        [[FactEdit(number, "x")] for number in NUMBERS]
        + [[FactEdit(1, "x", version=number)] for number in NUMBERS]
        + [[FactEdit(1, said, said)] for said in TEXTS],
    ),
    "Sequence[ReviewVerdict]": (
        [ReviewVerdict(1, "accept", 1)],
        [[ReviewVerdict(number, "accept", 1)] for number in NUMBERS]
        + [[ReviewVerdict(1, "accept", number)] for number in NUMBERS],
    ),
    "Sequence[DraftQuestion]": (
        [DraftQuestion("x", ("y",))],
        [[DraftQuestion(said)] for said in TEXTS] + [[DraftQuestion("x", (said,))] for said in TEXTS],
    ),
    "NewFeedback": (
        NewFeedback("down"),
        [NewFeedback("down", said) for said in TEXTS] + [NewFeedback("down", None, said) for said in TEXTS],
    ),
    "NewOutput": (NewOutput("p", "o", "fake", "auto", 1, ()), list(outputs())),
    "GenerationRequest": (GenerationRequest(prompt="x", max_tokens=1), list(requests())),
    "Selector": (Selector(fact_ids=(1,)), list(selectors())),
    "Mentioned": ("none", list(TEXTS)),
    "bytes": (b"{}", [b"\xff", b"\x00", b"a\xed\xa0\x80b", b""]),
    "Iterable[Parsed]": ([Parsed(PERU)], []),
    "Encoder": (FakeEncoder(), []),
    "npt.NDArray[Any]": (np.zeros((1, 64), np.float32), []),
    "Kind": ("contradictions", []),
    "ProvForm": ("prov", []),
    "Work": (AskQuestions(question_set="x"), []),
}


def parameters(verb: Callable[..., Any]) -> Iterator[tuple[str, str, bool]]:
    """Gives name and annotation of each parameter of a verb, options too, and whether it has to be given."""
    for one in inspect.signature(verb).parameters.values():
        said = str(one.annotation)
        if said.startswith("Unpack["):
            options = OPTIONS[said[len("Unpack[") : -1]]
            for name, kind in options.__annotations__.items():
                yield name, getattr(kind, "__forward_arg__", str(kind)), name in options.__required_keys__
        elif one.name != "self":
            yield one.name, said, one.default is inspect.Parameter.empty


def can_be_called(verb: Callable[..., Any]) -> bool:
    return all(not needed or kind.removesuffix(" | None") in SAMPLES for _, kind, needed in parameters(verb))


def calls(verb: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Gives the arguments of calls in each of which one value is bad."""
    given = list(parameters(verb))
    good = {
        name: None if kind.endswith(" | None") else SAMPLES[kind][0] for name, kind, needed in given if needed
    }
    for name, kind, _ in given:
        for bad in SAMPLES.get(kind.removesuffix(" | None"), (None, []))[1]:
            yield {**good, name: bad}


def strays(
    verb: Callable[..., Any], bound: Callable[..., Any], unknown: Collection[str] = ()
) -> Iterator[str]:
    """Gives the calls of a verb, without `unknown` options, that end in another error than one of the tree."""
    for arguments in (said for said in calls(verb) if said.keys().isdisjoint(unknown)):
        try:
            found = bound(**arguments)
            if isinstance(found, Iterator):
                list(found)
        except KBError as error:
            assert str(error).encode("utf-8", "backslashreplace")
        except Exception as error:
            yield f"{verb.__name__}({arguments!r}): {error!r}"[:400]


def test_no_verb_lets_a_value_that_cannot_be_stored_reach_the_database_unrefused(
    kb: KnowledgeBase, subtests: pytest.Subtests
) -> None:
    fill(kb, FakeEncoder())
    for name in OURS:
        with subtests.test(name=name):
            noun = {"tokens": "access"}.get(name, name)
            ours = verbs(OURS[name])
            walked = [verb for verb in shared(name) if verb in ours]
            assert walked or name == "upkeep"
            found = [
                stray
                for verb in walked
                for stray in strays(
                    getattr(OURS[name], verb), getattr(getattr(kb, noun, None) or OURS[name](kb), verb)
                )
            ]
            assert not found, "\n".join(found)


def test_nor_does_a_verb_that_is_composed_on_this_machine(
    home: Path, kb: KnowledgeBase, subtests: pytest.Subtests
) -> None:
    with Runtime.from_environment() as runtime:
        base = LocalBase(runtime)
        kb.corpora.ingest([Parsed(PERU)], "atlas", actor="tester", reason="set up")
        kb.keysets.rekey(runtime.encoder)
        base.forgetting.plan(Selector(fact_ids=(1,)), model=False, sample=1, actor="tester", reason="set up")
        for name in COMPOSED:
            with subtests.test(name=name):
                noun = getattr(base, name)
                found = [
                    stray
                    for verb in shared(name)
                    for stray in strays(getattr(HERE[name], verb), getattr(noun, verb))
                ]
                assert not found, "\n".join(found)


def test_nor_does_a_verb_over_http(there: There, subtests: pytest.Subtests) -> None:
    with Client(Connection(there.address, there.tokens["admin"].read_text().strip())) as client:
        for name in (*OURS, *COMPOSED):
            if name == "upkeep":
                continue
            with subtests.test(name=name):
                noun = getattr(client, name)
                found = [
                    stray
                    for verb in shared(name)
                    if can_be_called(getattr(HERE[name], verb))
                    for stray in strays(
                        getattr(HERE[name], verb),
                        getattr(noun, verb),
                        OPTIONS_HERE_ONLY.get(f"{name}.{verb}", ()),
                    )
                ]
                assert not found, "\n".join(found)
