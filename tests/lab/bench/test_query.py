"""`colmlm-lab bench query`: ours beside theirs at the same lookups, with base models in the place of trained ones."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from colmlm.model.lm.config import MINILM
from colmlm.model.text.markup import STANDARD
from tests.cli.conftest import Run
from tests.tiny import tiny_base, tiny_checkpoint


@pytest.mark.slow(reason="runs a benchmark to its end")
@pytest.mark.skipif(find_spec(MINILM.package) is None, reason=f"{MINILM.package} is not installed")
def test_a_query_in_words_is_decoded_and_encoded_and_a_state_is_one_forward(
    run: Run, annotated: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls.json"
    marked = "Ann is a [dblookup('Ann', 'Job') -> poet] poet."
    calls.write_text(json.dumps({"examples": [{"annotated_text": marked}]}))
    base = ("bench", "query", "--base", tiny_base(tmp_path / "base"), "--sites", 2)
    report = run(*base, "--annotated", annotated, "--rel-lmlm", calls, "--json").json
    assert (report["asker"]["sites"], report["rel-lmlm"]["sites"]) == (2, 1)
    assert (report["asker"]["query"], report["rel-lmlm"]["query_tokens"]) == ("gold", 7)
    for cost in (report["asker"], report["rel-lmlm"]):
        assert cost["decode_ms"] > 0 and cost["encode_ms"] > 0 and cost["vs_state"] > 1
        assert cost["vs_state"] == pytest.approx(cost["total_ms"] / cost["state_ms"], rel=0.02)
    assert "asker" in run(*base, "--annotated", annotated).out
    standard = tiny_checkpoint(tmp_path / "standard", markup=STANDARD)
    refused = run(*base, "--annotated", annotated, "--asker", standard)
    assert refused.code == 2 and "of method standard" in refused.err
    assert run(*base).code == 2
