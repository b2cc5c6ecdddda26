"""Checks a certificate: who signed it, whether it contradicts itself, and whether the base still agrees with it.

A signature alone says only that *somebody* signed the certificate as it is. So it is always checked against a signer:
the base's own key, or keys that the caller names. Offline that is all; with the base at hand, its changes and their
state now are compared too. Certificates of the previous format (`FORMER`) are checked in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from colmlm.kb.errors import SignatureRefused, SignerNeeded
from colmlm.kb.log import signing
from colmlm.kb.log.audit import CertificateFinding, Certified, as_text
from colmlm.kb.log.envelope import is_envelope, open_envelope
from colmlm.kb.removal import erasure_certificates as erasures
from colmlm.kb.removal.certificate_contents import FORGETTING
from colmlm.kb.removal.certificates import PREDICATE_TYPE

if TYPE_CHECKING:
    from colmlm.kb.store.store import Store

FORMER = "colmlm-forget-certificate-1"
WHAT = "certificate"

_UNFIT = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_KINDS: Mapping[str, Certified] = MappingProxyType(
    {PREDICATE_TYPE: FORGETTING, erasures.PREDICATE_TYPE: erasures.ERASURE}
)


@dataclass(frozen=True, slots=True)
class CertificateCheck:
    """The outcome of a check. It is `ok` only if each of `checks` is; `problems` says what is wrong with the others.

    `signed_by` is the id of the key that signed, trusted or not; `offline` says that no base was compared. `run_id` and
    `policy` are those of a forget run; None in a certificate of an erasure.
    """

    ok: bool
    checks: tuple[CertificateFinding, ...]
    problems: tuple[str, ...]
    offline: bool
    signed_by: str | None = None
    database: str | None = None
    run_id: int | None = None
    policy: str | None = None
    num_facts: int | None = None
    applied_seq: int | None = None
    applied_hash: str | None = None
    level: int | None = None
    reached: str | None = None
    issued_at: str | None = None
    proves: tuple[str, ...] = ()
    does_not_prove: tuple[str, ...] = ()


def trusted_keys(names: Collection[str] = (), pem: str | None = None) -> frozenset[str]:
    """Collects the keys that a caller trusts: by id or fingerprint, and one as PEM. Raises `SignatureRefused`."""
    of_pem = () if pem is None else (signing.names_of(signing.from_pem(pem, "public key")).keyid,)
    return frozenset((*names, *of_pem))


def check_offline(text: bytes, trusted: Collection[str]) -> CertificateCheck:
    """Checks the bytes of a certificate file against the trusted keys. Raises `SignerNeeded` where there are none."""
    if not trusted:
        raise SignerNeeded
    return _checked(text, trusted, None)


def check_here(kb: Store, text: bytes, trusted: Collection[str] = ()) -> CertificateCheck:
    """Checks a certificate against the trusted keys, by default this base's own, and against its runs and its log."""
    own = signing.own_names(kb.settings.home)
    with kb.sessions() as session:
        return _checked(text, trusted or {own.keyid if own else ""}, session)


def _checked(text: bytes, trusted: Collection[str], session: Session | None) -> CertificateCheck:
    offline = session is None
    try:
        kind, said, names = _read(text)
    except SignatureRefused as refused:
        return _result(FORGETTING, (CertificateFinding("signature", False, str(refused)),), offline)
    checks = [
        CertificateFinding("signature", True, f"it fits, by key {names.keyid}"),
        _signer(names, trusted),
    ]
    try:
        checks.append(_contents(kind.holds(said)))
        if session is not None:
            checks += kind.borne_out(session, said)
        return _result(kind, tuple(checks), offline, signed_by=names.keyid, **kind.summary(said))
    except _UNFIT as error:
        unfit = f"it is not a certificate that this program knows ({type(error).__name__}: {error})"
        return _result(
            kind, (*checks[:2], CertificateFinding("contents", False, unfit)), offline, signed_by=names.keyid
        )


def _result(
    kind: Certified, checks: tuple[CertificateFinding, ...], offline: bool, **said: Any
) -> CertificateCheck:
    return CertificateCheck(
        ok=all(check.ok for check in checks),
        checks=checks,
        problems=tuple(check.found for check in checks if not check.ok),
        offline=offline,
        proves=kind.proves if offline else kind.proves + kind.proves_here,
        does_not_prove=kind.does_not_prove + kind.not_offline if offline else kind.does_not_prove,
        **said,
    )


def _read(text: bytes) -> tuple[Certified, Mapping[str, Any], signing.KeyNames]:
    """Reads a certificate, its kind and its signer. Raises `SignatureRefused` where a byte is not as it was issued."""
    try:
        signed = json.loads(text)
        is_as_issued = isinstance(signed, dict) and as_text(signed).encode(errors="surrogatepass") == text
    except (ValueError, RecursionError) as error:
        raise SignatureRefused(WHAT, "it is not JSON that this program reads") from error
    if not is_as_issued:
        raise SignatureRefused(WHAT, "it is not written as certificates are")
    if is_envelope(signed):
        opened = open_envelope(signed, WHAT)
        if (kind := _KINDS.get(opened.predicate_type)) is None:
            raise SignatureRefused(
                WHAT, f"it states {opened.predicate_type!r}, and not that something was forgotten or erased"
            )
        return kind, {**opened.predicate, "subject": opened.subject}, opened.names
    names = signing.verify_signature(signed, WHAT)
    if signed.get("format") != FORMER:
        raise SignatureRefused(WHAT, f"its format is {signed.get('format')!r}, not {FORMER}")
    return FORGETTING, signed, names


def _signer(names: signing.KeyNames, trusted: Collection[str]) -> CertificateFinding:
    if names.among(trusted):
        return CertificateFinding("signer", True, "it was signed by the key that it must be signed by")
    wanted = " or ".join(sorted(trusted)) if any(trusted) else "this base, which has signed nothing"
    return CertificateFinding(
        "signer", False, f"it was signed by {names.keyid} ({names.fingerprint}), not by {wanted}"
    )


def _contents(holds: Mapping[str, bool]) -> CertificateFinding:
    faults = [f"{what} does not hold" for what, held in holds.items() if not held]
    return CertificateFinding(
        "contents", not faults, "; ".join(faults) or "all counts, rates and hashes agree"
    )
