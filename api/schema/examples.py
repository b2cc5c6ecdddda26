"""Examples of every request and response for the OpenAPI document, about one small base on Peru.

They are instances of the types themselves, so that the type checker refuses an example that no longer fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from colmlm.api.nouns.generation import Finished, Spliced
from colmlm.api.openai import examples as openai
from colmlm.api.routes import (
    attributions,
    batches,
    changes,
    comparing,
    corpora,
    documents,
    erasures,
    facts,
    feedback,
    forgetting,
    keysets,
    mending,
    misses,
    questions,
    review,
    tokens,
    verification,
)
from colmlm.api.routes.records import OutputMade, SpliceMade
from colmlm.api.schema.schemas import Health, OwnWorkerHealth
from colmlm.api.schema.selectors import SelectorParts
from colmlm.api.wire import answers
from colmlm.api.wire.answers import EditResult, LookupAnswer, LookupAnswers, Problem
from colmlm.api.wire.pages import cursor
from colmlm.api.wire.requests import LookupRequest, NewGeneration, QuestionRequest, Why
from colmlm.kb.answers.records import (
    Answer,
    AnswerCalibration,
    AnswerShares,
    AnswerThreshold,
    MeasuredAnswers,
    NearbyPassage,
    SaidFact,
)
from colmlm.kb.erasure.records import Erased, ErasureReport, ErasureRequest, Level
from colmlm.kb.evidence.listing import AttributionRecord
from colmlm.kb.evidence.records import (
    FactDifference,
    FactTrace,
    Feedback,
    GenerationRecord,
    ImpactedOutput,
    OutputTrace,
    TracedSplice,
    Use,
    Version,
)
from colmlm.kb.facts import search
from colmlm.kb.facts.compared import AlsoSaid, ComparedCounts, FactPair, StaleFact
from colmlm.kb.facts.records import CorpusStats, DocumentRecord, FactRecord, FoundIn, Mark, Source
from colmlm.kb.facts.reviews import SettledBefore
from colmlm.kb.forgetting import certificate_check
from colmlm.kb.forgetting.records import (
    Collateral,
    Drift,
    Rates,
    RunRecord,
    SaidSurvivor,
    Successor,
    Survivor,
    Verification,
)
from colmlm.kb.jobs import kinds
from colmlm.kb.jobs.records import JobRecord
from colmlm.kb.jobs.uploads import Upload
from colmlm.kb.keys.records import GateStanding, KeysetRecord
from colmlm.kb.log import chain, envelope, witness
from colmlm.kb.log.denials import DenialRecord
from colmlm.kb.log.records import ChangeRecord
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
from colmlm.kb.review.records import InboxItem, Neighbour, ReviewProgress, Surroundings
from colmlm.kb.upkeep.statistics import Statistics


def _json(example: Any) -> Any:
    """Encodes a value as the JSON that a client receives."""
    return msgspec.json.decode(msgspec.json.encode(example))


_AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
_QUESTION, _PROMPT = "What is the capital of Peru?", "The capital of Peru is"
_TEXT = "The capital of Peru is Lima."
_HASH, _BEFORE = "5f" * 32, "a7" * 32
_WHY = "request 12"

_SAID = SaidFact(1, 1, "Lima")
_SOURCE = Source(3, "atlas", "peru", "Peru", "https://example.org/peru", "CC-BY-4.0", "1", 23, 27)
_FACT = FactRecord(12, "Lima", 1, _QUESTION, "Lima", _SOURCE, 1, None)
_ITEM = InboxItem(
    replace(_FACT, review="proposed", review_seq=1), 2, "unverified", Surroundings(3, 0, _TEXT, 23, 27),
    (Neighbour(31, "Lima", _QUESTION, "accepted", True),),
)  # fmt: skip
_CHANGE = ChangeRecord(41, "delete", (12,), 1, "ana", _WHY, _AT, _BEFORE, _HASH)
_SPLICE = TracedSplice(0, 23, 27, "hit", "Lima", 12, 1, 0.93, _SOURCE, True, "Lima")
_TRACE = OutputTrace(7, _PROMPT, " Lima.", "c0ffee", "auto", 40, _AT, (_SPLICE,))
_USE = ImpactedOutput(12, 7, 0, _PROMPT, " Lima.", 0, 5, 1, 40, _AT, "current")
_KEYSET = KeysetRecord(2, "c0ffee", "co-lmlm-135m", 576, "IDMap2,Flat", 0.71, True, "ready", 1048, 0, 40)
_GATE = GateStanding(True, True, 40, 1)
_RATES = {"questions": Rates(1, 0, 0, 0, 0, 1)}
_RUN = RunRecord(5, "applied", "successor", {"text": "Lima"}, 1, 40, 41, None, True, 2, "ana", _WHY, _AT)
_PLAN = answers.PlanView(
    num_facts=1,
    selected=1,
    num_equivalents=0,
    equivalents=[],
    included=False,
    num_conflicting=0,
    conflicting=[],
    successors=[Successor(12, True, 30, 0.42, "no_match")],
    affected=1,
    previewed=1,
    collateral=Collateral(10, 0, 1, 1),
    live_facts=1048,
    unkeyed=0,
    keyset_id=2,
    checkpoint_id="c0ffee",
    threshold=0.71,
    radius=0.71,
    before={"questions": Rates(1, 1, 0, 0, 0, 0)},
    read=1,
    num_survivors=1,
    survivors=[Survivor(12, (31,), 4, 8, 12, "same", 0.83)],
)
_VERIFIED = Verification(_AT.isoformat(), 41, 2, "c0ffee", 0.71, _RATES, 0, 0, 0, (), 2)
_BREAK = chain.Break(13, ("hash",), 13, _HASH, _HASH, "made up", _HASH, sealed_by=41)
_HEAD = witness.Head("9b1d", 41, _HASH, _AT.isoformat(), "0123456789abcdef")
_JOB = JobRecord(
    8, "fsck", {}, "ana", "4f1c", "running", 40, 100, "facts", None, None, 1, None, _AT, _AT, None, _AT
)
_SHARES = AnswerShares(0.68, 0.47, 0.04, 0.03, 0.01)
_ASKED_RUN = QuestionRun(
    5, "handbook", "read", 0.61, 2, "c0ffee", _HASH, 40, 40, 20, 17, 1, 2, 0, "ana", _AT, 3.2
)
_ASKED_ITEM = AskedItem(_QUESTION, ("Lima",), "Lima", 12, "right", None, 0.93, 7, (12,))
_MISSED = replace(_ASKED_ITEM, value=None, fact_id=None, outcome="abstained", reason="withheld")
_UPLOAD = Upload("0f" * 16, "atlas.jsonl", 1048, _HASH)
_ERASED = Erased(
    seq=42, fact_ids=(12,), documents=(3,), generations=(7,), forget_runs=(5,), num_keys=1, num_digests=3
)
_REPORT = ErasureReport(_ERASED, 2, (Level(2, "out of the indexes", "reached", "", ""),))
_ASKED = ErasureRequest(
    erasure_request_id=4,
    state="waiting",
    fact_ids=(12,),
    actor="ana",
    reason=_WHY,
    asked_by="admin of ana",
    at=_AT,
    decided_by=None,
    decided_at=None,
    seq=None,
)
_SIGNED = {"format": witness.FORMAT, **_json(_HEAD), "signature": "bWFkZSB1cA=="}
_SELECTOR = SelectorParts(text="Lima", corpus="atlas")

_MISS = MissGroup(
    group_id=3,
    state="open",
    question=_QUESTION,
    asked=14,
    wrong=1,
    last_at=_AT,
    generation_id=7,
    ordinal=0,
    fact_id=None,
    decision=None,
    nearest=(NearFact(12, "Lima", _QUESTION, 0.64),),
)

_TOKEN = answers.Token(
    key_id=7,
    name="gpu-host",
    role="decoder",
    state="in use",
    prefix="colmlm_Xb3fQ1",
    created_at=_AT,
    expires_at=None,
    last_used_at=_AT,
    rate_limit=60_000,
    rotated_at=None,
    previous_until=None,
    previous_used_at=None,
    revoked_at=None,
)

_EXAMPLES: tuple[Any, ...] = (
    # Requests
    Why(reason=_WHY),
    facts.NewFact(question=_QUESTION, value="Lima", reason="asked for"),
    comparing.Holding(fact_ids=[12, 15], reason="two capitals, each in its time"),
    facts.NewValue(value="Cusco", reason="typing error in the source", actor="ana"),
    mending.Span(start=23, end=27, text="Lima", reason="cut too short"),
    mending.NewPlace(start=23, end=27, text="Lima", reason="cut too short"),
    mending.NewMark(text="Lima", question=_QUESTION, reason="was not marked"),
    review.FactVerdict(fact_id=12, verdict="accept", version=1),
    review.Verdicts(
        verdicts=[review.FactVerdict(fact_id=12, verdict="reject", version=1)], reason="cut too short"
    ),
    review.ReviewLimit(accepted_only=True, corpus="atlas", reason="only what we have read"),
    facts.OneFact(reason=_WHY),
    facts.FactSet(fact_ids=[12, 15], reason="deleted by mistake"),
    facts.FactsToRead(fact_ids=[12, 15]),
    facts.DeletedSet(fact_ids=[12, 15], reason=_WHY),
    batches.NewFacts(facts=[batches.Draft(question=_QUESTION, value="Lima")], reason="asked for"),
    batches.NewValues(
        facts=[batches.Corrected(fact_id=12, value="Lima", question=_QUESTION)], reason="corrected"
    ),
    feedback.GivenFeedback(thumb="down", comment="that is another country's", value="Lima"),
    misses.MissGroups(group_ids=[3], reason="not about Peru"),
    misses.Solution(fact_id=12, reason="added for it"),
    corpora.Deletion(reason="licence withdrawn", dry_run=True),
    documents.NewDocuments(
        corpus="atlas",
        documents=[
            documents.NewDocument(
                id="peru",
                text=_TEXT,
                facts=[documents.NewSpan(start=23, end=27, value="Lima", question=_QUESTION)],
                title="Peru",
            )
        ],
        reason="first edition",
    ),
    attributions.Selection(selector=_SELECTOR),
    forgetting.NewRun(selector=_SELECTOR, equivalents="include", policy="abstain", reason=_WHY),
    verification.Verifying(questions=["Which city is Peru's capital?"]),
    verification.CertificateText(text='{"format": "..."}\n', key="0123456789abcdef"),
    keysets.Activation(reason="gate passed"),
    keysets.NewThreshold(threshold=0.72, reason="calibrated by hand"),
    questions.NewQuestion(question=_QUESTION, expected=["Lima"]),
    questions.NewQuestions(
        questions=[questions.NewQuestion(question=_QUESTION, expected=["Lima"])], corpus="atlas"
    ),
    questions.OutputToKeep(generation_id=7),
    questions.QuestionIds(question_ids=[7]),
    changes.Witnessed(head=_SIGNED),
    changes.Sealing(seqs=[13], reason="inserted by hand"),
    erasures.Chosen(fact_ids=[12]),
    erasures.NewErasure(fact_ids=[12], reason=_WHY),
    kinds.Rekey(corpus="atlas"),
    kinds.Gate(keyset_id=2),
    kinds.Ingest(upload_id=_UPLOAD.upload_id, corpus="atlas"),
    kinds.CalibrateAnswers(upload_id=_UPLOAD.upload_id),
    kinds.AskQuestions(question_set="handbook"),
    kinds.Documents(upload_ids=[_UPLOAD.upload_id], corpus="atlas"),
    kinds.VerifyForgetting(run_id=5),
    kinds.MakeBackup(name="before-the-move"),
    kinds.VerifyBackup(name="before-the-move"),
    kinds.WriteSnapshot(),
    kinds.Check(),
    kinds.Compare(radius=0.97),
    LookupRequest(questions=[_QUESTION], k=2),
    QuestionRequest(question=_QUESTION),
    OutputMade(
        prompt=_PROMPT,
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
    LookupSpace(2, "c0ffee", "co-lmlm-135m", 576, 0.71, True, 41),
    NewGeneration(prompt=_PROMPT, max_tokens=16),
    # Responses
    CorpusStats("atlas", 1, 2, 0, 78),
    answers.Deleted(dry_run=True, documents=1, facts=2, seq=None),
    _DOCUMENT := DocumentRecord(
        3, "atlas", "peru", "Peru", "https://example.org/peru", "CC-BY-4.0", "1", _HASH, 28, 1, _AT, None
    ),
    answers.DocumentText(document=_DOCUMENT, text=_TEXT),
    documents.Ingested(
        corpus="atlas",
        documents=1,
        facts=1,
        unchanged=0,
        replaced=0,
        still_deleted=0,
        suppressed=0,
        contradictions=0,
        duplicates=0,
        refusals=[],
        seq=41,
        keyed=True,
    ),
    _FACT,
    search.as_found(_FACT, (FoundIn("value", "Lima", (Mark(0, 4),)),)),
    FactPair(3, _FACT, replace(_FACT, fact_id=905, value="Cusco", source=None, answer=None), None, 905, None),
    StaleFact(12, "Lima", 2, _QUESTION, None, _SOURCE, 1, None, why="corrected-before"),
    ComparedCounts(contradictions=3, duplicates=12, stale=1),
    AlsoSaid(12, (905,)),
    FactTrace(
        _FACT,
        _TEXT,
        (Version(1, "Lima", 1, None, _QUESTION, 3, 23, 27),),
        (_CHANGE,),
        (Use(7, 1, 0, 5, _AT),),
    ),
    EditResult(seq=41, min_seq=41, kind="delete", fact_ids=[12], keyed=True),
    _ITEM,
    answers.InboxPage(
        items=[_ITEM], next=None, total=1, is_exact=True, progress=ReviewProgress(1, 12, 3, True)
    ),
    answers.VerdictResult(
        seqs=[41],
        min_seq=41,
        fact_ids=[12],
        before=[SettledBefore(15, "accept", 2, "accepted", True, 40, "ana")],
    ),
    Answer(
        question=_QUESTION,
        answer="Lima",
        score=0.93,
        threshold=0.6,
        facts=(_SAID,),
        source=_SOURCE,
        withheld=False,
        nearest=(NearbyPassage(_TEXT, replace(_SOURCE, start=0, end=len(_TEXT)), 1.1, (_SAID,)),),
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
            reader=_HASH,
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
                question=_QUESTION,
                hits=[Hit(12, 1, "Lima", 0.93, 77)],
                runner_up=0.93,
                threshold=0.71,
                seq=41,
            )
        ],
    ),
    _TRACE,
    GenerationRecord(7, _PROMPT, " Lima.", "c0ffee", "auto", 40, _AT, 1, 1),
    Feedback(7, "down", "that is another country's", "Lima", "ana", None, _AT),
    _MISS,
    answers.MissList(items=[_MISS], next=None, total=1, ungrouped=0, kept=True),
    MissDetails(_MISS, (MissedQuestion(_QUESTION, 14, _AT, 7, 0, "Lima"),)),
    answers.Decided(seq=42),
    Solving(3, 12, True, 42, (AskedAgain(_QUESTION, 7, True),)),
    AttributionRecord(7, 0, 0, 5, "hit", " Lima", 12, 1, 3, 0.93, 40, _AT),
    answers.FactImpact(fact_id=12, is_live=True, erased_seq=None, items=[_USE], next=None),
    attributions.SelectionImpact(num_facts=1, num_outputs=1, items=[_USE], next=None),
    _RUN,
    answers.RunView(run=_RUN, plan=_PLAN, verification=_VERIFIED),
    SaidSurvivor(12, "same", 0.83, "Lima", _SOURCE, (_SAID,)),
    Drift((), (), ()),
    _VERIFIED,
    answers.SigningKey(keyid=_HASH, fingerprint="0123456789abcdef", pem="-----BEGIN PUBLIC KEY-----\n..."),
    certificate_check.CertificateCheck(
        ok=True,
        checks=(certificate_check.CertificateFinding("signature", True, "it fits, by key " + _HASH),),
        problems=(),
        offline=False,
        signed_by=_HASH,
        database="9b1d",
        run_id=5,
        policy="successor",
        num_facts=1,
        applied_seq=41,
        applied_hash=_HASH,
        level=2,
    ),
    _KEYSET,
    answers.KeysetView(keyset=_KEYSET, gate=_GATE),
    KeptSet("handbook", "atlas", 20, "ana", _AT, _ASKED_RUN),
    KeptQuestion(7, _QUESTION, ("Lima",), (12,), _AT),
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
    keysets.KeysetGate(standing=_GATE, report={"passed": True, "seq": 40, "criteria": []}),
    changes.Changes(head_seq=41, items=[_CHANGE], next=None),
    answers.Differences(
        first=12,
        last=41,
        counts={"deleted": 1},
        items=[FactDifference(12, "deleted", "atlas", "Lima", None, False)],
        next=None,
    ),
    changes.Held(held=True, head=_HEAD),
    chain.Sealed(41, (_BREAK,)),
    _ERASED,
    _ASKED,
    answers.ErasureAnswer(report=_REPORT, request=None),
    _JOB,
    _UPLOAD,
    _TOKEN,
    answers.TokenWithSecret(token=_TOKEN, secret="colmlm_Xb3fQ1...the rest of it"),
    tokens.NewToken(name="gpu-host", role="decoder", expires_in_seconds=7_776_000, rate_limit=60_000),
    tokens.Rotation(grace_seconds=86_400),
    DenialRecord(
        denial_id=9,
        at=_AT,
        request_id="4f1c",
        actor="ana",
        method="POST",
        path="/v1/erasures",
        status=403,
        cause="RightMissing",
    ),
    Statistics(41, 1, 1, 1048, 3, 12, 1, 7, 2, 2, 5),
    Health(
        ok=True,
        missing=[],
        database=True,
        migrations_at_head=True,
        head_seq=41,
        index_seq=41,
        index_lag=0,
        active_keyset=_KEYSET,
        checkpoint_id="c0ffee",
        generator_loaded=True,
        degraded=[],
        workers=1,
        worker=OwnWorkerHealth(running=True, since=_AT, failures=0, restarts=0),
    ),
)

_BY_NAME: dict[str, Any] = {
    type(example).__name__: _json(example) for example in (*_EXAMPLES, *openai.EXAMPLES)
}

# Operations whose request is bytes.
OCTETS: Mapping[str, str] = {
    "upload": "The bytes of the file.",
    "look_up_vectors": "The bytes of the queries.",
}

_EVENT = f"id: 41\r\nevent: change\r\ndata: {msgspec.json.encode(_CHANGE).decode()}\r\n\r\n"
_DOCUMENT_LINE = (
    f'{{"id": "peru", "text": "{_TEXT}", "facts": [{{"start": 23, "end": 27, "value": "Lima"}}]}}\n'
)

# Operations whose response has no type of this package.
BY_OPERATION: Mapping[str, Any] = {
    "export_corpus": _DOCUMENT_LINE,
    "export_changes": msgspec.json.encode(_SIGNED).decode() + "\n",
    "follow_changes": _EVENT,
    "read_facts": _json([_FACT]),
    "read_also_said": _json([AlsoSaid(12, (905,))]),
    "follow_job": f"event: progress\r\ndata: {msgspec.json.encode(_JOB).decode()}\r\n\r\n",
    "read_head": _SIGNED,
    "read_certificate": {
        "payloadType": envelope.PAYLOAD_TYPE,
        "payload": "bWFkZSB1cA==",
        "signatures": [{"keyid": _HASH, "sig": "bWFkZSB1cA=="}],
    },
}

_SPLICED = Spliced(
    output_start=1, output_end=5, fact_id=12, version=1, value="Lima", score=0.93, document=_SOURCE
)
_PIECES = (
    ("piece", {"text": " Lima"}),
    ("splice", _SPLICED),
    ("piece", {"text": "."}),
    ("finish", Finished(reason="end", prompt_tokens=14, completion_tokens=1)),
    ("trace", _TRACE),
)

# Operations whose response may also be a stream of events.
EVENTS: Mapping[str, str] = {
    "generate": "".join(
        f"event: {name}\r\ndata: {msgspec.json.encode(data).decode()}\r\n\r\n" for name, data in _PIECES
    ),
    **openai.EVENTS,
}


def example_of(component: str) -> Any:
    """Gives the example of a component of the OpenAPI document, or None where it has none, which a test refuses."""
    if (item := component.removeprefix("CountedPageOf")) != component:
        return {**example_of(f"PageOf{item}"), "total": 214, "is_exact": True}
    if (item := component.removeprefix("PageOf")) != component and item in _BY_NAME:
        return {"items": [_BY_NAME[item]], "next": cursor("facts", (12,))}
    return _BY_NAME.get(component)


def _problem(status: int, said: str) -> Any:
    kinds = {404: ("FactNotFound", "No such fact"), 409: ("FactDeleted", "Fact is deleted")}
    kind, title = kinds.get(status, ("Refused", "Not served"))
    return _json(Problem(f"urn:colmlm:{kind}", title, status, f"{said}."))


# How to make the example of a refusal from its status and description, by component.
REFUSALS: Mapping[str, Callable[[int, str], Any]] = {
    "Problem": _problem,
    "OpenAIProblem": lambda status, said: _json(openai.refused(status, said)),
}
