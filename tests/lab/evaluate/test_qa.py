"""`colmlm-lab evaluate qa`: every method answers the same questions, and a run that was stopped goes on."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.methods.methods import LivePassages
from colmlm.model.lm.config import MINILM
from colmlm.model.text.markup import ASKER, STANDARD
from tests.cli.conftest import Run
from tests.kb.corpora import PERU, document, fact_id, ingest
from tests.tiny import tiny_checkpoint

CONTEXT = "Peru is a country. The capital of Peru is Lima. Its great lake is Titicaca."
ASKED = {"Which city rules Peru?": ("Lima", 42), "Which lake is great?": ("Titicaca", 66)}


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    qas = [{"question": q, "answer": a, "answer_start": CONTEXT.index(a)} for q, (a, _) in ASKED.items()]
    qas += [{"question": "Is it old?", "answer": "a country", "answer_start": CONTEXT.index("a country")}]
    file = tmp_path / "squad.jsonl"
    file.write_text(json.dumps({"title": "Peru", "context": CONTEXT, "qas": qas}) + "\n")
    return file


@pytest.fixture
def lands(run: Run, squad: Path) -> Path:
    """The questions' own paragraph, keyed with the tiny model."""
    assert run("corpus", "add", squad, "--format", "squad", "--corpus", "lands").code == 0
    assert run("keysets", "fill").code == 0
    return squad


BASE = ("evaluate", "qa", "--corpus", "lands", "--max-tokens", 4, "--squad")


def test_a_forced_lookup_finds_facts_and_a_stopped_run_goes_on(run: Run, lands: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    forced = (*BASE, lands, "--mode", "forced", "--threshold", -1, "--json", "--out", out)
    first = run(*forced, "--limit", 2, "--batch", 1)
    assert first.code == 0 and first.json["questions"] == 2
    lines = out.read_text().splitlines()
    head, row = json.loads(lines[0])["run"], json.loads(lines[1])
    assert (head["method"], head["mode"], len(lines)) == ("co-lmlm", "forced", 3)
    assert row["lookups"] >= row["hits"] >= 1 and row["values"][0] in row["output"]

    both = run(*forced)
    assert "2 answers are there already" in both.err
    assert out.read_text().splitlines()[:3] == lines and len(out.read_text().splitlines()) == 4
    report = both.json
    assert (report["questions"], report["num_with_fact"], report["hits"] >= 3) == (3, 3, True)
    right = sum(json.loads(line)["right_fact"] for line in out.read_text().splitlines()[1:])
    assert report["right_fact"]["share"] == round(right / 3, 4)
    assert report["exact_match"]["low"] <= report["exact_match"]["share"] <= report["exact_match"]["high"]

    refused = run(*BASE, lands, "--mode", "off", "--out", out)
    assert refused.code == 2 and "another run" in refused.err
    off = run(*BASE, lands, "--mode", "off")
    assert off.code == 0 and "lookups" in off.out and "exact match" in off.out


def test_keys_of_one_kind_are_asked_alone(run: Run, lands: Path) -> None:
    assert run("keysets", "fill", "--kinds", "context,question").code == 0
    forced = (*BASE, lands, "--mode", "forced", "--threshold", -1, "--json")
    by_context = run(*forced, "--keys", "context").json
    assert (by_context["key_kinds"], by_context["num_keys"], by_context["questions"]) == (["context"], 3, 3)
    both = run(*forced, "--keys", "context", "--keys", "question").json
    assert (both["key_kinds"], both["num_keys"]) == (["context", "question"], 6)
    assert by_context["exact_match_without_values"]["share"] <= by_context["exact_match"]["share"]
    refused = run(*BASE, lands, "--mode", "off", "--keys", "context")
    assert refused.code == 2 and "--keys" in refused.err


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_baselines_answer_the_same_questions(run: Run, lands: Path, checkpoint: Path, tmp_path: Path) -> None:
    standard = tiny_checkpoint(tmp_path / "standard", markup=STANDARD)
    plain = run(*BASE, lands, "--method", "standard", "--checkpoint", standard, "--json").json
    assert (plain["mode"], plain["lookups"], plain["questions"]) == ("off", 0, 3)
    rag = run(*BASE, lands, "--method", "rag", "--checkpoint", standard, "--json").json
    assert (rag["method"], rag["mode"], rag["questions"]) == ("rag", "off", 3)
    assert rag["checkpoint_id"] == plain["checkpoint_id"]
    forced = (
        *BASE,
        lands,
        "--method",
        "rag",
        "--mode",
        "forced",
        "--threshold",
        -1,
        "--json",
        "--checkpoint",
    )
    assert run(*forced, checkpoint).json["lookups"] >= 3
    unkeyed = run(*forced, tiny_checkpoint(tmp_path / "other", seed=5))
    assert unkeyed.code == 2 and "colmlm keysets fill --checkpoint" in unkeyed.err


def test_passages_are_as_many_and_as_asked(run: Run, lands: Path, tmp_path: Path) -> None:
    rag = (
        *BASE,
        lands,
        "--method",
        "rag",
        "--checkpoint",
        tiny_checkpoint(tmp_path / "s", markup=STANDARD),
        "--json",
    )
    plain = run(*BASE, lands, "--mode", "off", "--json").json
    out, bare = tmp_path / "rows.jsonl", ("--passages-as", "no-instruction", "--passages-as", "no-ending")
    found = {
        name: run(*rag, *words).json
        for name, words in {
            "paper's": (),
            "form alone": ("--passages", 0),
            "no form": ("--passages", 1, *bare, "--out", out),
            "no title": ("--passages", 1, *bare, "--passages-as", "no-titles"),
            "nothing": ("--passages", 0, *bare),
        }.items()
    }
    tokens = {name: report["prompt_tokens"] for name, report in found.items()}
    assert tokens["paper's"] > tokens["form alone"] > tokens["nothing"] == plain["prompt_tokens"]
    assert tokens["paper's"] > tokens["no form"] > tokens["no title"] > tokens["nothing"]
    head = json.loads(out.read_text().splitlines()[0])["run"]
    assert (head["passages"], head["passages_as"]) == (1, ["no-ending", "no-instruction"])
    assert "passages" not in found["paper's"]
    refused = run(*BASE, lands, "--mode", "off", "--passages", 1)
    assert refused.code == 2 and "--passages" in refused.err


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_what_a_method_cannot_do_is_refused(run: Run, lands: Path, tmp_path: Path) -> None:
    standard = tiny_checkpoint(tmp_path / "standard", markup=STANDARD)
    looking = run(*BASE, lands, "--method", "standard", "--checkpoint", standard, "--mode", "auto")
    assert looking.code == 2 and "looks nothing up" in looking.err
    other = run(*BASE, lands, "--method", "asker", "--checkpoint", standard)
    assert other.code == 2 and "is of method standard" in other.err
    unnamed = run(*BASE, lands, "--method", "rel-lmlm")
    assert unnamed.code == 2 and "trained with method rel-lmlm" in unnamed.err
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    assert run(*BASE, empty).code == 2
    assert run("evaluate", "qa", "--corpus", "nowhere", "--squad", lands).code == 3


@pytest.mark.slow(reason="keys a corpus by four methods")
@pytest.mark.skipif(find_spec(MINILM.package) is None, reason=f"{MINILM.package} is not installed")
def test_asker_asks_the_sentence_encoders_keyset_while_another_is_active(
    run: Run, lands: Path, tmp_path: Path
) -> None:
    asker = tiny_checkpoint(tmp_path / "asker", markup=ASKER)
    asked = (*BASE, lands, "--method", "asker", "--checkpoint", asker, "--mode", "forced", "--threshold", -1)
    unkeyed = run(*asked)
    assert unkeyed.code == 2 and "colmlm keysets create --encoder minilm" in unkeyed.err
    keyset = run("keysets", "create", "--encoder", "minilm", "--json").json
    assert keyset["state"] == "ready"
    answered = run(*asked, "--json").json
    assert answered["keyset_id"] == keyset["keyset_id"] and answered["keys_of"] == keyset["checkpoint_id"]
    assert answered["lookups"] == 3


def test_passages_are_of_what_the_documents_say_now(kb: KnowledgeBase) -> None:
    ingest(kb, PERU, document("old", "Cusco was the old capital."))
    live = LivePassages(kb, ["lands"])
    (before,) = live.augment(["Which is the capital of Peru?"])
    assert "Its capital is Lima." in before and before.endswith(
        "Which is the capital of Peru? \n The answer is"
    )
    Erasure(kb).erase([fact_id(kb, "Lima")], actor="tester", reason="test")
    (after,) = live.augment(["Which is the capital of Peru?"])
    assert "Lima" not in after and "Its capital is \u2588" in after
    ingest(kb, document("new", "Arequipa wants to be the capital of Peru."))
    assert "Arequipa" in live.augment(["Which is the capital of Peru?"])[0]


def test_questions_of_a_set_are_asked_and_what_the_corpora_cover_is_told(
    run: Run, lands: Path, tmp_path: Path
) -> None:
    file = tmp_path / "set.jsonl"
    rows = [("Which city rules Peru?", ["lima"]), ("Who wrote Emma?", ["Jane Austen"])]
    file.write_text("".join(json.dumps({"question": q, "answers": a}) + "\n" for q, a in rows))
    words = ("evaluate", "qa", "--corpus", "lands", "--max-tokens", 4)
    report = run(*words, "--questions", file, "--mode", "off", "--json").json
    assert (report["questions"], report["covered"], report["num_with_fact"]) == (2, 0.5, 0)
    assert "long_tail" not in report
    assert run(*words, "--questions", file, "--squad", lands).code == 2
    file.write_text('{"relation": "P36", "sub_label": "Peru", "obj_label": "Lima"}\n')
    out = tmp_path / "statements.jsonl"
    run(*words, "--questions", file, "--mode", "off", "--out", out)
    assert json.loads(out.read_text().splitlines()[1])["question"] == "The capital of Peru is"
    file.write_text("{}\n")
    refused = run(*words, "--questions", file)
    assert refused.code == 2 and "set.jsonl:1 has no question" in refused.err


def test_rare_subjects_have_figures_of_their_own(run: Run, lands: Path, tmp_path: Path) -> None:
    file = tmp_path / "popqa.jsonl"
    rows = [("Which city rules Peru?", 99), ("Which lake is great?", 100), ("Who wrote Emma?", 5000)]
    made = [{"question": q, "possible_answers": '["Lima"]', "s_pop": views} for q, views in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in made))
    words = (
        "evaluate",
        "qa",
        "--corpus",
        "lands",
        "--max-tokens",
        4,
        "--mode",
        "off",
        "--json",
        "--questions",
        file,
    )
    report = run(*words).json
    assert (report["questions"], report["long_tail"]["questions"]) == (3, 1)
    file.write_text("".join(json.dumps(row) + "\n" for row in made[1:]))
    assert run(*words).json["long_tail"] is None
