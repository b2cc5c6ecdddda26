"""Commands print the same of a knowledge base here and of the same one behind its API, and refuse it the same way."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx2
import pytest

from tests.api.conftest import CAPITAL
from tests.cli.conftest import invoke
from tests.cli.elsewhere import WHY, There


@pytest.mark.slow(reason="types many commands here and against a server")
def test_what_is_read_is_the_same(there: There, facts: list[int]) -> None:
    capital, lake = facts
    there.kb.facts.edit(lake, "Poopó", actor="ann", reason="wrong")
    there.kb.facts.delete([lake], actor="ann", reason="wrong again")
    for question in ("Who wrote Emma?", "How deep is it?"):
        invoke("ask", question)
    invoke("trace", "feedback", 2, "--down")
    invoke("misses", "list")
    assert (
        invoke("facts", "list", "--server", there.address, "--token-file", there.tokens["decoder"]).code == 2
    )
    for words in (
        "facts list",
        "facts list --all --limit 1",
        f"facts list --all --after {capital}",
        "facts list --deleted --corpus atlas",
        "facts list --text lima",
        "facts list --text im --literally",
        "facts list --all --sort newest --limit 1",
        "facts list --by ann --all",
        f"facts show {lake}",
        f"trace fact {lake}",
        "trace output 1",
        "trace output 1 --format prov",
        f"trace fact {lake} --format prov-json",
        "trace outputs",
        "corpus documents --corpus atlas",
        "corpus documents 1",
        "corpus list --stats",
        "log list",
        "log list --after 1 --limit 1",
        "log diff 1 4",
        "log diff 1 4 --corpus atlas --limit 1",
        f"log list --actor ann --kind delete --fact {lake} --since 2020-01-01",
        "log verify",
        "log denials",
        f"trace fact {capital} --impact",
        "misses list --sort newest --limit 1",
        "misses list --state dismissed",
        "misses list 1",
        "trace outputs --feedback down",
        f"lookup {CAPITAL.replace(' ', '_')} --threshold -1 -k 2",
    ):
        said = there.same(*(word.replace("_", " ") for word in words.split()))
        assert any(said.values()), words
    there.same("ask", CAPITAL, volatile=("generation_id",))
    there.same("ask", CAPITAL, "--corpus", "atlas", volatile=("generation_id",))
    assert f"at {there.address}" in there.run("ask", CAPITAL).err
    there.same("lookup", CAPITAL, "-k", 2)
    there.same("lookup", CAPITAL, "-k", 2, "--as-of", there.kb.log.head_seq() - 2)  # before both edits


def test_what_is_edited_is_the_same(there: There, facts: list[int]) -> None:
    for words in (
        ("facts", "edit", facts[0], "--value", "Cusco", *WHY),
        ("facts", "delete", *facts, "--dry-run"),
    ):
        there.same(*words, volatile=("seq",))
    here = invoke("facts", "delete", *facts, *WHY, "--yes", "--json").json
    back = there.run("facts", "restore", *facts, *WHY, "--json").json
    gone = there.run("facts", "delete", *facts, *WHY, "--yes", "--json").json
    assert {**gone, "seq": here["seq"]} == here and gone["seq"] == back["seq"] + 1
    assert back["kind"] == "restore" and back["fact_ids"] == facts
    said = ("--value", "Jane Austen", *WHY, "--json")
    first = invoke("facts", "add", "--question", "Who wrote Emma?", *said).json
    second = there.run("facts", "add", "--question", "Who wrote Persuasion?", *said).json
    assert first.keys() == second.keys() and second["keyed"] and second["kind"] == first["kind"]
    assert there.run("lookup", "Who wrote Persuasion?", "--json").json["hits"][0]["value"] == "Jane Austen"


@pytest.mark.slow(reason="types many commands here and against a server")
def test_what_is_mended_is_the_same(there: There, facts: list[int], tmp_path: Path) -> None:
    capital, lake = facts
    at = there.kb.facts.show(capital).source.document_id  # type: ignore[union-attr]
    rows = tmp_path / "rows.csv"
    rows.write_text(f"fact_id,question\n{lake},Which lake is great?\n")
    there.same("facts", "edit", "--file", rows, "--dry-run")
    for words in (
        ("facts", "edit", capital, "--question", "Where is the seat?", *WHY),
        ("facts", "edit", capital, "--question", CAPITAL, "--value", "Cusco", *WHY),
    ):
        there.same(*words, volatile=("seq",))
    for here, elsewhere in (
        (("edit", "--file", rows), ("edit", "--file", rows)),
        (("edit", lake, "--text", "great lake"), ("edit", lake, "--text", "great lake")),
        (("add", "--document", at, "--text", "country"), ("add", "--document", at, "--text", "great lake")),
    ):
        first = invoke("facts", *here, *WHY, "--json").json
        assert invoke("facts", "undo", first["seq"], *WHY, "--json").json["fact_ids"] == first["fact_ids"]
        second = there.run("facts", *elsewhere, *WHY, "--json").json
        assert {**first, "seq": 0, "fact_ids": 0} == {**second, "seq": 0, "fact_ids": 0} and first["keyed"]
        undone = there.run("facts", "undo", second["seq"], *WHY, "--json").json
        assert undone["fact_ids"] == second["fact_ids"]
    assert there.run("facts", "edit", lake, "--text", "is", *WHY).code == 2
    assert there.run("facts", "edit", lake, "--value", "x", "--no-key", *WHY).code == 2


def test_what_is_compared_is_the_same(there: There, facts: list[int]) -> None:
    refused = ("facts", "add", "--question", CAPITAL, "--value", "Cusco", *WHY)
    told = [invoke(*refused), there.run(*refused)]
    assert [ran.code for ran in told] == [4, 4] and told[0].err == told[1].err
    assert f'Fact {facts[0]} answers this already ("Lima")' in told[0].err and "--anyway" in told[0].err
    added = there.run(*refused, "--anyway", "--json").json["fact_ids"]
    same = there.run(
        "facts", "add", "--question", CAPITAL, "--value", "lima", *WHY, "--anyway", "--json"
    ).json
    assert same["also_said_by"] == [facts[0]]
    for words in (
        "facts compare contradictions",
        "facts compare contradictions --limit 1",
        "facts compare contradictions --corpus atlas --after 1",
        "facts compare duplicates",
        f"facts delete {facts[0]} --dry-run",
    ):
        assert any(there.same(*words.split()).values()), words
    there.same("facts", "compare", "stale")
    note = ("facts", "compare", "contradictions", facts[0], *added, *WHY, "--json")
    noted = there.run(*note)
    assert len(there.run("facts", "compare", "contradictions", "--noted", "--json").json["pairs"]) == 1
    twice = [
        ran(*note) for ran in (invoke, there.run)
    ]  # whoever comes second is told that it is noted already
    assert [ran.code for ran in twice] == [3, 3] and twice[0].err == twice[1].err
    there.run(*note, "--not")
    again = invoke(*note)
    assert again.code == 0 and {**again.json, "seq": 0} == {**noted.json, "seq": 0}
    invoke(*note, "--not")
    assert there.run("facts", "compare", "contradictions", facts[0], facts[1], *WHY).code == 3
    assert invoke("facts", "compare", "contradictions", "--corpus", "nowhere").code == 3


def test_many_facts_are_shown_and_deleted_by_a_request_and_queries_at_them_abstain(
    there: There, facts: list[int]
) -> None:
    def requests() -> dict[str, float]:
        token = there.tokens["admin"].read_text().strip()
        told = httpx2.get(f"{there.address}/metrics", headers={"Authorization": f"Bearer {token}"}).text
        counted = re.findall(r"^colmlm_http_requests_total\{(.*/v1/.*)\} (\S+)$", told, re.MULTILINE)
        return {labels: float(number) for labels, number in counted}

    before = requests()
    for words, method, number in (
        (("--dry-run",), "POST", 2),  # the facts, and who says the same
        ((*WHY, "--abstain", "--yes"), "DELETE", 1),
    ):
        assert there.run("facts", "delete", *facts, *words).code == 0
        now = requests()
        asked = {labels: n - before.get(labels, 0) for labels, n in now.items() if n != before.get(labels)}
        assert sum(asked.values()) == number and all(method in labels for labels in asked)
        before = now
    assert there.run("lookup", CAPITAL, "--json").json["abstained"] == facts[0]


def test_an_edit_is_the_keys_whoever_is_named(there: There, facts: list[int]) -> None:
    for words, behalf in (((), None), (("--actor", "ann"), "ann")):
        edit = ("facts", "edit", facts[0], "--value", f"by {behalf}", *WHY, *words)
        assert there.run(*edit, role="operator").code == 0
        change = there.kb.log.changes()[-1]
        assert (change.actor, change.on_behalf_of) == ("the operator", behalf)
        assert change.principal is not None and change.principal.kind == "key"


def test_it_refuses_with_the_same_words_and_exit_code(there: There, facts: list[int]) -> None:
    there.kb.facts.delete(facts[:1], actor="ann", reason="wrong")
    for words in (
        ("facts", "show", 99),
        ("facts", "restore", facts[1], *WHY),
        ("facts", "delete", *facts, *WHY, "--yes"),
        ("facts", "edit", facts[1], "--value", "x" * 20_000, *WHY),
        ("facts", "list", "--corpus", "nowhere"),
        ("ask", CAPITAL, "--corpus", "nowhere"),
        ("trace", "output", 99),
        ("corpus", "documents", 99),
        ("log", "diff", 3, 1),
        ("log", "diff", 1, 99),
        ("trace", "fact", 99, "--impact"),
    ):
        here, answer = invoke(*words), there.run(*words)
        assert answer.code == here.code != 0 and answer.err.count("\n") == 1, words
        if "x" * 20_000 not in words:  # the API has a limit of its own before
            assert answer.err == here.err


def test_a_prompt_is_decoded_there(there: There, facts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLMLM_CHECKPOINT", "/no/such/checkpoint")
    said = there.run("generate", CAPITAL, "--there", "--json", role="reader").json
    assert said["output"] == "Lima" and said["splices"][0]["fact_id"] == facts[0]
    assert there.same("trace", "output", said["generation_id"]) == said
    streamed = there.run("generate", CAPITAL, "--there", "--stream")
    assert streamed.out.startswith(said["output"] + "\n") and "Stored as output 3" in streamed.err
    for words, code in (
        (("--there", "--as-of", 1), 2),
        (("--there", "--max-tokens", 5000), 2),
        (("--there", "--min-seq", 99), 3),
        (("--there", "--stream", "--min-seq", 99), 3),
    ):
        ran = there.run("generate", CAPITAL, *words)
        assert ran.code == code and ran.err.count("\n") == 1, ran.err
    assert "--server" in invoke("generate", CAPITAL, "--there").err


def test_the_log_is_checked_here_against_a_head_that_was_kept(
    there: There, facts: list[int], tmp_path: Path
) -> None:
    head, log = tmp_path / "head.json", tmp_path / "log.jsonl"
    assert there.run("log", "export", "--output", head).code == 0
    there.kb.facts.edit(facts[0], "Cus\u2028co", actor="ann", reason="a value with a separator of lines")
    assert there.run("log", "export", "--changes", "--output", log).code == 0
    assert len(log.read_text(encoding="utf-8").split("\n")) == there.kb.log.head_seq() + 2
    assert there.same("log", "verify", "--against", head)["holds_witnessed"]
    proof = tmp_path / "proof.json"
    assert there.run("log", "export", "--change", 1, "--output", proof).code == 0
    assert invoke("log", "verify", proof, "--json").json["seq"] == 1
    assert there.run("log", "export", "--against", head, "--output", proof).code == 0
    assert invoke("log", "verify", proof).out.startswith("ok\nthe log goes on from its first ")


def test_a_token_that_may_not_is_one_line(there: There, facts: list[int], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("colmlm_nobody")
    edit = ("facts", "edit", facts[0], "--value", "x", *WHY)
    refused = there.run(*edit, role="reader")
    assert refused.code == 2 and "'edit'" in refused.err and "operator" in refused.err
    unknown = invoke(*edit, "--server", there.address, "--token-file", wrong)
    assert unknown.code == 2 and "nobody" not in unknown.err and f"token in {wrong}:" in unknown.err
    for ran in (refused, unknown):
        assert ran.err.count("\n") == 1 and not ran.out


def test_the_server_and_its_token_may_be_settings(
    there: There, facts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLMLM_DATABASE_URL", "postgresql://nobody@nowhere.invalid/none")
    monkeypatch.setenv("COLMLM_SERVER", there.address)
    assert "--token-file" in invoke("facts", "list").err
    monkeypatch.setenv("COLMLM_TOKEN", there.tokens["reader"].read_text())
    assert len(invoke("facts", "list", "--json").json["facts"]) == 2
    monkeypatch.setenv("COLMLM_KEY_FILE", str(there.tokens["decoder"]))
    assert invoke("facts", "list").code == 2
    elsewhere = invoke("facts", "list", "--server", "")
    assert elsewhere.code == 5 and "nowhere.invalid" in elsewhere.err and "COLMLM_SERVER" not in elsewhere.err
    assert "COLMLM_SERVER" in invoke("doctor", "--data").err


def test_what_only_this_machine_heeds_is_refused_by_name(there: There, checkpoint: Path) -> None:
    for words, option in (
        (("lookup", "x", "--checkpoint", checkpoint), "--checkpoint"),
        (("facts", "add", "--question", "q", "--value", "v", *WHY, "--no-key"), "--no-key"),
    ):
        ran = there.run(*words)
        assert ran.code == 2 and option in ran.err and ran.err.count("\n") == 1


class Losing(BaseHTTPRequestHandler):
    """Passes requests on to another server, and cuts the connection instead of answering the first that edit."""

    protocol_version = "HTTP/1.1"
    target: ClassVar[str]
    losses: ClassVar[int]

    def pass_on(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"] or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        answer = httpx2.request(self.command, f"{self.target}{self.path}", headers=headers, content=content)
        if self.command != "GET" and type(self).losses:
            type(self).losses -= 1
            self.close_connection = True
            return
        self.send_response(answer.status_code)
        self.send_header("content-type", answer.headers["content-type"])
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_PATCH = pass_on

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def losing(there: There, losses: int) -> Iterator[There]:
    """The same server behind one that loses so many answers to edits."""
    handler = type("Handler", (Losing,), {"target": there.address, "losses": losses})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield replace(there, address=f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("losses", "code"), [(2, 0), (99, 5)])
def test_an_edit_whose_answer_was_lost_is_made_once(
    there: There, facts: list[int], losses: int, code: int
) -> None:
    seq = there.kb.log.head_seq()
    with losing(there, losses) as badly_connected:
        ran = badly_connected.run("facts", "edit", facts[0], "--value", "Cusco", *WHY, "--json")
    assert ran.code == code, ran.err
    assert [change.kind for change in there.kb.log.changes(after=seq)] == ["update"]
    if code:
        assert ran.err.count("\n") == 1 and "colmlm log list" in ran.err
    else:
        assert ran.json["seq"] == seq + 1


def test_nobody_there_is_one_line(home: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("colmlm_x")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for server, code in ((f"http://127.0.0.1:{port}", 5), ("ftp://x", 2), ("http://[", 2), ("x", 2)):
        ran = invoke("facts", "list", "--server", server, "--token-file", key)
        assert ran.code == code and ran.err.count("\n") == 1 and "colmlm_x" not in ran.err, ran.err
    ran = invoke("facts", "list", "--server", f"http://127.0.0.1:{port}")
    assert ran.code == 2 and ran.err.count("\n") == 1, "no token is named"
    assert "--server" in invoke("facts", "list", "--token-file", key).err
    before = ("--server", f"http://127.0.0.1:{port}", "--token-file", key)
    assert invoke(*before, "facts", "list").code == 5, "they may stand before the command"


def test_a_secret_sent_in_the_clear_is_said_in_one_line(home: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("colmlm_x")
    ran = invoke("facts", "list", "--server", "http://kb.invalid", "--token-file", key)
    first, last = ran.err.splitlines()
    assert "unencrypted" in first and ran.code == 5 and "kb.invalid" in last


def test_who_may_not_audit_is_told_which_right_the_past_takes(there: There, facts: list[int]) -> None:
    there.kb.facts.delete(facts[:1], actor="ann", reason="disputed")
    shown = there.run("facts", "show", facts[0], role="reader")
    assert shown.code == 0 and "Lima" not in shown.out and "'audit'" in shown.err
    traced = there.run("trace", "fact", facts[0], role="reader")
    assert traced.code == 0 and "Lima" not in traced.out and "'audit'" in traced.err
    for command in (("facts", "list", "--deleted"), ("lookup", CAPITAL, "--as-of", 2)):
        refused = there.run(*command, role="reader")
        assert refused.code == 2 and "'audit'" in refused.err and "auditor" in refused.err, command
    assert "'audit'" in there.run("corpus", "export", "atlas", role="trainer").err
