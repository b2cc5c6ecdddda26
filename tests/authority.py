"""An authority of a test's own, which certifies servers on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Authority:
    """Who certifies the server: a key, and the certificate that clients trust."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, called: str) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(called)
        is_authority = x509.BasicConstraints(ca=True, path_length=0)
        made = _begun(name, name, key.public_key()).add_extension(is_authority, critical=True)
        return cls(key, made.sign(key, hashes.SHA256()))

    def certify(self, server: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        """Certifies a server for the name localhost, and for nothing else."""
        for_names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        made = _begun(_name("localhost"), self.certificate.subject, server.public_key())
        return made.add_extension(for_names, critical=False).sign(self.key, hashes.SHA256())


def _name(said: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, said)])


def _begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    made = made.serial_number(x509.random_serial_number())
    return made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
