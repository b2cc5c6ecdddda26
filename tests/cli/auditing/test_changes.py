from __future__ import annotations

import json
from pathlib import Path

from sqlalchemy import create_engine, text

from tests.cli.conftest import Run


def test_the_log_is_shown_page_by_page(run: Run, keyed_here: list[int]) -> None:
    whole = run("log", "list", "--json").json["changes"]
    assert [change["seq"] for change in whole] == sorted((c["seq"] for c in whole), reverse=True)
    newest = run("log", "list", "--limit", 1, "--json").json
    assert (newest["changes"], newest["next_before"], newest["next_after"]) == (
        whole[:1],
        whole[0]["seq"],
        None,
    )
    older = run("log", "list", "--before", newest["next_before"], "--json").json
    assert (older["changes"], older["next_before"]) == (whole[1:], None)
    assert (
        "ingest" in run("log", "list").out
        and f"--before {whole[0]['seq']}" in run("log", "list", "--limit", 1).err
    )


def test_a_principal_is_named_as_the_table_shows_it_or_by_the_name_alone(
    run: Run, keyed_here: list[int]
) -> None:
    whole = run("log", "list", "--json").json["changes"]
    name = whole[0]["principal"]["name"]
    for said in (name, f"local {name}"):
        assert run("log", "list", "--principal", said, "--json").json["changes"] == whole
    assert run("log", "list", "--principal", f"{name}x", "--json").json["changes"] == []


def test_the_log_is_followed_from_its_beginning(run: Run, keyed_here: list[int]) -> None:
    whole = run("log", "list", "--json").json["changes"][::-1]
    assert run("log", "list", "--oldest", "--json").json["changes"] == whole
    assert run("log", "list", "--after", 0, "--json").json["changes"] == whole
    first = run("log", "list", "--oldest", "--limit", 1, "--json").json
    assert (first["changes"], first["next_after"], first["next_before"]) == (
        whole[:1],
        whole[0]["seq"],
        None,
    )
    assert run("log", "list", "--after", first["next_after"], "--json").json["changes"] == whole[1:]
    refused = run("log", "list", "--oldest", "--before", 2)
    assert refused.code == 2 and refused.err.count("\n") == 1


def test_an_undo_is_shown_as_an_undo(run: Run, atlas: list[int]) -> None:
    why = ("--reason", "r")
    edit = run("facts", "edit", atlas[0], "--value", "Cusco", *why, "--json").json
    undo = run("facts", "undo", edit["seq"], *why, "--json").json
    assert (undo["kind"], undo["undoes"]) == ("update", edit["seq"])
    log = run("log", "list", "--limit", 2, "--json").json["changes"]
    assert [change["undoes"] for change in log] == [edit["seq"], None]
    assert f"update (undo of {edit['seq']})" in run("log", "list").out
    assert f"update (undo of {edit['seq']})" in run("trace", "fact", atlas[0]).out
    again = run("facts", "undo", undo["seq"], *why).out
    assert f"undo of change {undo['seq']}: update of fact {atlas[0]}" in again


def test_a_sound_base_passes_the_check(run: Run, keyed_here: list[int]) -> None:
    ran = run("doctor", "--data", "--json")
    assert ran.code == 0 and ran.json["ok"]
    assert ran.json["live_facts"] == ran.json["live_keys"] == ran.json["index_ids"] == 2
    assert run("doctor", "--data").out.startswith("ok\n")


def test_a_damaged_text_fails_the_check(run: Run, keyed_here: list[int], database_url: str) -> None:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE document SET text = replace(text, 'Lima', 'LIMA')"))
    engine.dispose()
    ran = run("doctor", "--data", "--json")
    assert ran.code == 1 and not ran.json["ok"] and len(ran.json["non_verbatim_facts"]) == 1
    assert run("doctor", "--data").out.startswith("NOT ok\n")


def test_what_is_derived_is_mended_and_what_is_true_is_not(
    run: Run, keyed_here: list[int], database_url: str
) -> None:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE fact_key SET id = 1000 WHERE id = (SELECT min(id) FROM fact_key)"))
    assert run("doctor", "--data", "--dry-run").code == 2
    dry = run("doctor", "--data", "--repair", "--dry-run", "--json")
    assert dry.code == 1 and len(dry.json["mended"]) == 1 and not dry.json["ok"]
    assert (
        run("doctor", "--data", "--repair").out.startswith("mended: ") and run("doctor", "--data").code == 0
    )
    with engine.begin() as connection:
        connection.execute(text("UPDATE document SET text = replace(text, 'Lima', 'LIMA')"))
    engine.dispose()
    ran = run("doctor", "--data", "--repair")
    assert ran.code == 1 and "NOT mended" in ran.out


def test_a_change_and_the_growth_of_the_log_are_proved_without_the_log(
    run: Run, atlas: list[int], tmp_path: Path
) -> None:
    head, proof, grown = (tmp_path / name for name in ("head.json", "proof.json", "grown.json"))
    assert run("log", "export", "--output", head).code == 0
    assert run("facts", "delete", atlas[0], "--reason", "a test", "--yes").code == 0
    seq = run("log", "list", "--json").json["changes"][0]["seq"]
    assert "in the log of" in run("log", "export", "--change", seq, "--output", proof).err
    assert run("log", "export", "--against", head, "--output", grown).code == 0
    shown = run("log", "verify", proof)
    assert shown.code == 0 and shown.out.startswith(f"ok\nchange {seq}, delete by tester, ")
    told = run("log", "verify", grown, "--json").json
    assert told["ok"] and told["since"] == json.loads(head.read_text())["size"] and not told["demanded"]
    assert told["since_root"] == json.loads(head.read_text())["root"]
    assert run("log", "verify", proof, "--key", "0" * 64).code != 0
    proof.write_text(proof.read_text().replace('"kind": "delete"', '"kind": "update"'))
    refused = run("log", "verify", proof)
    assert refused.code != 0 and "error: " in refused.err
    assert run("log", "export", "--change", 999).code == run("log", "diff", 1, 999).code
    assert run("log", "export", "--against", __file__).code != 0
