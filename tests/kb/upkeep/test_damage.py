"""Every file the program writes and reads again: damaged anywhere, it is refused and made anew, and never believed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from sqlalchemy.orm import Session

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.operating.serving import TOKEN_FILE, access_token
from colmlm.kb.access import tokens as access
from colmlm.kb.errors import SignatureRefused, SnapshotRefused
from colmlm.kb.keys import keysets
from colmlm.kb.log.signing import KEY_FILE, signing_key
from colmlm.kb.lookup.open_replicas import open_caught_up_replica
from colmlm.kb.lookup.replica import load_saved_replica
from colmlm.kb.lookup.specs import FLAT_SPEC
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.kb.corpora import ingest, numbered, values

FACTS = 12
QUESTIONS = [f"Question {n}?" for n in range(FACTS)]


def damaged(data: bytes, flips: int) -> Iterator[bytes]:
    """The bytes with one bit changed at the first, the last and seeded places, cut short, and grown."""
    random = Random(f"{len(data)}")
    places = {*range(8), *range(len(data) - 8, len(data)), *random.sample(range(len(data)), flips)}
    for place in sorted(places):
        yield data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]
    for length in (0, 1, len(data) // 2, len(data) - 1):
        yield data[:length]
    yield data + b"\0"


@pytest.fixture(params=[FLAT_SPEC, "IVF2,Flat", "IVF2,PQ8x3"])
def saved(request: pytest.FixtureRequest, kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """A base with a snapshot, and edits since: two facts deleted, one of them abstaining, one corrected."""
    ingest(kb, *numbered(FACTS))
    kb.keysets.create(encoder.checkpoint, request.param)
    kb.keysets.rekey(encoder)
    kb.facts.delete([1], actor="tester", reason="test")
    kb.facts.delete([2], actor="tester", reason="test", abstain=True)
    kb.facts.edit(3, "corrected", actor="tester", reason="test")
    return kb


EXPECTED = [None, None, "corrected", *(f"value {n}" for n in range(3, FACTS))]


def files(kb: KnowledgeBase) -> list[Path]:
    found = sorted(file for file in kb.settings.index_directory.rglob("*") if file.is_file())
    assert {file.suffix for file in found} == {".faiss", ".json", ".history"} and len(found) == 3
    return found


def test_a_damaged_snapshot_is_never_loaded(saved: KnowledgeBase):
    with saved.sessions() as session:
        keyset = keysets.active_head(session)
        loaded = load_saved_replica(session, keyset, saved.settings)
        loaded.catch_up(connection_of(session))
        for file in files(saved):
            sound, tries = file.read_bytes(), 0
            for data in damaged(sound, 12):
                file.write_bytes(data)
                with pytest.raises(SnapshotRefused):
                    load_saved_replica(session, keyset, saved.settings)
                opened = open_caught_up_replica(session, keyset, saved.settings)
                assert opened.candidates.ids.tolist() == loaded.candidates.ids.tolist()
                tries += 1
            assert tries > 20, file.name
            file.write_bytes(sound)


def test_lookups_are_right_after_any_file_is_damaged_or_gone(saved: KnowledgeBase, encoder: FakeEncoder):
    for file in files(saved):
        sound = file.read_bytes()
        for data in (sound[: len(sound) // 2], sound[:-1] + bytes([sound[-1] ^ 4]), None):
            file.unlink() if data is None else file.write_bytes(data)
            with KnowledgeBase.open(saved.settings) as opened:
                assert values(opened, encoder, QUESTIONS) == EXPECTED
                assert opened.upkeep.fsck().ok
        file.write_bytes(sound)


def test_an_old_snapshot_put_back_is_caught_up(saved: KnowledgeBase, encoder: FakeEncoder, tmp_path: Path):
    shutil.copytree(saved.settings.index_directory, tmp_path / "old")
    saved.lookups.snapshot()
    saved.facts.restore([1], actor="tester", reason="test")
    saved.lookups.snapshot()
    shutil.rmtree(saved.settings.index_directory)
    shutil.copytree(tmp_path / "old", saved.settings.index_directory)
    with KnowledgeBase.open(saved.settings) as opened:
        assert values(opened, encoder, QUESTIONS) == ["value 0", *EXPECTED[1:]]
        assert opened.upkeep.fsck().ok


def test_files_of_two_snapshots_do_not_mix(saved: KnowledgeBase, encoder: FakeEncoder):
    old = {file.suffix: file.read_bytes() for file in files(saved)}
    saved.lookups.snapshot()
    for file in files(saved):
        new = file.read_bytes()
        file.write_bytes(old[file.suffix])
        with KnowledgeBase.open(saved.settings) as opened:
            assert values(opened, encoder, QUESTIONS) == EXPECTED
            assert opened.upkeep.fsck().ok
        file.write_bytes(new)


def test_a_damaged_signing_key_is_refused(tmp_path: Path):
    """Most flipped bits give another key that would sign, so nobody would notice."""
    signing_key(tmp_path)
    file = tmp_path / KEY_FILE
    sound = file.read_bytes()
    for data in damaged(sound, len(sound) // 2):
        file.write_bytes(data)
        with pytest.raises(SignatureRefused, match="damaged"):
            signing_key(tmp_path)


def test_a_damaged_token_opens_nothing_and_is_replaced(settings: Settings):
    with Runtime(settings) as runtime:
        token, file = access_token(runtime), settings.home / TOKEN_FILE
        for data in damaged(file.read_bytes()[:-1], 6):
            file.write_bytes(data)
            renewed = access_token(runtime)
            assert renewed == file.read_text().strip() != data.decode(errors="replace").strip()
            with Session(runtime.kb.engine) as session:
                assert access.verify_token(session, renewed) is not None
                assert renewed != token, "the damaged one is not guessed at"
