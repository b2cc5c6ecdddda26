"""Facts mended by command: questions, spans, facts of documents, many at once from a file, and undone."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import QUESTIONS, TEXT, Run

WHY = ("--reason", "a test", "--json")
SEAT = "Where is the seat of Peru's government?"


def test_a_question_is_edited_and_keyed_at_once(run: Run, atlas: list[int]) -> None:
    edit = run("facts", "edit", atlas[0], "--question", SEAT, *WHY).json
    assert edit["keyed"] and edit["kind"] == "update"
    assert run("facts", "show", atlas[0], "--json").json["question"] == SEAT
    ran = run("facts", "edit", atlas[1], "--question", SEAT, "--no-key", "--anyway", "--reason", "a test")
    assert "colmlm keysets fill" in ran.err
    assert run("doctor", "--data", "--json").json["unkeyed_facts"] == 1
    told = run("trace", "fact", atlas[0], "--json").json["versions"]
    assert [one["question"] for one in told] == [QUESTIONS["Lima"], SEAT]


def test_a_value_alone_loads_no_model(run: Run, atlas: list[int], monkeypatch) -> None:
    monkeypatch.setenv("COLMLM_CHECKPOINT", "/nowhere")
    assert run("facts", "edit", atlas[0], "--value", "Cusco", *WHY).json["keyed"]


def test_an_edit_without_anything_to_edit_is_a_wrong_command_line(run: Run, atlas: list[int]) -> None:
    assert run("facts", "edit", atlas[0], "--reason", "a test").code == 2
    assert run("facts", "edit", "--value", "x", "--reason", "a test").code == 2
    assert run("facts", "edit", atlas[0], "--value", "x").code == 2, "it takes a reason"


def test_a_fact_is_added_to_a_document_by_text_and_by_offsets(run: Run, atlas: list[int]) -> None:
    at = run("facts", "show", atlas[0], "--json").json["source"]["document_id"]
    ran = run("facts", "add", "--document", at, "--text", "Peru", *WHY[:2])
    assert ran.code == 2 and "begins at 0," in ran.err
    added = run("facts", "add", "--document", at, "--start", 0, "--end", 4, "--question", "Who?", *WHY).json
    fact = run("facts", "show", *added["fact_ids"], "--json").json
    assert (fact["value"], fact["question"], fact["source"]["start"]) == ("Peru", "Who?", 0)
    assert added["kind"] == "insert" and added["keyed"]
    text = run("facts", "add", "--document", at, "--text", "country", *WHY).json
    assert run("facts", "show", *text["fact_ids"], "--json").json["source"]["start"] == TEXT.index("country")
    assert run("facts", "add", "--document", at, "--value", "Peru", *WHY[:2]).code == 2
    assert run("facts", "add", "--question", "Who?", *WHY[:2]).code == 2


def test_a_span_is_moved_and_the_move_undone(run: Run, atlas: list[int]) -> None:
    moved = run("facts", "edit", atlas[0], "--text", "country", *WHY).json
    assert moved["kind"] == "move" and run("facts", "show", atlas[0], "--json").json["value"] == "country"
    undone = run("facts", "undo", moved["seq"], *WHY).json
    assert undone["fact_ids"] == atlas[:1]
    fact = run("facts", "show", atlas[0], "--json").json
    assert (fact["value"], fact["source"]["start"]) == ("Lima", TEXT.index("Lima"))
    ran = run("facts", "undo", moved["seq"], "--reason", "again")
    assert ran.code == 4 and "a later change" in ran.err
    assert run("facts", "edit", atlas[0], "--text", "Titicaca", *WHY[:2]).code == 4


def test_a_span_is_moved_with_another_question(run: Run, atlas: list[int]) -> None:
    moved = run("facts", "edit", atlas[0], "--text", "country", "--question", SEAT, *WHY).json
    fact = run("facts", "show", atlas[0], "--json").json
    assert (fact["value"], fact["question"], fact["version"]) == ("country", SEAT, 2)
    assert moved["kind"] == "move" and moved["keyed"]


def test_many_are_edited_from_a_file_in_one_change(run: Run, atlas: list[int], tmp_path: Path) -> None:
    file = tmp_path / "corrections.csv"
    file.write_text(f"fact_id,value,question\n{atlas[0]},Cusco,\n{atlas[1]},,{SEAT}\n")
    dry = run("facts", "edit", "--file", file, "--dry-run", "--json").json
    assert [(e["line"], e["was_value"], e["value"], e["question"]) for e in dry["edits"]] == [
        (2, "Lima", "Cusco", None),
        (3, None, None, SEAT),
    ]
    assert (
        dry["dry_run"]
        and dry["seq"] is None
        and "Cusco" in run("facts", "edit", "--file", file, "--dry-run").out
    )
    assert run("facts", "list", "--text", "Cusco", "--json").json["facts"] == []
    done = run("facts", "edit", "--file", file, *WHY).json
    assert done["fact_ids"] == atlas and done["keyed"] and done["kind"] == "update"
    again = run("facts", "edit", "--file", file, *WHY).json
    assert again["seq"] is None and again["unchanged"] == 2
    run("facts", "undo", done["seq"], *WHY)
    assert run("facts", "show", atlas[0], "--json").json["value"] == "Lima"
    assert run("facts", "show", atlas[1], "--json").json["question"] == QUESTIONS["Titicaca"]


def test_one_bad_row_of_a_file_keeps_all_from_being_edited(
    run: Run, atlas: list[int], tmp_path: Path
) -> None:
    file = tmp_path / "corrections.jsonl"
    file.write_text(f'{{"fact_id": {atlas[0]}, "value": "Cusco"}}\n{{"fact_id": 998, "value": "x"}}\n[]\n')
    ran = run("facts", "edit", "--file", file, *WHY)
    assert ran.code == 3
    assert [(row["line"], row["cause"]) for row in ran.json["refused"]] == [
        (2, "there is no fact 998"),
        (3, "it is not a JSON object"),
    ]
    assert "corrections.jsonl, line 2: there is no fact 998" in ran.err
    assert run("facts", "show", atlas[0], "--json").json["value"] == "Lima"
