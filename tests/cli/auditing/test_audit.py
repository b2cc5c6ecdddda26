from __future__ import annotations

import json
from pathlib import Path

from colmlm.kb.log.chain import NewDenial, record_denial
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.cli.conftest import QUESTIONS, Run
from tests.cli.contents.test_generation import FORCED, PROMPT
from tests.kb.log.rewriting import tamper
from tests.kb.log.test_chain import put_in


def test_a_witnessed_head_and_an_exported_log_are_verified(
    run: Run, atlas: list[int], tmp_path: Path
) -> None:
    head, log = tmp_path / "head.json", tmp_path / "log.jsonl"
    exported = run("log", "export", "--output", head)
    assert exported.code == 0 and "the head, change 1, signed by key" in exported.err
    run("facts", "edit", atlas[0], "--value", "Cusco", "--reason", "wrong")
    ran = run("log", "verify", "--against", head, "--json")
    assert (
        ran.code == 0 and ran.json["ok"] and ran.json["holds_witnessed"] and ran.json["changes_checked"] == 2
    )
    assert run("log", "export", "--changes", "--output", log).code == 0
    shown = run("log", "verify", "--log", log, "--against", head).out
    assert shown.startswith("ok\n") and "0 days ago, is in this log; 1 change came after it\n" in shown
    assert "It does not prove:\n" in shown and "No earlier head" not in shown
    key, pem = ran.json["witnessed"]["key"], tmp_path / "base.pem"
    assert f"the head in head.json was signed by key {key}, which may be anybody's" in shown
    assert run("log", "export", "--public-key", "--output", pem).code == 0
    for named in (("--key", key), ("--public-key", pem)):
        demanded = run("log", "verify", "--log", log, *named)
        assert (
            demanded.code == 0
            and f"the head in log.jsonl was signed by key {key}, the one that you named\n" in demanded.out
        )
        assert run("log", "verify", *named).code == 2, "nothing is signed"
    refused = run("log", "verify", "--log", log, "--key", "0" * 16)
    assert refused.code == 1 and refused.err.count("\n") == 1
    assert run("log", "export", "--output", head).code == 0
    log.write_text(log.read_text().replace("wrong", "right"))
    forged = run("log", "verify", "--log", log, "--against", head)
    assert forged.code == 1 and "has its hash in this log, but the change breaks the chain\n" in forged.out
    broken = run("log", "verify", "--log", log, "--json")
    assert broken.code == 1 and broken.json["first_break"] == 2
    assert run("log", "verify", "--against", log.with_name("none")).code == 2
    assert json.loads(run("log", "export").out)["seq"] == 2


def test_a_log_that_is_cut_at_its_end_passes_and_that_is_said(
    run: Run, atlas: list[int], tmp_path: Path, database_url: str
) -> None:
    head = tmp_path / "head.json"
    run("facts", "edit", atlas[0], "--value", "Cusco", "--reason", "wrong")
    run("log", "export", "--output", head)
    with KnowledgeBase.open(Settings(home=Path("unused"), database_url=database_url)) as kb:
        tamper(kb, "DELETE FROM change WHERE seq = 2")
    cut = run("log", "verify")
    assert cut.code == 0 and "No earlier head was given: a log cut at its end" in cut.out
    assert "that facts and stored outputs are what the log says" in cut.out
    assert run("log", "verify", "--against", head).code == 1


def test_the_log_is_shown_by_filters(run: Run, atlas: list[int]) -> None:
    run("facts", "edit", atlas[0], "--value", "Cusco", "--reason", "wrong", "--actor", "ann")
    found = run("log", "list", "--actor", "ann", "--fact", atlas[0], "--since", "2020-01-01", "--json").json
    assert [change["kind"] for change in found["changes"]] == ["update"]
    assert run("log", "list", "--until", "2020-01-01T00:00+01:00", "--json").json["changes"] == []
    assert "wrong" in run("log", "list", "--kind", "update").out
    assert run("log", "list", "--since", "someday").code == 2
    assert run("log", "list", "--since", "2020-01-01d").code == 2
    for since in ("1d", "yesterday"):
        assert len(run("log", "list", "--since", since, "--json").json["changes"]) == 2
    listed = run("log", "list").out.splitlines()
    assert f"update  {atlas[0]} " in listed[1] and "ingest  2 facts" in listed[2]


def test_two_changes_are_compared(run: Run, atlas: list[int]) -> None:
    run("facts", "edit", atlas[0], "--value", "Cusco", "--reason", "wrong")
    found = run("log", "diff", 1, 2, "--json").json
    assert found["counts"]["updated"] == 1 and found["facts"][0]["old"] == "Lima"
    assert (found["facts"][0]["seq"], found["facts"][0]["actor"]) == (2, "tester")
    assert "Cusco" in run("log", "diff", 1, 2, "--corpus", "atlas").out
    run("facts", "delete", atlas[1], "--reason", "wrong", "--yes", "--actor", "ann")
    found = run("log", "diff", "--since", "1d", "--json").json
    assert (found["first"], found["last"]) == (0, 3)
    gone = run("log", "diff", 2, "--json").json["facts"][0]
    assert (gone["kind"], gone["seq"], gone["actor"]) == ("deleted", 3, "ann")
    assert run("log", "diff").code == 2 and run("log", "diff", 1, "--since", "1d").code == 2
    assert run("log", "diff", 2, 1).code == 2 and run("log", "diff", 0, 9).code == 3


def test_the_past_is_looked_up_and_generated_from(run: Run, keyed: list[int]) -> None:
    then = run("log", "list", "--json").json["changes"][0]["seq"]
    run("facts", "edit", keyed[0], "--value", "Cusco", "--reason", "wrong")
    run("facts", "delete", keyed[1], "--reason", "wrong", "--yes")
    asked = ("lookup", QUESTIONS["Lima"], "--threshold", -1, "--json")
    assert {hit["value"] for hit in run(*asked, "--as-of", then).json["hits"]} == {"Lima", "Titicaca"}
    assert {hit["value"] for hit in run(*asked).json["hits"]} == {"Cusco"}
    said = run("generate", PROMPT, *FORCED, "--as-of", then, "--json").json
    assert said["seq"] == then and said["splices"][0]["value"] in ("Lima", "Titicaca")
    fact_id = said["splices"][0]["fact_id"]
    found = run("trace", "fact", fact_id, "--impact", "--json").json
    assert found["outputs"][0]["generation_id"] == said["generation_id"]
    assert found["outputs"][0]["since"] in ("corrected", "deleted")
    assert said["splices"][0]["value"] in run("trace", "fact", fact_id, "--impact").out
    assert run(*asked, "--as-of", 999).code == 3
    assert run(*asked, "--as-of", then, "--min-seq", then).code == 2
    assert run("generate", PROMPT, *FORCED, "--as-of", 999).code == 3


def test_denials_are_shown_newest_first_and_what_was_not_kept_is_counted(run: Run, database_url: str) -> None:
    denied = {
        "request_id": "r1",
        "method": "POST",
        "path": "/v1/facts",
        "status": 403,
        "cause": "RightMissing",
    }
    settings = Settings(home=Path("unused"), database_url=database_url)
    with KnowledgeBase.open(settings) as kb, kb.sessions.begin() as session:
        record_denial(session, NewDenial(**denied, actor="ann"))  # type: ignore[arg-type]
        session.flush()
        record_denial(session, NewDenial(**denied, actor=None, num_unrecorded=7))  # type: ignore[arg-type]
    found = run("log", "denials", "--json").json["denials"]
    assert [(d["actor"], d["cause"]) for d in found] == [(None, "RightMissing"), ("ann", "RightMissing")]
    shown = run("log", "denials")
    assert "nobody" in shown.out and "/v1/facts" in shown.out and "7 more were only logged" in shown.err
    older = run("log", "denials", "--after", found[0]["denial_id"], "--json").json["denials"]
    assert [d["actor"] for d in older] == ["ann"]


def test_a_break_is_named_and_sealed(run: Run, atlas: list[int], database_url: str) -> None:
    settings = Settings(home=Path("unused"), database_url=database_url)
    with KnowledgeBase.open(settings) as kb:
        bogus = put_in(kb)
    broken = run("log", "verify")
    assert broken.code == 1 and f"change {bogus}: goes on from hash made up" in broken.out
    assert run("doctor", "--data", "--json").json["chain_breaks"] == [bogus]
    seal = ("log", "seal", bogus, "--reason", "put in by hand")
    assert run(*seal).code == 2, "there is nobody to ask"
    assert "Would seal" in run(*seal, "--dry-run").out and run("log", "verify").code == 1
    assert run("log", "seal", 1, "--reason", "r", "--yes").code == 3
    sealed = run(*seal, "--yes", "--json").json
    assert sealed["seq"] == bogus + 1 and sealed["breaks"][0]["seq"] == bogus
    told = run("log", "verify")
    assert told.code == 0 and "ok except 1 sealed break:" in told.out
    found = run("log", "verify", "--json").json
    assert found["ok"] and found["breaks"] == [] and found["sealed"][0]["sealed_by"] == bogus + 1
    fsck = run("doctor", "--data")
    assert fsck.code == 0 and f"sealed breaks of the chain, at changes: {bogus} (1)" in fsck.out
