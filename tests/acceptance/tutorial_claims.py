"""The claims of each section of the tutorial, checked against what its commands printed and did."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import httpx

from colmlm.kb.log.audit import MAINTENANCE
from tests.acceptance.tutorial import NOTHING, PAGE, Failed, Newcomer, Ran
from tests.blocks import Command

HYDROGEN = (1, 905)  # the facts that say who discovered hydrogen
SILENT = {
    Command("Ask again", 'colmlm generate "Question: Who discovered hydrogen? Answer:" --mode forced'),
}


def go_through(somebody: Newcomer, page: Sequence[Command]) -> Iterator[tuple[Command, Ran]]:
    """Types every command in order and checks each section after its last. Raises `Failed` or an assertion."""
    for section, group in groupby(page, key=lambda command: command.section):
        if section not in CLAIMS:
            raise Failed(f"nothing is known of what the section {section!r} claims")
        if section == "Start over":
            assert somebody.interrupt() == 0, "Ctrl-C ends it in order"
        shown: list[Ran] = []
        for command in group:
            shown.append(somebody.type(command.text))
            assert shown[-1].code == (NOTHING if command in SILENT else 0), shown[-1]
            yield command, shown[-1]
        CLAIMS[section](somebody, shown)


def start(somebody: Newcomer, shown: list[Ran]) -> None:
    assert f"Address: http://127.0.0.1:{somebody.port}\n" in shown[0].output
    (demo,) = told(somebody, "colmlm corpus list")["corpora"]
    assert f"({demo['documents']} short documents, {demo['facts']:,} facts)" in PAGE.read_text()
    (keyset,) = told(somebody, "colmlm keysets list")["keysets"]
    assert (keyset["num_keys"], keyset["num_unkeyed"], keyset["calibrated"]) == (demo["facts"], 0, True)


def ask(somebody: Newcomer, shown: list[Ran]) -> None:
    generated, found = shown
    for words in ("Henry Cavendish", "(demo/hydrogen)[44:59]", "version", "score"):
        assert words in generated.output
    assert "Henry Cavendish" in found.output and "demo/hydrogen" in found.output


def see_the_source(somebody: Newcomer, shown: list[Ran]) -> None:
    output, fact = shown
    assert "[Henry Cavendish](0)" in output.output and "demo/hydrogen" in output.output
    for words in ("it says: Hydrogen was identified", "versions:", "changes:", "outputs that used it: 1"):
        assert words in fact.output


def delete(somebody: Newcomer, shown: list[Ran]) -> None:
    listed, previewed, deleted = shown
    assert listed.output.count("Henry Cavendish") == previewed.output.count("Henry Cavendish") == 2
    assert (previewed.asked, deleted.asked) == (0, 1)
    assert "Delete these 2 facts?" in deleted.output and "delete of fact 1, 905" in deleted.output
    (change,) = (c for c in changes(somebody) if c["kind"] == "delete")
    assert change["fact_ids"] == list(HYDROGEN), "in one change, and not by the dry run"


def ask_again(somebody: Newcomer, shown: list[Ran]) -> None:
    silent, _, found, old = shown
    assert "Henry Cavendish" not in silent.output
    output = told(somebody, "colmlm trace output 3")
    assert not {splice["fact_id"] for splice in output["splices"]} & {*HYDROGEN}
    assert "Henry Cavendish" not in found.output
    (answer,) = over_http(somebody, "Who is credited with discovering hydrogen?")
    assert not {hit["fact_id"] for hit in answer["hits"]} & {*HYDROGEN}, "nor by the running server"
    assert "[Henry Cavendish](0)" in old.output
    (splice,) = told(somebody, "colmlm trace output 1")["splices"]
    gone = splice["history"][-1]
    assert (
        (gone["kind"], gone["reason"]) == ("delete", "the credit is disputed")
        and gone["actor"]
        and gone["at"]
    )
    assert "deleted by" in old.output


def restore_and_correct(somebody: Newcomer, shown: list[Ran]) -> None:
    _, _, generated, fact, log, check = shown
    assert "[Cavendish](0)" in generated.output
    assert "Henry Cavendish" in fact.output and "short form" in fact.output
    kinds = [change["kind"] for change in changes(somebody)]
    assert kinds[0] == "ingest" and kinds[-3:] == ["delete", "restore", "update"]
    assert all(kind in log.output for kind in kinds[-3:])
    assert check.output.startswith("ok\n") and "chain holds" in check.output


def own_documents(somebody: Newcomer, shown: list[Ran]) -> None:
    _, _, added, listed, answered, generated = shown
    assert "can be cited now" in added.output and "Try:" not in added.output
    assert answered.output.startswith("1987\n") and "notes/canteen.txt" in answered.output
    assert "Ingrid Okafor" in listed.output and "notes/canteen.txt" in listed.output
    assert "[Ingrid Okafor](" in generated.output
    (splice,) = told(somebody, "colmlm trace output 5")["splices"]
    assert (splice["source"]["corpus"], splice["source"]["external_id"]) == ("notes", "canteen.txt")
    assert {f["question"] is None for f in told(somebody, "colmlm facts list --corpus notes")["facts"]} == {
        True
    }


def own_corpus(somebody: Newcomer, shown: list[Ran]) -> None:
    *_, found, _ = shown
    assert "pancakes" in found.output and "notes/canteen[" in found.output
    (fact,) = told(somebody, "colmlm facts list --text 'Ms Okafor'")["facts"]
    assert fact["source"] is None


def from_a_program(somebody: Newcomer, shown: list[Ran]) -> None:
    (answer,) = in_json(shown[-1].output)["answers"]
    assert [hit["value"] for hit in answer["hits"]] == ["pancakes"]
    described = httpx.get(f"{address(somebody)}/schema/openapi.json", headers=key(somebody), timeout=60)
    assert "/v1/lookups" in described.json()["paths"]


def start_over(somebody: Newcomer, shown: list[Ran]) -> None:
    assert not (somebody.home / ".local" / "share" / "colmlm").exists()


CLAIMS: dict[str, Callable[[Newcomer, list[Ran]], None]] = {
    "Start": start,
    "Ask": ask,
    "See the source": see_the_source,
    "Delete": delete,
    "Ask again": ask_again,
    "Restore, correct": restore_and_correct,
    "Your own documents": own_documents,
    "A corpus of your own": own_corpus,
    "From a program": from_a_program,
    "Start over": start_over,
}


def told(somebody: Newcomer, text: str) -> Any:
    """Gives the JSON that a command prints."""
    return in_json(somebody.type(f"{text} --json").output)


def in_json(output: str) -> Any:
    """Gives the one JSON object on a terminal, after remarks."""
    return json.JSONDecoder().raw_decode(output, output.index("{"))[0]


def changes(somebody: Newcomer) -> list[Any]:
    """Gives the log of edits."""
    log = told(somebody, "colmlm log list --oldest")["changes"]
    return [change for change in log if change["kind"] not in MAINTENANCE]


def over_http(somebody: Newcomer, question: str) -> list[Any]:
    asked = httpx.post(
        f"{address(somebody)}/v1/lookups", json={"questions": [question]}, headers=key(somebody), timeout=60
    )
    answers: list[Any] = asked.json()["answers"]
    return answers


def address(somebody: Newcomer) -> str:
    return f"http://127.0.0.1:{somebody.port}"


def key(somebody: Newcomer) -> dict[str, str]:
    return {"Authorization": f"Bearer {somebody.token}"}
