"""A server elsewhere is reached over TLS, whose certificate is verified, by everything that connects to it."""

from __future__ import annotations

import os
import pwd
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from colmlm.kb.errors import DatabaseUnavailable
from colmlm.kb.jobs.kinds import Check
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.lookup.follower import Follower
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import worker_process
from tests.authority import Authority
from tests.debian_servers import DebianServer, debian_folder
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, PERU, ask, ingest
from tests.servers import DEBIANS

PASSWORD = "a secret of the test"


@dataclass(frozen=True, slots=True)
class TLSServer:
    """A server that takes connections over TLS only, with a password, and the certificate to trust."""

    server: DebianServer
    authority: Path

    def settings(self, home: Path, host: str = "localhost", **options: object) -> Settings:
        options = {"sslmode": "verify-full", "sslrootcert": self.authority, **options}
        said = "&".join(f"{name}={value}" for name, value in options.items())
        url = f"postgresql://colmlm:{quote(PASSWORD)}@{host}:{self.server.port}/colmlm?{said}"
        return Settings.from_environment({"COLMLM_DATABASE_URL": url, "COLMLM_HOME": str(home)})


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[TLSServer]:
    if not DEBIANS.is_dir():
        pytest.skip(f"no PostgreSQL 15 in {DEBIANS}")
    with debian_folder() as folder:
        server = DebianServer(folder / "server", _free_port())
        authority, key = Authority.new("the authority"), ec.generate_private_key(ec.SECP256R1())
        server.create("fsync = off", "listen_addresses = '127.0.0.1'", "ssl = on")
        _write(server.data / "server.crt", _pem(authority.certify(key)), server.user)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _write(server.data / "server.key", private, server.user)
        admitted = "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
        _write(server.data / "pg_hba.conf", admitted.encode(), server.user)
        trusted = tmp_path / "authority.crt"
        trusted.write_bytes(_pem(authority.certificate))
        try:
            server.start()
            server.execute(f"CREATE ROLE colmlm LOGIN PASSWORD '{PASSWORD}'")
            server.execute("CREATE DATABASE colmlm OWNER colmlm")
            yield TLSServer(server, trusted)
        finally:
            server.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(file: Path, content: bytes, user: str) -> None:
    file.write_bytes(content)
    file.chmod(0o600)
    os.chown(file, pwd.getpwnam(user).pw_uid, -1)


@pytest.mark.slow(reason="starts a PostgreSQL with certificates")
def test_everything_that_connects_does_so_over_tls(tls: TLSServer, tmp_path: Path) -> None:
    settings, encoder = tls.settings(tmp_path / "home"), FakeEncoder()
    engine = database.connect_database(settings)
    database.migrate_database(engine)
    engine.dispose()
    with KnowledgeBase.open(settings) as kb:
        ingest(kb, PERU)
        kb.keysets.rekey(encoder)
        job = Jobs(kb).submit(Check(), actor="tester")
        with Follower(kb), worker_process(settings):
            assert ask(kb, encoder, CAPITAL)[0].hits[0].value == "Lima"
            assert _waited(kb, job.job_id) == "succeeded"
            asked = "SELECT a.application_name, s.ssl, s.version FROM pg_stat_activity a JOIN pg_stat_ssl s USING (pid)"
            used = tls.server.execute(f"{asked} WHERE a.usename = 'colmlm'")
    assert len(used) >= 3 and all(is_tls for _, is_tls, _ in used), used
    assert {version for _, _, version in used} == {"TLSv1.3"}
    assert {name for name, _, _ in used} >= {"colmlm", "colmlm worker"}


def _waited(kb: KnowledgeBase, job_id: int) -> str:
    until = time.monotonic() + 60
    while not (job := Jobs(kb).get(job_id)).is_over and time.monotonic() < until:
        time.sleep(0.1)
    return job.state


def test_a_server_that_cannot_prove_its_name_is_refused_in_plain_words(
    tls: TLSServer, tmp_path: Path
) -> None:
    with pytest.raises(DatabaseUnavailable, match="server certificate for") as refused:
        database.connect_database(tls.settings(tmp_path / "home", host="127.0.0.1"))  # it is for localhost
    assert PASSWORD not in str(refused.value)
    other = tmp_path / "other.crt"
    other.write_bytes(_pem(Authority.new("another").certificate))
    with pytest.raises(DatabaseUnavailable, match="certificate verify failed"):
        database.connect_database(tls.settings(tmp_path / "home", sslrootcert=other))
    with pytest.raises(DatabaseUnavailable, match="no encryption"):
        database.connect_database(tls.settings(tmp_path / "home", sslmode="disable"))
