"""`colmlm-lab evaluate growth` fills a knowledge base of its own and measures it at each size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from colmlm.kb.corpus.format import to_record
from colmlm.lab.evaluate.growth import KEYS_PER_CHUNK, Cloud, filler
from tests.cli.conftest import Run
from tests.kb.corpora import numbered


@pytest.fixture
def halls(run: Run, home: Path, tmp_path: Path) -> str:
    file = tmp_path / "halls.jsonl"
    file.write_text("".join(json.dumps(to_record(one)) + "\n" for one in numbered(30)))
    assert run("corpus", "add", file, "--corpus", "halls", "--format", "annotated").code == 0
    assert run("keysets", "fill").code == 0
    return "halls"


def test_made_up_keys_are_like_the_real_ones_and_the_same_however_they_are_drawn() -> None:
    rng = np.random.default_rng(0)
    real = rng.standard_normal((400, 16), np.float32) * np.linspace(0.1, 1, 16, dtype=np.float32) + 1
    real /= np.linalg.norm(real, axis=1, keepdims=True)
    cloud = Cloud.of(real, seed=3)
    drawn = np.concatenate(list(cloud.draw(0, 5000)))
    assert np.allclose(np.linalg.norm(drawn, axis=1), 1, atol=1e-5)
    assert np.abs(drawn.mean(axis=0) - real.mean(axis=0)).max() < 0.02
    assert np.abs(np.cov(drawn.T) - np.cov(real.T)).max() < 0.01
    pieces = [*cloud.draw(0, 7), *cloud.draw(7, KEYS_PER_CHUNK + 3)]
    assert sum(map(len, pieces)) == KEYS_PER_CHUNK + 3
    assert np.array_equal(np.concatenate(pieces)[:5000], drawn)


def test_made_up_facts_have_values_of_real_ones() -> None:
    made = list(filler(["Lima", "a long value"], 100, 145, seed=0))
    spans = [(one.text[span.start : span.end], span.value) for one in made for span in one.facts]
    assert [len(one.facts) for one in made] == [20, 20, 5]
    assert all(text == value for text, value in spans) and {v for _, v in spans} == {"Lima", "a long value"}


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_each_size_is_measured_once_and_the_users_facts_stay(run: Run, halls: str, tmp_path: Path) -> None:
    out = tmp_path / "growth.jsonl"
    before = run("log", "list", "--json", "--limit", 1000).json
    words = ("evaluate", "growth", "--corpus", halls, "--questions", 5, "--facts", 20, "--max-tokens", 2)
    first = run(*words, "--size", 30, "--out", out, "--json").json
    report = run(*words, "--size", 30, "--size", 300, "--out", out, "--json").json
    small, large = report["sizes"]
    assert small == first["sizes"][0] and len(out.read_text().splitlines()) == 3
    assert (report["real_facts"], report["questions"]) == (20, 5)
    assert (small["facts"], small["unrelated"], large["facts"], large["unrelated"]) == (30, 10, 300, 280)
    for row in report["sizes"]:
        assert row["index"] == "IDMap2,Flat"
        assert row["index_bytes_per_fact"] > 64 * 4 and row["key_bytes_per_fact"] > 64 * 2
        assert row["key_bytes_per_fact"] < row["database_bytes_per_fact"]
        assert {"search_p50_ms", "lookup_p50_ms", "lookup_p99_ms"} <= row.keys()
    assert -1 < small["nearest_unrelated"] <= large["nearest_unrelated"] <= 1
    assert run("log", "list", "--json", "--limit", 1000).json == before
    assert run(*words, "--size", 30, "--out", out, "--seed", 1).code == 2
    shown = run(*words, "--size", 30, "--out", tmp_path / "other.jsonl")
    assert shown.code == 0 and "exact match" in shown.out and "real facts" in shown.out


def test_what_cannot_be_measured_is_refused(run: Run, halls: str) -> None:
    too_many = run("evaluate", "growth", "--corpus", halls, "--size", 10, "--facts", 20)
    assert too_many.code == 2 and "20 facts are more than the least size, 10; give fewer" in too_many.err
    assert run("evaluate", "growth", "--corpus", "nowhere").code == 3
