"""fsck finds each kind of damage, and calls nothing damage that is not."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, PERU, fact_id, ingest

WHO = {"actor": "tester", "reason": "test"}


@pytest.fixture
def keyed(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    return kb


def _damage(kb: KnowledgeBase, statement: str) -> None:
    with kb.engine.begin() as connection:
        connection.execute(text(statement))


def test_a_sound_base_is_ok(keyed: KnowledgeBase):
    keyed.facts.delete([fact_id(keyed, "Lima")], **WHO)
    report = keyed.upkeep.fsck()
    assert report.ok and (report.live_facts, report.live_keys, report.index_ids) == (2, 2, 2)


def test_an_empty_base_is_ok(kb: KnowledgeBase):
    report = kb.upkeep.fsck()
    assert report.ok and report.live_facts == report.changes_checked == 0


def test_facts_without_a_key_are_work_and_not_damage(keyed: KnowledgeBase):
    keyed.facts.add("Who?", "Me", **WHO)
    report = keyed.upkeep.fsck()
    assert report.ok and report.unkeyed_facts == 1 and report.live_facts == 4


def test_a_key_that_the_index_lacks_is_named(keyed: KnowledgeBase):
    """The counts agree here: one id too many and one too few."""
    keyed.lookups.snapshot()
    _damage(keyed, "UPDATE fact_key SET id = 1000 WHERE id = (SELECT min(id) FROM fact_key)")
    report = keyed.upkeep.fsck()
    assert not report.ok and report.live_keys == report.index_ids == 3
    assert report.keys_missing_from_index == (1000,) and len(report.index_ids_without_live_key) == 1
    keyed.lookups.rebuild()
    assert keyed.upkeep.fsck().ok


def test_a_value_that_its_document_does_not_say_is_named(keyed: KnowledgeBase):
    lima = fact_id(keyed, "Lima")
    _damage(keyed, f"UPDATE fact SET span_start = span_start + 1 WHERE id = {lima}")
    assert keyed.upkeep.fsck().non_verbatim_facts == (lima,) and not keyed.upkeep.fsck().ok


def test_a_corrected_value_is_not_damage(keyed: KnowledgeBase):
    keyed.facts.edit(fact_id(keyed, "Lima"), "Cusco", **WHO)
    assert keyed.upkeep.fsck().ok


@pytest.mark.parametrize(
    ("statement", "problems"),
    [
        (
            "UPDATE document SET text = text || ' '",
            2,
        ),  # the digest, and the sentences, which go with the text
        ("UPDATE fact SET deleted_seq = 1", 1),
        ("UPDATE fact_version SET from_seq = 50 WHERE value = 'Lima'", 1),
        ("UPDATE sentence SET words = words || to_tsvector('zebra')", 1),
        ("DELETE FROM sentence WHERE ordinal = 2", 1),
    ],
)
def test_other_damage_is_told_in_words(keyed: KnowledgeBase, statement: str, problems: int):
    _damage(keyed, statement)
    report = keyed.upkeep.fsck()
    assert not report.ok and len(report.problems) == problems


def test_a_value_that_the_log_has_another_digest_of_is_named(keyed: KnowledgeBase):
    """As the owner of the database may alter it, with the log left as it is."""
    lima, amazon = fact_id(keyed, "Lima"), fact_id(keyed, "Amazon")
    keyed.facts.edit(lima, "Cusco", **WHO)
    keyed.facts.delete([amazon], **WHO)
    keyed.facts.restore([amazon], **WHO)
    assert keyed.upkeep.fsck().ok
    for fact, version in ((lima, 2), (lima, 1), (amazon, 2)):
        of_version = f"WHERE fact_id = {fact} AND version = {version}"
        with keyed.engine.connect() as connection:
            was = connection.execute(text(f"SELECT value FROM fact_version {of_version}")).scalar_one()
        _damage(keyed, f"UPDATE fact_version SET value = 'Arequipa' {of_version}")
        report = keyed.upkeep.fsck()
        assert not report.ok
        assert f"1 fact with a value that is not the one in the log: [{fact}]" in report.problems
        _damage(keyed, f"UPDATE fact_version SET value = '{was}' {of_version}")
    assert keyed.upkeep.fsck().ok


def test_an_output_whose_words_are_not_those_of_its_fact_is_named(keyed: KnowledgeBase):
    lima = fact_id(keyed, "Lima")
    whole, part = Splice(6, 10, "hit", lima, 1, 0.9), Splice(0, 2, "hit", lima, 1, part_start=1, part_end=3)
    for output, splice in (("It is Lima.", whole), ("im", part)):
        seq = keyed.log.head_seq()
        keyed.outputs.record(NewOutput(CAPITAL, output, "fake", "auto", seq, (splice,)))
    assert keyed.upkeep.fsck().ok
    _damage(keyed, "UPDATE generation SET output = replace(output, 'im', 'om')")
    assert keyed.upkeep.fsck().problems == ("2 outputs that do not say the values which they name: [1, 2]",)
