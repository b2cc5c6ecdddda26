"""The formulas give what was measured, and the guide says what the formulas give."""

from __future__ import annotations

import re

import pytest

from colmlm.cli.operating.sizing import Load, format_bytes, key_row_bytes, sizes
from colmlm.kb.errors import InvalidValue
from colmlm.kb.lookup.index import KeyIndex
from tests.cli.conftest import invoke
from tests.places import ROOT

GUIDE = (ROOT / "docs" / "explanation" / "sizing.md").read_text()
ROW = re.compile(r"^\| ([\d,]+) \| (\d+) \| (\d+) \| (.*) \|$", re.MULTILINE)


def test_a_million_facts_take_what_was_measured() -> None:
    """benchmarks/results/store.md; a fact of the benchmark brings 96 bytes of text.

    Sentences were measured later, at 30,000 of its facts: 335 bytes each.
    """
    found = sizes(Load(facts=1_000_000, dim=576, text_bytes=96, code_bytes=144))
    assert found.database / 1e6 == pytest.approx(1881 + 335, rel=0.01)
    assert found.index_memory / 1e6 == pytest.approx(253, rel=0.01)
    assert found.index_spec == "OPQ144_576,IVF2048,PQ144"


@pytest.mark.parametrize(("facts", "search_ms"), [(200_000, 0.363), (1_000_000, 1.708), (10_000_000, 5.5)])
def test_a_search_takes_about_what_was_measured(facts: int, search_ms: float) -> None:
    """Of an index with codes of bits, by as many lists as find 0.98 of the nearest keys, which were drawn at random."""
    assert sizes(Load(facts=facts, dim=576)).search_ms == pytest.approx(search_ms, rel=0.4)


def test_every_row_of_the_guide_is_what_the_formulas_give() -> None:
    rows = ROW.findall(GUIDE)
    assert len(rows) >= 6 and rows[-1][0] == "2,200,000,000"
    for facts, dim, code, rest in rows:
        load = Load(facts=int(facts.replace(",", "")), dim=int(dim))
        if load.code != int(code):
            load = Load(facts=load.facts, dim=load.dim, code_bytes=int(code))
        found = sizes(load)
        said = (
            *map(format_bytes, (found.database, found.index_memory, found.index_training_memory, found.disk)),
            f"{found.search_ms:,.1f} ms",
            f"{found.lookups_per_second_and_core:,.1f}",
        )
        assert rest == " | ".join(said)


def test_more_of_anything_is_never_smaller() -> None:
    base = Load(facts=3_000_000, dim=512)
    least = sizes(base)
    for more in (
        Load(facts=6_000_000, dim=512),
        Load(facts=3_000_000, dim=768),
        Load(facts=3_000_000, dim=512, keys_per_fact=2),
        Load(facts=3_000_000, dim=512, keysets=2),
    ):
        found = sizes(more)
        assert found.database > least.database and found.disk > least.disk and found.memory > least.memory
    assert sizes(Load(facts=3_000_000, dim=512, text_bytes=900)).database > least.database
    assert key_row_bytes(2000) > key_row_bytes(978) > key_row_bytes(64) > 2 * 64


def test_a_spec_with_other_codes_is_one_that_the_index_takes() -> None:
    spec = sizes(Load(facts=60_000, dim=64, code_bytes=8)).index_spec
    assert spec == "OPQ8_64,IVF512,PQ8" and KeyIndex(64, spec).spec == spec


def test_codes_longer_than_their_keys_are_refused_and_those_that_an_exact_index_lacks_are_told_of() -> None:
    many = ("db", "sizing", "--facts", 1_000_000, "--dim", 64, "--code-bytes")
    ran = invoke(*many, 100)
    assert ran.code == 2 and "from 1 to 64" in ran.err
    assert invoke(*many, 64).code == 0 and not invoke(*many, 64).err
    few = invoke("db", "sizing", "--facts", 50_000, "--code-bytes", 8, "--json")
    assert few.json["sizes"] == invoke("db", "sizing", "--facts", 50_000, "--json").json["sizes"]
    assert "--code-bytes changes nothing" in few.err


def test_wide_keys_are_taken_to_have_a_bit_for_each_number() -> None:
    found, paper = (sizes(Load(facts=1_000_000, dim=576, code_bytes=code)) for code in (None, 144))
    assert found.index_spec == "RR576,IVF2048,RaBitQ"
    assert found.index_memory < paper.index_memory and found.search_ms < paper.search_ms


def test_the_command_gives_the_same_in_json_and_words() -> None:
    ran = invoke("db", "sizing", "--facts", 1_000_000, "--text-bytes", 96, "--json")
    assert (
        ran.code == 0
        and ran.json["sizes"]["database"] == sizes(Load(facts=1_000_000, text_bytes=96)).database
    )
    assert ran.json["load"]["dim"] == 576
    assert "1,000,000 facts of width 576" in invoke("db", "sizing", "--facts", 1_000_000).out
    assert invoke("db", "sizing", "--facts", 0).code == 2
    with pytest.raises(InvalidValue):
        Load(facts=0)
