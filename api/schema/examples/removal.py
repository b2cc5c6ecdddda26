"""Examples of forgetting, with its certificates, and of erasure."""

from __future__ import annotations

from typing import Any

from colmlm.api.routes import erasures, forgetting
from colmlm.api.routes.forgetting import CertificateText, Verifying
from colmlm.api.schema.examples.small_base import AT, HASH, SAID, SELECTOR, SOURCE, WHY
from colmlm.api.wire import answers
from colmlm.kb.removal.records import (
    CertificateCheck,
    CertificateFinding,
    Collateral,
    Drift,
    Erased,
    ErasureReport,
    ErasureRequest,
    Level,
    Rates,
    RunRecord,
    SaidSurvivor,
    Successor,
    Survivor,
    Verification,
)

_RATES = {"questions": Rates(1, 0, 0, 0, 0, 1)}
_RUN = RunRecord(5, "applied", "successor", {"text": "Lima"}, 1, 40, 41, None, True, 2, "ana", WHY, AT)
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
_VERIFIED = Verification(AT.isoformat(), 41, 2, "c0ffee", 0.71, _RATES, 0, 0, 0, (), 2)
_ERASED = Erased(
    seq=42, fact_ids=(12,), documents=(3,), generations=(7,), forget_runs=(5,), num_keys=1, num_digests=3
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

EXAMPLES: tuple[Any, ...] = (
    forgetting.NewRun(selector=SELECTOR, equivalents="include", policy="abstain", reason=WHY),
    Verifying(questions=["Which city is Peru's capital?"]),
    CertificateText(text='{"format": "..."}\n', key="0123456789abcdef"),
    erasures.Chosen(fact_ids=[12]),
    erasures.NewErasure(fact_ids=[12], reason=WHY),
    _RUN,
    answers.RunView(run=_RUN, plan=_PLAN, verification=_VERIFIED),
    SaidSurvivor(12, "same", 0.83, "Lima", SOURCE, (SAID,)),
    Drift((), (), ()),
    _VERIFIED,
    answers.SigningKey(keyid=HASH, fingerprint="0123456789abcdef", pem="-----BEGIN PUBLIC KEY-----\n..."),
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
    answers.ErasureAnswer(report=_REPORT, request=None),
)
