from __future__ import annotations

from pathlib import Path

import pytest

from colmlm.kb.answers.records import NO_SURE_ANSWER
from colmlm.model.text.markup import STANDARD
from tests.cli.conftest import QUESTIONS, Run
from tests.tiny import tiny_checkpoint

PROMPT = "Question: What is the capital of Peru?\nAnswer:"
FORCED = ("--mode", "forced", "--threshold", -1, "--max-tokens", 4)


def test_an_output_is_stored_with_the_source_of_every_spliced_span(run: Run, keyed: list[int]) -> None:
    said = run("generate", PROMPT, *FORCED, "--json").json
    splice = said["splices"][0]
    assert splice["outcome"] == "hit" and splice["fact_id"] in keyed
    assert said["output"][splice["output_start"] : splice["output_end"]] == splice["value"]
    traced = run("trace", "output", said["generation_id"], "--json").json
    assert traced == said
    shown = run("trace", "output", said["generation_id"]).out
    assert f"[{splice['value']}](0)" in shown and "atlas/peru" in shown


def test_a_fact_names_the_outputs_that_used_it_also_after_its_deletion(run: Run, keyed: list[int]) -> None:
    said = run("generate", PROMPT, *FORCED, "--json").json
    fact_id = said["splices"][0]["fact_id"]
    run("facts", "delete", fact_id, "--reason", "wrong source", "--yes", "--actor", "ann")
    traced = run("trace", "fact", fact_id, "--json").json
    assert [use["generation_id"] for use in traced["uses"]] == [said["generation_id"]]
    assert "wrong source" in run("trace", "fact", fact_id).out
    assert "deleted by ann" in run("trace", "output", said["generation_id"]).out


def test_no_match_is_a_normal_result(run: Run, keyed: list[int]) -> None:
    said = run("generate", "Peru is", "--mode", "forced", "--threshold", 1, "--max-tokens", 2, "--json")
    assert said.code == 0 and said.json["splices"][0]["outcome"] == "no_match"
    assert said.json["output"] and not said.json["abstained"]
    found = run("lookup", "unheard of", "--threshold", 1, "--json")
    assert found.code == 0 and not found.json["match"] and found.json["runner_up"] < 1
    assert "No match" in run("lookup", "unheard of", "--threshold", 1).out


def test_a_model_that_looks_nothing_up_takes_mode_off(run: Run, keyed: list[int], tmp_path: Path) -> None:
    standard = tiny_checkpoint(tmp_path / "standard", markup=STANDARD)
    asked = ("generate", "Peru is", "--checkpoint", standard, "--max-tokens", 2)
    for more in ((), ("--stream",)):
        refused = run(*asked, *more)
        assert (
            refused.code == 2 and "These settings cannot be used: a model of method standard" in refused.err
        )
        assert "pass --mode off" in refused.err and "No text was generated" in refused.err


UNANSWERED = ("generate", PROMPT, "--mode", "forced", "--threshold", 1, "--max-tokens", 4)


def test_a_question_that_nothing_answers_gets_no_words_of_the_model(run: Run, keyed: list[int]) -> None:
    said = run(*UNANSWERED, "--json")
    assert said.code == 3 and said.json["output"] == "" and said.json["abstained"]
    assert [splice["outcome"] for splice in said.json["splices"]] == ["no_match"]
    assert run("trace", "output", said.json["generation_id"], "--json").json == said.json
    (listed,) = run("trace", "outputs", "--json").json["outputs"]
    assert listed["abstained"] and not listed["uncited"]
    for more in ((), ("--stream",)):
        shown = run(*UNANSWERED, *more)
        assert shown.code == 3 and shown.out.startswith(f"{NO_SURE_ANSWER}\n") and "abstained" in shown.out
    assert "abstained" in run("trace", "outputs").out
    assert run("doctor", "--data").code == 0


def test_a_question_that_the_model_does_not_look_up_gets_no_words_either(run: Run, keyed: list[int]) -> None:
    said = run("generate", PROMPT, "--threshold", 1, "--max-tokens", 4, "--fact-bias", -100, "--json")
    assert said.code == 3 and said.json["abstained"] and said.json["splices"] == []


def test_what_the_model_says_uncited_is_called_so(run: Run, keyed: list[int]) -> None:
    said = run(*UNANSWERED, "--on-miss", "continue", "--json")
    assert said.code == 0 and said.json["output"] and said.json["uncited"] and not said.json["abstained"]
    (listed,) = run("trace", "outputs", "--json").json["outputs"]
    assert listed["uncited"] and not listed["abstained"]
    traced = run("trace", "output", said.json["generation_id"]).out
    assert "uncited: all of it" in traced and "(uncited)" in run("trace", "outputs").out
    assert "uncited: all of it" in run(*UNANSWERED, "--on-miss", "continue").out
    cited = run("generate", "Peru is", *FORCED).out
    assert not run("trace", "outputs", "--json").json["outputs"][0]["uncited"]
    assert "uncited: [" in cited and " characters\n" in cited and cited.partition("\n")[0].count("](0)") == 1


def test_facts_are_found_by_what_is_asked_for_or_by_the_setting(
    run: Run, keyed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("generate", PROMPT, "--mode", "forced", "--max-tokens", 2, "--json")
    read = run(*words, "--ranking", "reader").json
    assert read["ranking"] == "reader" and read["splices"][0]["value"] == "Lima"
    assert 0.5 < read["splices"][0]["score"] <= 1
    assert run(*words).json["ranking"] == "reader", "it is a question"
    assert run("generate", "Peru is", *words[2:]).json["ranking"] == "key"
    assert run(*words, "--threshold", -1, "--ranking", "key").json["ranking"] == "key"
    monkeypatch.setenv("COLMLM_RANKING", "words")
    assert run(*words, "--threshold", -1).json["ranking"] == "words"
    assert run(*words, "--as-of", read["seq"], "--threshold", -1).json["ranking"] == "key"
    assert [one["ranking"] for one in run("trace", "outputs", "--json").json["outputs"]][-1] == "reader"
    assert "ranking reader" in run("trace", "output", read["generation_id"]).out
    past = run(*words, "--as-of", read["seq"], "--ranking", "reader")
    assert past.code == 2 and "by key alone" in past.err
    unasked = run("generate", "Peru", "--mode", "off", "--as-of", read["seq"], "--ranking", "reader")
    assert unasked.code == 2 and "leave --ranking out" in unasked.err, "also where nothing is looked up"
    monkeypatch.setenv("COLMLM_RANKING", "guess")
    assert "COLMLM_RANKING" in run(*words).err


def test_a_bias_has_the_model_look_up_where_it_would_not(run: Run, keyed: list[int]) -> None:
    words = ("generate", PROMPT, "--threshold", 1, "--max-tokens", 2, "--json")
    assert run(*words).json["splices"] == []
    assert [s["outcome"] for s in run(*words, "--fact-bias", 1000).json["splices"]] == ["no_match"]
    assert run(*words, "--fact-bias", "nan").code == 2


def test_a_seed_decides_what_is_sampled(run: Run, keyed: list[int]) -> None:
    words = ("generate", "Peru", "--mode", "off", "--temperature", 5, "--max-tokens", 8, "--json", "--seed")
    assert run(*words, 1).json["output"] == run(*words, 1).json["output"] != run(*words, 2).json["output"]


def test_a_lookup_gives_facts_best_first_with_their_sources(run: Run, keyed: list[int]) -> None:
    found = run("lookup", QUESTIONS["Lima"], "-k", 5, "--threshold", -1, "--json").json
    assert {hit["fact_id"] for hit in found["hits"]} == set(keyed)
    assert found["hits"][0]["score"] >= found["hits"][1]["score"]
    assert found["hits"][0]["source"]["external_id"] == "peru"
    assert run("lookup", QUESTIONS["Lima"], "--threshold", -1).out.count("atlas/peru") == 2


def test_a_lookup_does_not_wait_for_a_change_that_nobody_made(run: Run, keyed: list[int]) -> None:
    ran = run("lookup", "anything", "--min-seq", 10_000)
    assert ran.code == 3 and "No change 10000" in ran.err


def test_before_anything_is_keyed_a_lookup_says_what_to_do(run: Run, atlas: list[int]) -> None:
    for words in (
        ["lookup", "anything"],
        ["generate", PROMPT, "--mode", "forced"],
        ["demo", "--corpus", "atlas"],
    ):
        ran = run(*words)
        assert ran.code == 4 and "keysets create" in ran.err, words


def test_a_prompt_that_is_no_text_is_one_line(run: Run) -> None:
    ran = run("generate", "\udcff", "--max-tokens", 2)
    assert ran.code == 2 and ran.err.count("\n") == 1
