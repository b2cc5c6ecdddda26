"""Evidence of forgetting: verify a forget run, and issue or check its signed certificate."""

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
from colmlm.kb.forgetting.certificates import CertificateCheck, check_here, check_offline, trusted_keys
from colmlm.kb.forgetting.records import Verification
from colmlm.kb.forgetting.verbs import Forgetting
from colmlm.kb.log.signing import as_pem, names_of, signing_key


class Verifying(Request, frozen=True, kw_only=True):
    """How to verify: at most `sample` facts, and these `questions` too.

    Without `model`, stored keys are used in place of encoded questions, and nothing is read.
    """

    questions: Annotated[list[Question], Meta(max_length=100)] = field(default_factory=list)
    sample: Sample = 100
    model: bool = True


class CertificateText(Request, frozen=True, kw_only=True):
    """The exact text of a certificate's file, and who must have signed it: by default this base.

    `key` is the signing key's id or fingerprint, `public_key` the key as PEM. With `offline`, it is not compared with
    this base.
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
def verify_forgetting(ports: FromPorts, run_id: PathId, data: JSONBody[Verifying]) -> Verification:
    """Verify that facts are forgotten.

    Asks for up to `sample` of them by every kind of query, and stores the results with the run. `level` 0 says that one
    was found. A job of kind `verify` asks for more of them.
    """
    encoder = ports.encoder if data.model else None
    if data.questions and data.model:
        ports.need_encoder()
    reader = ports.reader if data.model else None
    return Forgetting(ports.kb, encoder, reader, sample=data.sample).verify(run_id, data.questions)


@get("/forget-runs/{run_id:int}/certificate", opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def read_certificate(ports: FromPorts, run_id: PathId) -> Response[dict[str, Any]]:
    """Get a forget run's certificate.

    Gives signed evidence of a verified run, without any fact's text, that can be checked offline. Keep the bytes
    unchanged: any other encoding of the same JSON is refused.
    """
    text: Any = certificates.issue(
        ports.kb, run_id
    ).encode()  # the signed bytes, which re-encoding would change
    return Response(text, media_type="application/json")


@get("/signing-key", opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def read_signing_key(ports: FromPorts) -> SigningKey:
    """Get the public key that evidence is signed with.

    Keep it outside this server: with it anybody can check certificates, heads and logs without the server.
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

    Checks that it is signed by this base's key or the named one, that it does not contradict itself, that its run and
    change exist in this base, and that the run is still applied or erased. `checks` holds each result; `ok` is true
    only if all hold.
    """
    text = data.text.encode("utf-8", "surrogatepass")
    trusted = trusted_keys(() if data.key is None else (data.key,), data.public_key)
    return check_offline(text, trusted) if data.offline else check_here(ports.kb, text, trusted)
