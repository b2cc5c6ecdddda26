"""Evidence of forgetting: asking for the forgotten facts, the signed certificate, and its check."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import JSONBody
from msgspec import Meta, field

from colmlm.api.door.rights import Lane, Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.routes.forgetting import Sample
from colmlm.api.schema.schemas import PathId
from colmlm.api.wire.answers import SigningKey
from colmlm.api.wire.requests import Question, Request
from colmlm.kb.forgetting import certificates
from colmlm.kb.forgetting.certificate_check import CertificateCheck, check_here, check_offline, trusted_keys
from colmlm.kb.forgetting.records import Verification
from colmlm.kb.forgetting.verbs import Forgetting
from colmlm.kb.log.signing import as_pem, names_of, signing_key


class Probing(Request, frozen=True, kw_only=True):
    """How to ask: `sample` facts at most, and these `questions` too. Without `model` stored keys stand for them."""

    questions: Annotated[list[Question], Meta(max_length=100)] = field(default_factory=list)
    sample: Sample = 100
    model: bool = True


class CertificateText(Request, frozen=True, kw_only=True):
    """A certificate, as the very text of its file, and who must have signed it: by default this base.

    `key` is a key's id or fingerprint, `public_key` one as PEM. `offline` compares it with nothing in this base.
    """

    text: Annotated[str, Meta(min_length=1, max_length=1_000_000)]
    key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    public_key: Annotated[str, Meta(min_length=1, max_length=10_000)] | None = None
    offline: bool = False


@post(
    "/forget-runs/{run_id:int}/verify",
    status_code=200,
    opt=needs(Right.audit, Lane.long_reads),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def verify_forgetting(ports: FromPorts, run_id: PathId, data: JSONBody[Probing]) -> Verification:
    """Verify that facts are forgotten.

    Asks for up to `sample` of them in every way there is, and keeps the answers with the run. `level` 0 says that
    one was found. A job of kind `verify` asks for more of them.
    """
    encoder = ports.encoder if data.model else None
    if data.questions and data.model:
        ports.need_encoder()
    return Forgetting(ports.kb, encoder, sample=data.sample).verify(run_id, data.questions)


@get("/forget-runs/{run_id:int}/certificate", opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def read_certificate(ports: FromPorts, run_id: PathId) -> Response[dict[str, Any]]:
    """Get a forget run's certificate.

    Signed evidence of a verified run, with no text of a fact, that can be checked offline. Keep the bytes as they are:
    every other spelling is refused.
    """
    text: Any = certificates.issue(
        ports.kb, run_id
    ).encode()  # its own bytes, which another encoder would change
    return Response(text, media_type="application/json")


@get("/signing-key", opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def read_signing_key(ports: FromPorts) -> SigningKey:
    """Get the public key that evidence is signed with.

    Keep it elsewhere: who has it checks certificates, heads and logs without this server.
    """
    public = signing_key(ports.kb.settings.home).public_key()
    names = names_of(public)
    return SigningKey(keyid=names.keyid, fingerprint=names.fingerprint, pem=as_pem(public))


@post(
    "/certificates/check",
    status_code=200,
    opt=needs(Right.audit, Lane.long_reads),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def check_certificate(ports: FromPorts, data: JSONBody[CertificateText]) -> CertificateCheck:
    """Check a certificate.

    Signed by this base's key, or by the one that is named; free of contradictions; its run and its change in this base,
    and the run still applied or erased. `checks` has each by itself, and `ok` is true only where all hold.
    """
    text = data.text.encode("utf-8", "surrogatepass")
    trusted = trusted_keys(() if data.key is None else (data.key,), data.public_key)
    return check_offline(text, trusted) if data.offline else check_here(ports.kb, text, trusted)
