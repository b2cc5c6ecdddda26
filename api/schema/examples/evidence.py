"""Examples of stored outputs, their traces and feedback on them, and of the change log."""

from __future__ import annotations

from typing import Any

from colmlm.api.routes import attributions, changes, feedback
from colmlm.api.routes.records import OutputMade, SpliceMade
from colmlm.api.schema.examples.small_base import (
    AT,
    CHANGE,
    FACT,
    HASH,
    HEAD,
    PROMPT,
    QUESTION,
    SELECTOR,
    SIGNED,
    TEXT,
    TRACE,
)
from colmlm.api.wire import answers
from colmlm.kb.evidence.outputs import AttributionRecord
from colmlm.kb.evidence.records import (
    FactDifference,
    FactTrace,
    Feedback,
    GenerationRecord,
    ImpactedOutput,
    Use,
    Version,
)
from colmlm.kb.log import chain

_USE = ImpactedOutput(12, 7, 0, PROMPT, " Lima.", 0, 5, 1, 40, AT, "current")
_BREAK = chain.Break(13, ("hash",), 13, HASH, HASH, "made up", HASH, sealed_by=41)
FACT_TRACE = FactTrace(
    FACT,
    TEXT,
    (Version(1, "Lima", 1, None, QUESTION, 3, 23, 27),),
    (CHANGE,),
    (Use(7, 1, 0, 5, AT),),
)

EXAMPLES: tuple[Any, ...] = (
    feedback.GivenFeedback(thumb="down", comment="that is another country's", value="Lima"),
    attributions.Selection(selector=SELECTOR),
    changes.Witnessed(head=SIGNED),
    changes.Sealing(seqs=[13], reason="inserted by hand"),
    OutputMade(
        prompt=PROMPT,
        output=" Lima.",
        checkpoint_id="c0ffee",
        mode="auto",
        seq=40,
        splices=[
            SpliceMade(
                output_start=1,
                output_end=5,
                outcome="hit",
                fact_id=1,
                version=1,
                score=0.91,
                query="AAA8AA==",
            )
        ],
    ),
    CHANGE,
    FACT_TRACE,
    TRACE,
    GenerationRecord(7, PROMPT, " Lima.", "c0ffee", "auto", 40, AT, 1, 1),
    Feedback(7, "down", "that is another country's", "Lima", "ana", None, AT),
    AttributionRecord(7, 0, 0, 5, "hit", " Lima", 12, 1, 3, 0.93, 40, AT),
    answers.FactImpact(fact_id=12, is_live=True, erased_seq=None, items=[_USE], next=None),
    attributions.SelectionImpact(num_facts=1, num_outputs=1, items=[_USE], next=None),
    changes.Changes(head_seq=41, items=[CHANGE], next=None),
    answers.Differences(
        first=12,
        last=41,
        counts={"deleted": 1},
        items=[FactDifference(12, "deleted", "atlas", "Lima", None, False)],
        next=None,
    ),
    changes.Held(held=True, head=HEAD),
    chain.Sealed(41, (_BREAK,)),
)
