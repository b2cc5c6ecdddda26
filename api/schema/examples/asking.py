"""Examples of what is asked: lookups, questions and their answers, kept questions, and misses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from colmlm.api.routes import misses, questions
from colmlm.api.schema.examples.small_base import AT, HASH, PROMPT, QUESTION, SAID, SOURCE, TEXT
from colmlm.api.wire import answers
from colmlm.api.wire.answers import EncodedTexts, LookupAnswer, LookupAnswers
from colmlm.api.wire.requests import (
    DocumentToEncode,
    LookupRequest,
    NewGeneration,
    QuestionRequest,
    SpanToEncode,
    TextsToEncode,
)
from colmlm.kb.answers.records import (
    Answer,
    AnswerCalibration,
    AnswerShares,
    AnswerThreshold,
    MeasuredAnswers,
    NearbyPassage,
)
from colmlm.kb.lookup.records import Hit, LookupSpace
from colmlm.kb.misses.records import AskedAgain, MissDetails, MissedQuestion, MissGroup, NearFact, Solving
from colmlm.kb.questions.records import (
    AskedItem,
    ChangedItem,
    KeptQuestion,
    KeptSet,
    QuestionRun,
    RunComparison,
)

_SHARES = AnswerShares(0.68, 0.47, 0.04, 0.03, 0.01)
_ASKED_RUN = QuestionRun(
    5, "handbook", "read", 0.61, 2, "c0ffee", HASH, 40, 40, 20, 17, 1, 2, 0, "ana", AT, 3.2
)
_ASKED_ITEM = AskedItem(QUESTION, ("Lima",), "Lima", 12, "right", None, 0.93, 7, (12,))
_MISSED = replace(_ASKED_ITEM, value=None, fact_id=None, outcome="abstained", reason="withheld")
_MISS = MissGroup(
    group_id=3,
    state="open",
    question=QUESTION,
    asked=14,
    wrong=1,
    last_at=AT,
    generation_id=7,
    ordinal=0,
    fact_id=None,
    decision=None,
    nearest=(NearFact(12, "Lima", QUESTION, 0.64),),
)

EXAMPLES: tuple[Any, ...] = (
    misses.MissGroups(group_ids=[3], reason="not about Peru"),
    misses.Solution(fact_id=12, reason="added for it"),
    questions.NewQuestion(question=QUESTION, expected=["Lima"]),
    questions.NewQuestions(
        questions=[questions.NewQuestion(question=QUESTION, expected=["Lima"])], corpus="atlas"
    ),
    questions.OutputToKeep(generation_id=7),
    questions.QuestionIds(question_ids=[7]),
    LookupRequest(questions=[QUESTION], k=2),
    TextsToEncode(
        questions=[QUESTION],
        documents=[DocumentToEncode(text=TEXT, facts=[SpanToEncode(start=23, end=27)])],
    ),
    EncodedTexts(checkpoint_id="c0ffee", questions=[[0.6, 0.8]], documents=[[[0.8, 0.6]]]),
    QuestionRequest(question=QUESTION),
    LookupSpace(2, "c0ffee", "co-lmlm-135m", 576, 0.71, True, 41),
    NewGeneration(prompt=PROMPT, max_tokens=16),
    Answer(
        question=QUESTION,
        answer="Lima",
        score=0.93,
        threshold=0.6,
        facts=(SAID,),
        source=SOURCE,
        withheld=False,
        nearest=(NearbyPassage(TEXT, replace(SOURCE, start=0, end=len(TEXT)), 1.1, (SAID,)),),
        seq=41,
        generation_id=8,
    ),
    AnswerThreshold(
        0.61,
        True,
        0.68,
        AnswerCalibration(
            MeasuredAnswers(
                AnswerShares(0.61, 0.52, 0.05, 0.033, 0.02), _SHARES, 0.05, 0.0448, 0.0303, 300, 281
            ),
            given=300,
            corpora=(),
            reader=HASH,
            keyset_id=2,
            question_keys=False,
            seconds=88.5,
            seq=40,
        ),
    ),
    LookupAnswers(
        checkpoint_id="c0ffee",
        answers=[
            LookupAnswer(
                question=QUESTION,
                hits=[Hit(12, 1, "Lima", 0.93, 77)],
                runner_up=0.93,
                threshold=0.71,
                seq=41,
            )
        ],
    ),
    _MISS,
    answers.MissList(items=[_MISS], next=None, total=1, ungrouped=0, kept=True),
    MissDetails(_MISS, (MissedQuestion(QUESTION, 14, AT, 7, 0, "Lima"),)),
    answers.Decided(seq=42),
    Solving(3, 12, True, 42, (AskedAgain(QUESTION, 7, True),)),
    KeptSet("handbook", "atlas", 20, "ana", AT, _ASKED_RUN),
    KeptQuestion(7, QUESTION, ("Lima",), (12,), AT),
    _ASKED_RUN,
    _ASKED_ITEM,
    RunComparison(
        before=_ASKED_RUN,
        after=replace(_ASKED_RUN, run_id=6, seq=41, right=16, abstained=3),
        same=19,
        items=(ChangedItem(_ASKED_ITEM, _MISSED, (41,)),),
        first_seq=40,
        last_seq=41,
        changes={"delete": 1},
        settings=(),
    ),
)
