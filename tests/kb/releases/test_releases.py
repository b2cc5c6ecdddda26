"""Releases are imported whole or refused whole, survive a kill, and say what they do not know."""

from __future__ import annotations

import base64
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import faiss as untyped_faiss
import numpy as np
import numpy.typing as npt
import pytest
from sqlalchemy import text

from colmlm.kb.corpus.release import ENTRIES, IDS, INDEX
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.releases.releases import BLOCK, PIECE, ImportReport, ReleaseProgress
from colmlm.kb.removal.certificate import check_here, issue_forget_certificate
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.synthetic import fact_text, make_release, synthetic_keys
from tests.fakes import FakeEncoder
from tests.kb.corpora import document, ingest
from tests.refusals import raises_code

faiss: Any = untyped_faiss  # its type stubs lack half of the methods that SWIG generates
NUM, DIM = 600, 32
WHO = {"actor": "tester", "reason": "test"}
Vectors = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def made() -> Vectors:
    return synthetic_keys(NUM, DIM, seed=1)


@pytest.fixture
def release(tmp_path: Path, made: Vectors) -> Path:
    make_release(tmp_path / "release", made)
    return tmp_path / "release"


def take(kb: KnowledgeBase, release: Path, checkpoint: CheckpointInfo | None = None) -> ImportReport:
    report = kb.releases.take(release, "wiki", checkpoint, **WHO)
    assert report.keyset_id is not None
    kb.keysets.finish(report.keyset_id)
    return report


def found(kb: KnowledgeBase, query: Vectors) -> tuple[str | None, bool]:
    checkpoint = kb.keysets.active().checkpoint_id
    (lookup,) = kb.lookups.find(query[None], checkpoint_id=checkpoint, threshold=-1)
    return (lookup.hits[0].value, lookup.hits[0].approximate) if lookup.hits else (None, False)


def change_entries(release: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(release / ENTRIES)) as entries, entries:
        entries.execute(statement, values)


def entry(number: int, **other: object) -> str:
    said = {"id": f"e{number:09d}", "fact_span": "x", "metadata": {"sample_id": "s", "fact_idx": 0}}
    return json.dumps({**said, **other})


@pytest.mark.slow(reason="imports a release several times")
def test_all_facts_come_with_their_keys_and_places(kb: KnowledgeBase, release: Path, made: Vectors) -> None:
    report = take(kb, release)
    assert (report.entries, report.facts, report.samples, report.adopted) == (NUM, NUM, NUM // 20, NUM)
    right = sum(found(kb, made[n]) == (fact_text(n).value, True) for n in range(NUM))
    assert right > 0.95 * NUM  # keys are estimates, so that a few are nearer to another's
    fact = next(one for one in kb.facts.find(limit=NUM) if one.value == fact_text(47).value)
    assert fact.source is None and fact.sample is not None
    assert (fact.sample.corpus, fact.sample.sample_id, fact.sample.fact_idx) == ("wiki", "s0000002", 7)
    assert kb.upkeep.fsck().ok


def test_scores_are_those_of_the_adopted_keys(kb: KnowledgeBase, release: Path, made: Vectors) -> None:
    take(kb, release)
    checkpoint = kb.keysets.active().checkpoint_id
    (lookup,) = kb.lookups.find(made[5][None], checkpoint_id=checkpoint, threshold=-1)
    with kb.engine.connect() as connection:
        asked = text("SELECT key, kind FROM fact_key WHERE id = :id")
        stored, kind = connection.execute(asked, {"id": lookup.hits[0].key_id}).one()
    assert kind == "adopted"
    key = np.frombuffer(stored, "<f2").astype(np.float32)
    assert lookup.hits[0].score == pytest.approx(float(key @ made[5]), abs=1e-6)
    assert lookup.hits[0].score < 0.999  # the key is not the one that was added to their index


def test_a_deleted_fact_is_gone_at_once_and_an_erased_one_stays_out(
    kb: KnowledgeBase, release: Path, made: Vectors
) -> None:
    take(kb, release)
    value = fact_text(9).value
    (fact,) = (one for one in kb.facts.find(limit=NUM) if one.value == value)
    kb.facts.delete([fact.fact_id], **WHO)
    assert found(kb, made[9])[0] != value
    Erasure(kb).erase([fact.fact_id], **WHO)
    again = kb.releases.take(release, "another", **WHO)
    assert (again.facts, again.suppressed, again.adopted) == (NUM - 1, 1, NUM - 1)
    assert value not in {one.value for one in kb.facts.find(corpus="another", limit=NUM)}
    assert kb.upkeep.fsck().ok


def test_importing_again_changes_nothing(kb: KnowledgeBase, release: Path) -> None:
    take(kb, release)
    kb.facts.delete([kb.facts.find(limit=1)[0].fact_id], **WHO)
    changes = len(kb.log.changes())
    again = kb.releases.take(release, "wiki", **WHO)
    assert (again.facts, again.there, again.adopted) == (0, NUM, 0)
    assert len(kb.log.changes()) == changes


class _Killed(Exception):
    """Stands for the end of the process, between two transactions."""


@pytest.mark.slow(reason="imports a release several times")
@pytest.mark.parametrize("when", ["facts", "keys"])
def test_what_was_broken_off_goes_on_where_it_was(kb: KnowledgeBase, tmp_path: Path, when: str) -> None:
    num = 2 * max(PIECE, BLOCK) + 500
    folder = tmp_path / "release"
    make_release(folder, synthetic_keys(num, 8, seed=2), spec="IVF16,PQ4x4")

    def kill(done: int, total: int) -> None:
        raise _Killed

    with pytest.raises(_Killed):
        kb.releases.take(folder, "wiki", progress=ReleaseProgress(**{when: kill}), **WHO)
    report = take(kb, folder)
    first = PIECE if when == "facts" else num
    assert (report.there, report.facts) == (first, num - first)
    assert 0 < report.adopted == num - (BLOCK if when == "keys" else 0) or report.adopted < num
    (stats,) = kb.corpora.all()
    keyset = kb.keysets.show(kb.keysets.active().keyset_id)
    assert (stats.facts, keyset.num_keys, keyset.num_unkeyed) == (num, num, 0)


def test_a_corrected_edition_is_not_taken_for_what_is_there(kb: KnowledgeBase, release: Path) -> None:
    take(kb, release)
    said = entry(3, fact_span="Corrected", metadata={"sample_id": "s0000000", "fact_idx": 3})
    change_entries(release, "UPDATE entries SET data = ? WHERE entry_id = 'e000000003'", said)
    with raises_code("InvalidRelease", match="another edition"):
        kb.releases.take(release, "wiki", **WHO)
    assert fact_text(3).value in {one.value for one in kb.facts.find(corpus="wiki", limit=NUM)}
    again = kb.releases.take(release, "edition 2", **WHO)
    assert (again.there, again.facts) == (0, NUM)
    assert "Corrected" in {one.value for one in kb.facts.find(corpus="edition 2", limit=NUM)}


def test_keys_of_another_index_get_a_keyset_of_their_own(
    kb: KnowledgeBase, release: Path, tmp_path: Path
) -> None:
    first = take(kb, release)
    make_release(tmp_path / "other", synthetic_keys(NUM, DIM, seed=5))
    (release / INDEX).write_bytes((tmp_path / "other" / INDEX).read_bytes())
    second = take(kb, release)
    assert (second.facts, second.there, second.adopted) == (0, NUM, NUM)
    assert second.keyset_id != first.keyset_id and second.digest == first.digest


@pytest.mark.slow(reason="imports a release several times")
def test_what_was_broken_off_does_not_go_on_in_another_index(kb: KnowledgeBase, tmp_path: Path) -> None:
    num, checkpoint = 2 * BLOCK + 500, FakeEncoder(dim=8).checkpoint
    for name, seed in (("release", 2), ("other", 3)):
        make_release(tmp_path / name, synthetic_keys(num, 8, seed=seed), spec="IVF16,PQ4x4")

    def kill(done: int, total: int) -> None:
        raise _Killed

    with pytest.raises(_Killed):
        kb.releases.take(tmp_path / "release", "wiki", checkpoint, progress=ReleaseProgress(keys=kill), **WHO)
    changes = len(kb.log.changes())
    with raises_code("InvalidRelease", match="keyset 1 has keys of these facts from another index"):
        kb.releases.take(tmp_path / "other", "wiki", checkpoint, **WHO)
    assert len(kb.log.changes()) == changes
    assert take(kb, tmp_path / "other").adopted == num
    assert 0 < take(kb, tmp_path / "release", checkpoint).adopted < num


def test_keys_are_replaced_once_the_documents_come(kb: KnowledgeBase, release: Path) -> None:
    encoder = FakeEncoder(dim=DIM)
    report = take(kb, release, encoder.checkpoint)
    spans = [(fact_text(n).value, fact_text(n).question) for n in range(20)]
    pieces = [piece for span in spans for piece in ("It says ", span, ". ")]
    before = {one.value: one.fact_id for one in kb.facts.find(limit=NUM)}
    ingest(kb, document("s0000000", *pieces), corpus="wiki")
    now = {one.value: one for one in kb.facts.find(limit=NUM)}
    assert {value: one.fact_id for value, one in now.items()} == before
    placed = now[fact_text(3).value]
    assert placed.source is not None and placed.sample is None and placed.question == fact_text(3).question
    kb.keysets.rekey(encoder)
    query = encoder.encode_questions([fact_text(3).question])[0]
    assert found(kb, query) == (fact_text(3).value, False)
    keyset = kb.keysets.show(report.keyset_id or 0)
    assert (keyset.num_keys, keyset.num_unkeyed) == (NUM, 0)
    assert kb.upkeep.fsck().ok


def test_a_fact_that_gets_a_question_is_keyed_by_it(kb: KnowledgeBase, release: Path) -> None:
    encoder = FakeEncoder(dim=DIM)
    take(kb, release, encoder.checkpoint)
    fact = kb.facts.find(limit=1)[0]
    kb.facts.edit(fact.fact_id, question="Which is it?", **WHO)
    kb.keysets.rekey(encoder)
    assert found(kb, encoder.encode_questions(["Which is it?"])[0]) == (fact.value, False)


def test_a_trace_says_that_there_are_no_offsets(kb: KnowledgeBase, release: Path) -> None:
    take(kb, release)
    fact = kb.facts.find(limit=1)[0]
    splice = Splice(0, len(fact.value), "hit", fact.fact_id, fact.version, 0.9)
    checkpoint = kb.keysets.active().checkpoint_id
    output = NewOutput("p", fact.value, checkpoint, "forced", 1, (splice,))
    (traced,) = kb.outputs.trace(kb.outputs.record(output)).splices
    assert traced.source is None and traced.sample == fact.sample is not None
    of_fact = kb.outputs.trace_fact(fact.fact_id)
    assert of_fact.context is None and of_fact.fact.sample == fact.sample


def test_a_lookup_of_the_past_says_so_too(kb: KnowledgeBase, release: Path, made: Vectors) -> None:
    take(kb, release)
    checkpoint = kb.keysets.active().checkpoint_id
    then = kb.lookups.as_of(kb.log.head_seq())
    (lookup,) = then.find(made[4][None], checkpoint_id=checkpoint, threshold=-1)
    assert (lookup.hits[0].value, lookup.hits[0].approximate) == (fact_text(4).value, True)


def test_a_certificate_says_that_there_are_no_offsets(kb: KnowledgeBase, release: Path) -> None:
    take(kb, release, FakeEncoder(dim=DIM).checkpoint)
    forgetting = Forgetting(kb, FakeEncoder(dim=DIM))
    plan = forgetting.plan(Selector(text=fact_text(5).value), policy="successor", **WHO)
    forgetting.apply(plan.run_id, **WHO)
    forgetting.verify(plan.run_id)
    issued = issue_forget_certificate(kb, plan.run_id)
    predicate = json.loads(base64.b64decode(json.loads(issued)["payload"]))["predicate"]
    assert (predicate["facts"]["forgotten"], predicate["facts"]["without_offsets"]) == (1, 1)
    assert check_here(kb, issued.encode()).ok


def test_a_corpus_without_texts_is_not_exported_as_if_it_were_empty(kb: KnowledgeBase, release: Path) -> None:
    take(kb, release)
    with raises_code("TextsMissing", match="have no text to export"):
        kb.corpora.export("wiki")


def _truncated(release: Path) -> None:
    file = release / ENTRIES
    file.write_bytes(file.read_bytes()[:-4096])


def _damaged(release: Path) -> None:
    data = bytearray((release / ENTRIES).read_bytes())
    data[4096:20_480] = bytes(16_384)
    (release / ENTRIES).write_bytes(data)


def _shorter_map(release: Path) -> None:
    lines = (release / IDS).read_text().splitlines(keepends=True)
    (release / IDS).write_text("".join(lines[:-1]))


def _twice_in_map(release: Path) -> None:
    lines = (release / IDS).read_text().splitlines(keepends=True)
    (release / IDS).write_text("".join([*lines[:-1], lines[0]]))


def _unknown_in_map(release: Path) -> None:
    lines = (release / IDS).read_text().splitlines(keepends=True)
    (release / IDS).write_text("".join([*lines[:-1], "nobody\n"]))


def _other_numbers(release: Path) -> None:
    lines = (release / IDS).read_text().splitlines()
    (release / IDS).write_text("".join(f"{n + 1}\t{line}\n" for n, line in enumerate(lines)))


def _without_metadata(release: Path) -> None:
    said = json.dumps({"id": "e000000003", "fact_span": "x"})
    change_entries(release, "UPDATE entries SET data = ? WHERE entry_id = 'e000000003'", said)


def _same_fact(release: Path) -> None:
    about = {"sample_id": "s0000001", "fact_idx": 1}
    said = entry(3, metadata=about)
    change_entries(release, "UPDATE entries SET data = ? WHERE entry_id = 'e000000003'", said)


def _other_id(release: Path) -> None:
    change_entries(release, "UPDATE entries SET data = ? WHERE entry_id = 'e000000003'", entry(4))


def _blank_span(release: Path) -> None:
    said = entry(3, fact_span=" ")
    change_entries(release, "UPDATE entries SET data = ? WHERE entry_id = 'e000000003'", said)


def _no_table(release: Path) -> None:
    change_entries(release, "ALTER TABLE entries RENAME TO others")


def _no_index_of_ids(release: Path) -> None:
    change_entries(release, "CREATE TABLE copied (entry_id TEXT, data TEXT)")
    change_entries(release, "INSERT INTO copied SELECT * FROM entries")
    change_entries(release, "DROP TABLE entries")
    change_entries(release, "ALTER TABLE copied RENAME TO entries")


def _not_an_index(release: Path) -> None:
    (release / INDEX).write_bytes(b"nothing of the kind")


def _short_index(release: Path) -> None:
    (release / INDEX).write_bytes((release / INDEX).read_bytes()[:-500])


def _too_many_counted(release: Path) -> None:
    """Names 2**49 keys in the head of an index with inverted lists, for which nobody has memory."""
    _write_index(release, faiss.index_factory(DIM, "IVF4,Flat"), synthetic_keys(NUM, DIM, seed=1))
    said = (release / INDEX).read_bytes()
    assert int.from_bytes(said[8:16], "little") == NUM
    (release / INDEX).write_bytes(said[:8] + (2**49).to_bytes(8, "little") + said[16:])


def _write_index(release: Path, index: Any, keys: Vectors) -> None:
    index.train(keys)
    index.add(keys)
    faiss.write_index(index, str(release / INDEX))


def _without_direction(release: Path) -> None:
    keys = synthetic_keys(NUM, DIM, seed=1)
    keys[-1] = 0
    _write_index(release, faiss.IndexFlatIP(DIM), keys)


def _no_keys_back(release: Path) -> None:
    _write_index(release, faiss.index_factory(DIM, "ITQ16,LSH"), synthetic_keys(NUM, DIM, seed=1))


def _no_database(release: Path) -> None:
    (release / ENTRIES).write_bytes(b"x" * 5000)


def _unfinished(release: Path) -> None:
    (release / f"{ENTRIES}-wal").write_bytes(b"x")


def _no_file(release: Path) -> None:
    (release / IDS).unlink()


def test_a_bad_release_is_refused_before_anything_is_stored(
    kb: KnowledgeBase, release: Path, subtests: pytest.Subtests
) -> None:
    for damage, said in (
        (_truncated, "bytes that its header tells of"),
        (_damaged, "malformed"),
        (_shorter_map, "has 599 lines for the 600 entries"),
        (_twice_in_map, "line 600 .* names entry e000000000, as a line before it"),
        (_unknown_in_map, "names entry nobody, which"),
        (_other_numbers, "line 1 .* is for key 1, where"),
        (_without_metadata, "entry e000000003 .* `metadata`"),
        (_same_fact, "are both fact 1 of sample 's0000001'"),
        (_other_id, "says that its id is 'e000000004'"),
        (_blank_span, "fact_span of 1 character,"),
        (_no_table, "no table entries"),
        (_no_index_of_ids, "CREATE UNIQUE INDEX"),
        (_not_an_index, "cannot be read as a Faiss index"),
        (_short_index, "cannot be read as a Faiss index"),
        (_too_many_counted, "too short for the 562949953421312 keys"),
        (_without_direction, "keys without a direction"),
        (_no_keys_back, "does not give its keys back"),
        (_no_database, "not an SQLite database"),
        (_unfinished, "is still in entries.db-wal"),
        (_no_file, "has no faiss_id_to_entry_id.txt"),
    ):
        with subtests.test(damage=damage.__name__):
            bad = copytree(release, release.with_name(damage.__name__))
            damage(bad)
            with raises_code("InvalidRelease", match=said):
                kb.releases.take(bad, "wiki", **WHO)
            assert kb.log.changes() == [] and kb.corpora.all() == []


def test_keys_of_another_width_or_number_are_refused(
    kb: KnowledgeBase, release: Path, tmp_path: Path
) -> None:
    checkpoint = replace(FakeEncoder().checkpoint, dim=DIM + 1)
    with raises_code("InvalidRelease", match=f"have {DIM} numbers"):
        kb.releases.take(release, "wiki", checkpoint, **WHO)
    make_release(tmp_path / "other", synthetic_keys(NUM - 1, DIM, seed=1))
    (release / INDEX).write_bytes((tmp_path / "other" / INDEX).read_bytes())
    with raises_code("InvalidRelease", match="599 keys for 600 entries"):
        kb.releases.take(release, "wiki", **WHO)
    assert kb.corpora.all() == []


def test_a_corpus_that_has_documents_of_these_names_is_left_alone(kb: KnowledgeBase, release: Path) -> None:
    ingest(kb, document("s0000003", "It says ", ("Lima", "Which?"), "."), corpus="wiki")
    with raises_code("InvalidRelease", match="is a document with a text"):
        kb.releases.take(release, "wiki", **WHO)
    assert [one.value for one in kb.facts.find(limit=NUM)] == ["Lima"]


@pytest.mark.parametrize(
    "spec", ["Flat", "IVF8,Flat", "PQ8x4", "IVF8,SQ8", "OPQ8,IVF8,PQ8x4", "RR32,IVF8,RaBitQ", "IDMap2,Flat"]
)
def test_keys_of_any_plain_index_are_read(
    kb: KnowledgeBase, tmp_path: Path, made: Vectors, spec: str
) -> None:
    make_release(tmp_path / "r", made, spec=spec)
    take(kb, tmp_path / "r")
    right = sum(found(kb, made[n])[0] == fact_text(n).value for n in range(0, NUM, 10))
    assert right >= 0.9 * (NUM // 10)


def test_an_index_that_gives_no_keys_back_is_refused(
    kb: KnowledgeBase, tmp_path: Path, made: Vectors
) -> None:
    make_release(tmp_path / "r", made, spec="IVF8,PQ8x4fs")
    with raises_code("InvalidRelease", match="FastScan"):
        kb.releases.take(tmp_path / "r", "wiki", **WHO)
