"""The ways in which raw texts are asked: the product, with a part left out, and the baselines beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.output import progress
from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.records import Answer
from colmlm.kb.lookup.options import RANKINGS as DECODED_BY
from colmlm.lab.methods.ablations import KEY, RANKINGS, READER, WHOLE, Ablations, named
from colmlm.lab.methods.answer_shares import answered, answering_as_many, report
from colmlm.lab.methods.decoded_answers import Decoding
from colmlm.lab.methods.raw_documents import RawAnswer, RawTexts, ask_all
from colmlm.lab.methods.reading_baseline import BM25Reading

Ask = Callable[[str], Answer]


@dataclass(frozen=True, slots=True)
class Asking:
    """Asks all questions of the texts. Baselines answer as many questions as `ours` does at `threshold`."""

    runtime: Runtime
    answers: Answering
    texts: RawTexts
    seed: int

    def all(self, way: str, ask: Ask) -> tuple[list[RawAnswer], list[RawAnswer]]:
        """Asks the questions that the texts answer, and the others."""
        with progress(f"Asking: {way}") as advance:
            asked = ask_all(self.texts.questions, ask, self.texts.documents, advance)
            return asked, ask_all(self.texts.unanswerable, ask, self.texts.documents, advance)

    def ablations(self) -> dict[str, Any]:
        """Measures each way of ranking, and any span of what is read. Thresholds are those of the fitted confidence."""
        without, keyed = Ablations(self.answers), self.answers.questions is not None
        ways = {named(one): partial(without.ask, ranking=one) for one in RANKINGS if keyed or KEY not in one}
        whole = WHOLE if keyed else WHOLE - {KEY}
        ways["any span"] = partial(without.ask, ranking=whole, any_span=True)
        return {name: self._untimed(name, ask) for name, ask in ways.items()}

    def _untimed(self, name: str, ask: Ask) -> dict[str, Any]:
        threshold = self.answers.reader.confidence.threshold if READER in name or name == "any span" else None
        asked, absent = self.all(name, ask)
        return untimed(report(asked, absent, -float("inf") if threshold is None else threshold, self.seed))

    def decoded(self) -> dict[str, Any]:
        """Measures what the decoder splices first, by each ranking of its lookups at that one's own threshold."""
        decoding = Decoding(self.runtime)
        return {
            name: report(
                *self.all(f"decoder by {name}", partial(decoding.ask, ranking=name)),
                decoding.threshold(name),
                self.seed,
            )
            for name in DECODED_BY
        }

    def baselines(
        self, ours: Sequence[RawAnswer], threshold: float, generated: int, generators: Sequence[Path]
    ) -> dict[str, Any]:
        """Measures others on the same questions, each at the threshold at which it answers as many as we do."""
        others: dict[str, Ask] = {"reader": BM25Reading(self.answers.reader, self.texts.documents).ask}
        if self.answers.questions is not None:
            others["paper"] = partial(self.answers.nearest_fact, threshold=-1.0)
        found = {
            name: untimed(self._beside(ours, threshold, *self.all(name, ask))) for name, ask in others.items()
        }
        if generated:
            found |= {
                name: self._beside(ours, threshold, *both)
                for name, both in self._generated(generated, generators).items()
            }
        return found

    def _generated(
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
            least = answering_as_many(asked, answered(ours[: len(asked)], threshold))
        return report(asked, absent, least, self.seed)


def untimed(found: dict[str, Any]) -> dict[str, Any]:
    """Leaves out the time of a way that found a part of its work done."""
    return {name: value for name, value in found.items() if name != "milliseconds"}
