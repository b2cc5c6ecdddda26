"""Examples of every request and response for the OpenAPI document, about one small base.

They are instances of the types themselves, so that the type checker refuses an example that no longer fits.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from colmlm.api import wire
from colmlm.api.routes import (
    changes,
    corpora,
    facts,
    generations,
    keysets,
    misses,
    questions,
    removal,
    review,
    tokens,
    webhooks,
)
from colmlm.api.routes.generations import OutputMade, SpliceMade
from colmlm.api.routes.health import Health, OwnWorkerHealth
from colmlm.api.routes.parameters import SelectorParts
from colmlm.api.routes.removal import CertificateText, Verifying
from colmlm.api.wire import (
    DocumentToEncode,
    EditResult,
    EncodedTexts,
    LookupAnswer,
    LookupAnswers,
    LookupRequest,
    NewGeneration,
    QuestionRequest,
    SpanToEncode,
    TextsToEncode,
    Why,
)
from colmlm.kb.answers.records import (
    Answer,
    AnswerCalibration,
    AnswerShares,
    AnswerThreshold,
    MeasuredAnswers,
    NearbyPassage,
    SaidFact,
)
from colmlm.kb.evidence.outputs import AttributionRecord
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
from colmlm.kb.facts.records import (
    AlsoSaid,
    ComparedCounts,
    CorpusStats,
    DocumentRecord,
    FactPair,
    FactRecord,
    FoundIn,
    Mark,
    NamedStretch,
    PersonFindings,
    PersonPlace,
    PersonReport,
    SettledBefore,
    Source,
    StaleFact,
)
from colmlm.kb.jobs import kinds
from colmlm.kb.jobs.kinds import Documents, Sync
from colmlm.kb.jobs.records import JobRecord
from colmlm.kb.jobs.uploads import Upload
from colmlm.kb.keys.records import GateStanding, KeysetHead, KeysetRecord
from colmlm.kb.log import chain, tree, witness
from colmlm.kb.log.chain import DenialRecord
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.lookup.records import Hit, IndexMemory, LookupSpace
from colmlm.kb.misses.records import AskedAgain, MissDetails, MissedQuestion, MissGroup, NearFact, Solving
from colmlm.kb.questions.records import (
    AskedItem,
    ChangedItem,
    KeptQuestion,
    KeptSet,
    QuestionRun,
    RunComparison,
)
from colmlm.kb.removal.records import (
    CertificateCheck,
    CertificateFinding,
    Collateral,
    Drift,
    DueDocument,
    Erased,
    ErasureReport,
    ErasureRequest,
    Hold,
    Level,
    LineageFinding,
    Rates,
    RetentionPlan,
    RetentionRule,
    RunRecord,
    SaidSurvivor,
    Successor,
    Survivor,
    Verification,
)
from colmlm.kb.review.records import InboxItem, Neighbour, ReviewProgress, Surroundings
from colmlm.kb.upkeep.upkeep import Statistics
from colmlm.kb.webhooks.records import Webhook, WebhookDelivery


def as_json(example: Any) -> Any:
    """Encode a value as the JSON that a client receives."""
    return msgspec.json.decode(msgspec.json.encode(example))


AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
QUESTION, PROMPT = "What is the capital of Peru?", "The capital of Peru is"
TEXT = "The capital of Peru is Lima."
HASH, BEFORE = "5f" * 32, "a7" * 32
WHY = "request 12"
SAID = SaidFact(1, 1, "Lima")
SOURCE = Source(3, "atlas", "peru", "Peru", "https://example.org/peru", "CC-BY-4.0", "1", 23, 27)
FACT = FactRecord(12, "Lima", 1, QUESTION, "Lima", SOURCE, 1, None)
CHANGE = ChangeRecord(41, "delete", (12,), 1, "ana", WHY, AT, BEFORE, HASH)
SPLICE = TracedSplice(0, 23, 27, "hit", "Lima", 12, 1, 0.93, SOURCE, True, "Lima")
TRACE = OutputTrace(7, PROMPT, " Lima.", "c0ffee", "auto", 40, AT, (SPLICE,))
HEAD = witness.Head("9b1d", 41, HASH, AT.isoformat(), "0123456789abcdef")
JOB = JobRecord(
    8, "fsck", {}, "ana", "4f1c", "running", 40, 100, "facts", None, None, 1, None, AT, AT, None, AT
)
PROOF = {
    "format": tree.FORMAT,
    "database": HEAD.database,
    "size": 41,
    "root": "3e" * 32,
    "key": HEAD.key,
    "index": 40,
    "entry": {"seq": 41, "kind": "delete", "hash": HEAD.hash},
    "path": ["5f" * 32],
    "signature": "bWFkZSB1cA==",
}
SIGNED = {"format": witness.FORMAT, **as_json(HEAD), "signature": "bWFkZSB1cA=="}
SELECTOR = SelectorParts(text="Lima", corpus="atlas")


# Examples of facts, documents and corpora, of edits of these, and of their review.

_ITEM = InboxItem(
    replace(FACT, review="proposed", review_seq=1), 2, "unverified", Surroundings(3, 0, TEXT, 23, 27),
    (Neighbour(31, "Lima", QUESTION, "accepted", True),),
)  # fmt: skip

FACT_EXAMPLES: tuple[Any, ...] = (
    Why(reason=WHY),
    facts.NewFact(question=QUESTION, value="Lima", reason="asked for"),
    facts.BothRight(fact_ids=[12, 15], reason="two capitals, each in its time"),
    facts.NewValue(value="Cusco", reason="typing error in the source", actor="ana"),
    facts.Span(start=23, end=27, text="Lima", reason="cut too short"),
    facts.NewPlace(start=23, end=27, text="Lima", reason="cut too short"),
    facts.NewMark(text="Lima", question=QUESTION, reason="was not marked"),
    review.FactVerdict(fact_id=12, verdict="accept", version=1),
    review.Verdicts(
        verdicts=[review.FactVerdict(fact_id=12, verdict="reject", version=1)], reason="cut too short"
    ),
    review.ReviewLimit(accepted_only=True, corpus="atlas", reason="only what we have read"),
    facts.OneFact(reason=WHY),
    facts.FactSet(fact_ids=[12, 15], reason="deleted by mistake"),
    facts.FactsToRead(fact_ids=[12, 15]),
    facts.DeletedSet(fact_ids=[12, 15], reason=WHY),
    facts.NewFacts(facts=[facts.Draft(question=QUESTION, value="Lima")], reason="asked for"),
    facts.NewValues(facts=[facts.Corrected(fact_id=12, value="Lima", question=QUESTION)], reason="corrected"),
    corpora.Deletion(reason="licence withdrawn", dry_run=True),
    corpora.NewDocuments(
        corpus="atlas",
        documents=[
            corpora.NewDocument(
                id="peru",
                text=TEXT,
                facts=[corpora.NewSpan(start=23, end=27, value="Lima", question=QUESTION)],
                title="Peru",
            )
        ],
        reason="first edition",
    ),
    CorpusStats("atlas", 1, 2, 0, 78),
    wire.Deleted(dry_run=True, documents=1, facts=2, seq=None),
    _DOCUMENT := DocumentRecord(
        3, "atlas", "peru", "Peru", "https://example.org/peru", "CC-BY-4.0", "1", HASH, 28, 1, AT, None
    ),
    wire.DocumentText(document=_DOCUMENT, text=TEXT),
    corpora.Ingested(
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
    FACT,
    search.found_fact(FACT, (FoundIn("value", "Lima", (Mark(0, 4),)),)),
    FactPair(3, FACT, replace(FACT, fact_id=905, value="Cusco", source=None, answer=None), None, 905, None),
    StaleFact(12, "Lima", 2, QUESTION, None, SOURCE, 1, None, why="corrected-before"),
    ComparedCounts(contradictions=3, duplicates=12, stale=1),
    AlsoSaid(12, (905,)),
    EditResult(seq=41, min_seq=41, kind="delete", fact_ids=[12], keyed=True),
    _ITEM,
    wire.InboxPage(items=[_ITEM], next=None, total=1, is_exact=True, progress=ReviewProgress(1, 12, 3, True)),
    wire.VerdictResult(
        seqs=[41],
        min_seq=41,
        fact_ids=[12],
        before=[SettledBefore(15, "accept", 2, "accepted", True, 40, "ana")],
    ),
)


# Examples of what is asked: lookups, questions and their answers, kept questions, and misses.

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

ASKING_EXAMPLES: tuple[Any, ...] = (
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
    wire.MissList(items=[_MISS], next=None, total=1, ungrouped=0, kept=True),
    MissDetails(_MISS, (MissedQuestion(QUESTION, 14, AT, 7, 0, "Lima"),)),
    wire.Decided(seq=42),
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


# Examples of stored outputs, their traces and feedback on them, and of the change log.

_USE = ImpactedOutput(12, 7, 0, PROMPT, " Lima.", 0, 5, 1, 40, AT, "current")
_BREAK = chain.Break(13, ("hash",), 13, HASH, HASH, "made up", HASH, sealed_by=41)
FACT_TRACE = FactTrace(
    FACT,
    TEXT,
    (Version(1, "Lima", 1, None, QUESTION, 3, 23, 27),),
    (CHANGE,),
    (Use(7, 1, 0, 5, AT),),
)

EVIDENCE_EXAMPLES: tuple[Any, ...] = (
    generations.GivenFeedback(thumb="down", comment="that is another country's", value="Lima"),
    generations.Selection(selector=SELECTOR),
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
    wire.FactImpact(fact_id=12, is_live=True, erased_seq=None, items=[_USE], next=None),
    generations.SelectionImpact(num_facts=1, num_outputs=1, items=[_USE], next=None),
    changes.Changes(head_seq=41, items=[CHANGE], next=None),
    wire.Differences(
        first=12,
        last=41,
        counts={"deleted": 1},
        items=[FactDifference(12, "deleted", "atlas", "Lima", None, False)],
        next=None,
    ),
    changes.Held(held=True, head=HEAD),
    chain.Sealed(41, (_BREAK,)),
)


# Examples of forgetting, with its certificates, and of erasure.

_HOLD = Hold(
    hold_id=4, state="standing", fact_ids=(12,), document_ids=(), corpora=(), actor="ana", reason="case 12", at=AT,
    asked_by=None, approved_by=None, seq=43, release_actor=None, release_reason=None, release_at=None,
    release_asked_by=None, release_approved_by=None, released_seq=None,
)  # fmt: skip
_RULE = RetentionRule("atlas", 365, "erase", "date", 44)
_RATES = {"questions": Rates(1, 0, 0, 0, 0, 1)}
_RUN = RunRecord(5, "applied", "successor", {"text": "Lima"}, 1, 40, 41, None, True, 2, "ana", WHY, AT)
_PLAN = wire.PlanView(
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
_VERIFIED = Verification(AT.isoformat(), 41, 2, "c0ffee", 0.71, _RATES, 0, 0, 0, (), 2)
_PERSON = NamedStretch(0, 9, 21, "Maria Keller", "Where is ", "?")
_PERSON_PLACE = PersonPlace("generation.prompt/5", "prompt of output 5", "blank", (_PERSON,))
_PERSON_REPORT = PersonReport("Maria Keller", (), "9b1d", 41, AT.isoformat(), (_PERSON_PLACE,), (), 0, (), ())
_ERASED = Erased(
    seq=42,
    fact_ids=(12,),
    documents=(3,),
    generations=(7,),
    forget_runs=(5,),
    lineage=(LineageFinding("c0ffee", "atlas-135m", "listed", (3,), record=HASH, bases=("smollm2-135m",)),),
)
_REPORT = ErasureReport(_ERASED, 2, (Level(2, "out of the indexes", "reached", "", ""),))
_ASKED = ErasureRequest(
    erasure_request_id=4,
    state="waiting",
    fact_ids=(12,),
    actor="ana",
    reason=WHY,
    asked_by="admin of ana",
    at=AT,
    decided_by=None,
    decided_at=None,
    seq=None,
)

REMOVAL_EXAMPLES: tuple[Any, ...] = (
    _HOLD,
    removal.NewHold(fact_ids=[12], reason="case 12"),
    _RULE,
    RetentionPlan("atlas", _RULE, AT, 1, 0, AT, (DueDocument(3, "peru", "Peru", AT, "erase"),)),
    corpora.NewRetentionRule(days=365, action="erase", counts_from="date", reason="policy 7"),
    removal.NewRun(selector=SELECTOR, equivalents="include", policy="abstain", reason=WHY),
    Verifying(questions=["Which city is Peru's capital?"]),
    CertificateText(text='{"format": "..."}\n', key="0123456789abcdef"),
    removal.Chosen(fact_ids=[12]),
    removal.NewErasure(fact_ids=[12], reason=WHY),
    removal.PersonSought(name="Maria Keller", also=["Mia Keller"]),
    PersonFindings(_PERSON_REPORT, {"format": "colmlm-person-plan-1", "seq": 41, "places": []}),
    _RUN,
    wire.RunView(run=_RUN, plan=_PLAN, verification=_VERIFIED),
    SaidSurvivor(12, "same", 0.83, "Lima", SOURCE, (SAID,)),
    Drift((), (), ()),
    _VERIFIED,
    wire.SigningKey(keyid=HASH, fingerprint="0123456789abcdef", pem="-----BEGIN PUBLIC KEY-----\n..."),
    CertificateCheck(
        ok=True,
        checks=(CertificateFinding("signature", True, "it fits, by key " + HASH),),
        problems=(),
        offline=False,
        signed_by=HASH,
        database="9b1d",
        run_id=5,
        policy="successor",
        num_facts=1,
        applied_seq=41,
        applied_hash=HASH,
        level=2,
    ),
    _ERASED,
    _ASKED,
    wire.ErasureAnswer(report=_REPORT, request=None),
)


# Examples of what a running base consists of: keysets, jobs, tokens, denials, and its health.

_HEAD = KeysetHead(
    keyset_id=2,
    checkpoint_id="c0ffee",
    checkpoint_name="co-lmlm-135m",
    dim=576,
    index_spec="IDMap2,Flat",
    threshold=0.71,
    calibrated=True,
    state="ready",
    applied_seq=40,
)
_KEYSET = KeysetRecord(**asdict(_HEAD), num_keys=1048, num_unkeyed=0)
_GATE = GateStanding(True, True, 40, 1)
_UPLOAD = Upload("0f" * 16, "atlas.jsonl", 1048, HASH)
_TOKEN = wire.Token(
    key_id=7,
    name="gpu-host",
    role="decoder",
    state="in use",
    prefix="colmlm_Xb3fQ1",
    created_at=AT,
    expires_at=None,
    last_used_at=AT,
    rate_limit=60_000,
    rotated_at=None,
    previous_until=None,
    previous_used_at=None,
    revoked_at=None,
)
_WEBHOOK = Webhook(
    webhook_id=3,
    url="https://example.org/hooks/facts",
    kinds=("delete", "forget"),
    format="standard",
    state="active",
    delivered_seq=41,
    attempts=0,
    created_at=AT,
    delivered_at=AT,
    failing_since=None,
    next_attempt_at=None,
    last_error=None,
)

OPERATING_EXAMPLES: tuple[Any, ...] = (
    keysets.Activation(reason="gate passed"),
    keysets.NewThreshold(threshold=0.72, reason="calibrated by hand"),
    kinds.Rekey(corpus="atlas"),
    kinds.Gate(keyset_id=2),
    kinds.Ingest(upload_id=_UPLOAD.upload_id, corpus="atlas"),
    kinds.CalibrateAnswers(upload_id=_UPLOAD.upload_id),
    kinds.AskQuestions(question_set="handbook"),
    Documents(upload_ids=[_UPLOAD.upload_id], corpus="atlas"),
    Sync(folder="handbook", corpus="handbook"),
    kinds.VerifyForgetting(run_id=5),
    kinds.MakeBackup(name="before-the-move"),
    kinds.VerifyBackup(name="before-the-move"),
    kinds.WriteSnapshot(),
    kinds.Check(),
    kinds.Compare(radius=0.97),
    _KEYSET,
    wire.KeysetView(keyset=_KEYSET, gate=_GATE),
    keysets.KeysetGate(standing=_GATE, report={"passed": True, "seq": 40, "criteria": []}),
    JOB,
    _UPLOAD,
    _TOKEN,
    wire.TokenWithSecret(token=_TOKEN, secret="colmlm_Xb3fQ1...the rest of it"),
    tokens.NewToken(name="gpu-host", role="decoder", expires_in_seconds=7_776_000, rate_limit=60_000),
    tokens.Rotation(grace_seconds=86_400),
    _WEBHOOK,
    wire.WebhookWithSecret(webhook=_WEBHOOK, secret="whsec_C2FVsBQIhrscChlQIMV...the rest of it"),
    webhooks.NewWebhook(url=_WEBHOOK.url, kinds=["delete", "forget"], since=40),
    webhooks.Replay(from_seq=12),
    WebhookDelivery(message_id="test_4f1c9a3be0d27e55", ok=True, status=204, error=None, seconds=0.042),
    DenialRecord(
        denial_id=9,
        at=AT,
        request_id="4f1c",
        actor="ana",
        method="POST",
        path="/v1/erasures",
        status=403,
        cause="RightMissing",
    ),
    Statistics(41, 1, 1, 1048, 3, 12, 1, 7, 2, 2, 5, 30),
    Health(
        ok=True,
        missing=[],
        database=True,
        migrations_at_head=True,
        head_seq=41,
        index_seq=41,
        index_lag=0,
        index_memory=IndexMemory("cuda", 1_000_000, 1_062_500, 1_233_562_500, 0),
        active_keyset=_HEAD,
        checkpoint_id="c0ffee",
        generator_loaded=True,
        degraded=[],
        workers=1,
        worker=OwnWorkerHealth(running=True, since=AT, failures=0, restarts=0),
    ),
)
