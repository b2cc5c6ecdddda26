"""Assistants work with a base by the Model Context Protocol, spoken by the protocol's own client."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from colmlm.kb import interpreter
from tests.api.conftest import CAPITAL, TEXT
from tests.cli.conftest import ROOT, Run, program
from tests.cli.elsewhere import There
from tests.identity_provider import AUDIENCE, SigningKey, serving_keys

T = TypeVar("T")
Talk = Callable[[Client], Awaitable[T]]

READING = ["look_up", "ask", "find_facts", "show_fact", "trace_output"]
EDITING = ["propose_fact", "correct_fact", "delete_facts", "restore_facts", "plan_forgetting", "forget"]


def over_stdio(*words: object, talk: Talk[T], mode: str = "auto") -> T:
    """Starts `colmlm mcp` with these words, as an assistant does, and talks to it."""
    command, *args = interpreter.command("-m", "colmlm.cli", "mcp", *words)
    started = StdioServerParameters(command=command, args=args, env=dict(os.environ), cwd=ROOT)
    return _talked(started, talk, mode)


def over_http(address: str, secret: str, talk: Talk[T], mode: str = "auto") -> T:
    async def run() -> T:
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {secret}"}) as http,
            Client(streamable_http_client(address, http_client=http), mode=mode) as client,
        ):
            return await talk(client)

    return anyio.run(run)


def _talked(target: Any, talk: Talk[T], mode: str) -> T:
    async def run() -> T:
        async with Client(target, mode=mode) as client:  # type: ignore[arg-type]
            return await talk(client)

    return anyio.run(run)


def at(there: There, role: str) -> tuple[object, ...]:
    return "--server", there.address, "--token-file", there.tokens[role]


async def told(client: Client, tool: str, **given: Any) -> dict[str, Any]:
    """Calls a tool that does what it is asked for. Its text says the same as its structure."""
    result = await client.call_tool(tool, given)
    assert not result.is_error, said(result)
    assert json.loads(said(result)) == result.structured_content
    return result.structured_content


async def refused(client: Client, tool: str, **given: Any) -> str:
    result = await client.call_tool(tool, given)
    assert result.is_error
    return said(result)


def said(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent) and "Traceback" not in content.text
    return content.text


async def done(client: Client, tool: str, **given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Gives the dry run of an edit, and what was done by its code."""
    dry = await told(client, tool, **given)
    assert dry["dry_run"] and "change" not in dry
    edit = await told(client, tool, **given, confirm=dry["confirm"])
    assert edit["dry_run"] is False and edit["reason"] == given["reason"]
    return dry, edit


async def names(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


@contextmanager
def serving(*words: object) -> Iterator[str]:
    """The address of `colmlm mcp --http` in a process of its own, which ends when told to."""
    for _ in range(5):  # another process may take the port before this one does
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = interpreter.command("-m", "colmlm.cli", "mcp", "--http", "--port", port, *words)
        process = subprocess.Popen(command, cwd=ROOT, text=True, stderr=subprocess.PIPE)
        assert process.stderr is not None
        first = process.stderr.readline()
        if "another program uses this port" not in first:
            break
        process.wait(timeout=60)
    try:
        assert f"127.0.0.1:{port}/mcp" in first
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert "Traceback" not in log and "colmlm_" not in log and "eyJ" not in log  # no token


@pytest.mark.slow(reason="starts an MCP server in a process of its own")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_question_is_answered_and_corrected_with_a_reason(
    there: There, facts: list[int], mode: str
) -> None:
    async def talk(client: Client) -> None:
        answer = await told(client, "ask", question=CAPITAL)
        assert answer["answer"] and "atlas/peru, characters" in answer["citation"]
        assert "https://example.org/peru" in answer["citation"]
        dry, edit = await done(client, "correct_fact", fact_id=facts[0], value="Cusco", reason="moved")
        assert "from 'Lima' to 'Cusco'" in dry["would"] and dry["facts"][0]["value"] == "Lima"
        (hit, *_) = (await told(client, "look_up", question=CAPITAL, threshold=-1))["hits"]
        assert (hit["fact_id"], hit["value"], hit["version"]) == (facts[0], "Cusco", 2)
        shown = await told(client, "show_fact", fact_id=facts[0])
        assert [version["value"] for version in shown["versions"]] == ["Lima", "Cusco"]
        last = (await told(client, "list_changes", after=-1))["changes"][-1]
        assert (last["seq"], last["actor"], last["reason"]) == (edit["change"], "the operator", "moved")
        trace = await told(client, "trace_output", output_id=1)
        (span, *_) = trace["spans"]
        assert trace["output"][span["output_start"] : span["output_end"]] == span["value"] == "Lima"
        assert not span["is_current"]

    over_stdio(*at(there, "operator"), talk=talk, mode=mode)
    assert there.kb.facts.show(facts[0]).value == "Cusco"
    assert str(there.kb.log.changes()[-1].principal).startswith("token ")


def test_a_readers_token_edits_nothing(there: There, facts: list[int]) -> None:
    async def talk(client: Client) -> None:
        assert await names(client) == READING
        why = await refused(client, "delete_facts", fact_ids=facts, reason="no")
        assert "the role reader" in why and "operator, admin" in why
        assert "'audit'" in await refused(client, "list_changes")

    head = there.kb.log.head_seq()
    over_stdio(*at(there, "reader"), talk=talk)
    assert there.kb.log.head_seq() == head


@pytest.mark.slow(reason="starts an MCP server in a process of its own")
def test_which_tools_a_role_is_shown(there: There) -> None:
    wanted = {
        "operator": [*READING, "list_changes", *EDITING],
        "auditor": [*READING, "list_changes"],
    }
    for role, tools in wanted.items():
        assert over_stdio(*at(there, role), talk=names) == tools
    assert over_stdio("--read-only", *at(there, "admin"), talk=names) == [*READING, "list_changes"]
    ran = program("mcp", *at(there, "decoder"))
    assert ran.returncode != 0 and "'read'" in ran.stderr and ran.stderr.count("\n") == 1


def test_tools_say_what_they_change(there: There) -> None:
    async def talk(client: Client) -> dict[str, Any]:
        tools = (await client.list_tools()).tools
        assert all(tool.description and tool.title for tool in tools)
        return {tool.name: tool for tool in tools}

    tools = over_stdio(*at(there, "operator"), talk=talk)
    hints = {name: tool.annotations for name, tool in tools.items()}
    assert {name for name, hint in hints.items() if hint.read_only_hint} == {*READING, "list_changes"}
    assert {name for name, hint in hints.items() if hint.destructive_hint} == {
        "correct_fact", "delete_facts", "forget"
    }  # fmt: skip
    assert all(hint.idempotent_hint and not hint.open_world_hint for hint in hints.values())
    for name in EDITING:
        assert "reason" in tools[name].input_schema["required"]


def test_nothing_is_done_but_by_the_code_of_its_dry_run(there: There, facts: list[int]) -> None:
    lake = facts[1]

    async def talk(client: Client) -> None:
        given: dict[str, Any] = {"fact_ids": [lake], "reason": "wrong"}
        dry = await told(client, "delete_facts", **given)
        for other in (
            {**given, "confirm": "yes"},
            {**given, "reason": "another", "confirm": dry["confirm"]},
            {**given, "fact_ids": facts, "confirm": dry["confirm"]},
        ):
            assert "Nothing was changed" in await refused(client, "delete_facts", **other)
        there.kb.facts.edit(lake, "Poopó", actor="ann", reason="meanwhile")
        late = await refused(client, "delete_facts", **given, confirm=dry["confirm"])
        assert "a fact or the request changed" in late
        _, edit = await done(client, "delete_facts", **given)
        again = await refused(client, "delete_facts", **given, confirm=dry["confirm"])
        assert f"{lake}" in again and "deleted" in again
        _, back = await done(client, "restore_facts", **given)
        assert back["change"] == edit["change"] + 1 and there.kb.facts.show(lake).deleted_seq is None

    over_stdio(*at(there, "operator"), talk=talk)


@pytest.mark.slow(reason="starts an MCP server in a process of its own")
def test_no_code_is_computed_or_taken_from_another_process_or_caller(run: Run, keyed: list[int]) -> None:
    """What a code is made of is known to everybody who may read the base, and the key of it to one process."""
    given: dict[str, Any] = {"fact_ids": [keyed[0]], "reason": "wrong"}
    standing = [[[keyed[0], 1, None, "accepted"]], []]
    asked = json.dumps(["delete_facts", [keyed[0]], "wrong", standing], separators=(",", ":"))
    computed = hashlib.sha256(asked.encode()).hexdigest()

    async def dry(client: Client) -> str:
        return str((await told(client, "delete_facts", **given))["confirm"])

    def refuses(code: str) -> Talk[None]:
        async def talk(client: Client) -> None:
            assert "Nothing was changed" in await refused(client, "delete_facts", **given, confirm=code)

        return talk

    for code in (computed, computed[:8], computed[:16], over_stdio(talk=dry)):
        over_stdio(talk=refuses(code))
    ann, ben = (run("tokens", "create", name, "--role", "operator").out.strip() for name in ("ann", "ben"))
    with serving() as address:
        over_http(address, ben, refuses(over_http(address, ann, dry)))
    assert run("facts", "show", keyed[0], "--json").json["deleted_seq"] is None


def test_a_proposed_fact_waits_for_somebody_to_accept_it(there: There) -> None:
    async def talk(client: Client) -> int:
        given = {"question": "Who wrote Emma?", "value": "Jane Austen", "reason": "asked for"}
        dry, edit = await done(client, "propose_fact", **given)
        assert dry["answered_already"] == [] and edit["kind"] == "insert"
        again = await told(client, "propose_fact", **given)
        assert [fact["fact_id"] for fact in again["answered_already"]] == edit["fact_ids"]
        assert "Nothing was changed" in await refused(client, "propose_fact", **given, confirm=dry["confirm"])
        (fact_id,) = edit["fact_ids"]
        return fact_id

    fact_id = over_stdio(*at(there, "operator"), talk=talk)
    assert there.kb.facts.show(fact_id).review == "proposed"
    assert fact_id in {item.fact.fact_id for item in there.kb.review.inbox().items}


def test_facts_are_forgotten_by_a_plan(there: There, facts: list[int]) -> None:
    async def talk(client: Client) -> None:
        plan = await told(client, "plan_forgetting", text="Titicaca", reason="request 12")
        assert [fact["fact_id"] for fact in plan["facts"]] == [facts[1]]
        _, edit = await done(client, "forget", run_id=plan["run_id"], reason="request 12")
        assert (edit["kind"], edit["fact_ids"]) == ("forget", [facts[1]])
        late = await refused(client, "forget", run_id=plan["run_id"], reason="request 12", confirm="x")
        assert "Nothing was changed" in late

    over_stdio(*at(there, "operator"), talk=talk)
    assert there.kb.facts.show(facts[1]).deleted_seq is not None


def test_documents_and_facts_are_resources(there: There, facts: list[int]) -> None:
    async def talk(client: Client) -> None:
        (document,) = (await client.list_resources()).resources
        assert (document.name, document.title) == ("atlas/peru", "Peru")
        (text,) = (await client.read_resource(document.uri)).contents
        assert text.text == TEXT  # type: ignore[union-attr]
        (hit, *_) = (await told(client, "look_up", question=CAPITAL, threshold=-1))["hits"]
        assert hit["document"] == document.uri and TEXT[hit["start"] : hit["end"]] == "Lima"
        (fact,) = (await client.read_resource(f"colmlm://facts/{facts[0]}")).contents
        assert json.loads(fact.text)["value"] == "Lima"  # type: ignore[union-attr]
        for uri in ("colmlm://facts/999", "colmlm://documents/999"):
            with pytest.raises(MCPError, match="999"):
                await client.read_resource(uri)
        with pytest.raises(MCPError, match="cursor"):
            await client.list_resources(cursor="x")

    over_stdio(*at(there, "reader"), talk=talk)


def test_bad_calls_are_told_in_words(there: There, facts: list[int]) -> None:
    async def talk(client: Client) -> None:
        assert "999" in await refused(client, "show_fact", fact_id=999)
        assert "reason" in await refused(client, "delete_facts", fact_ids=facts)
        assert "neither" in await refused(client, "correct_fact", fact_id=facts[0], reason="x")
        assert "not deleted" in await refused(client, "restore_facts", fact_ids=facts, reason="x")
        assert "empty" in await refused(client, "plan_forgetting", reason="x")
        taken = {"question": CAPITAL, "value": "Cusco", "reason": "x"}
        code = (await told(client, "propose_fact", **taken))["confirm"]
        assert "answers this already" in await refused(client, "propose_fact", **taken, confirm=code)

    over_stdio(*at(there, "operator"), talk=talk)


@pytest.mark.slow(reason="starts an MCP server in a process of its own")
def test_the_base_of_this_machine_is_its_users(run: Run, keyed: list[int]) -> None:
    async def talk(client: Client) -> None:
        assert await names(client) == [*READING, "list_changes", *EDITING]
        found = await told(client, "find_facts", text="Lima")
        assert [fact["fact_id"] for fact in found["facts"]] == [keyed[0]]
        assert (await told(client, "look_up", question=CAPITAL, threshold=-1))["match"]
        await done(client, "delete_facts", fact_ids=[keyed[0]], reason="wrong")

    over_stdio(talk=talk)
    (change,) = run("log", "list", "--json").json["changes"][:1]
    assert (change["kind"], change["actor"], change["principal"]["kind"]) == ("delete", "tester", "local")


@pytest.mark.slow(reason="starts an MCP server in a process of its own")
def test_a_signal_ends_it_though_nobody_closed_its_stdin(there: There) -> None:
    command = interpreter.command("-m", "colmlm.cli", "mcp", *at(there, "reader"))
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(ping).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130


@pytest.mark.slow(reason="starts an MCP server in a process of its own")
def test_http_wants_a_token_and_this_machines_name(run: Run, keyed: list[int]) -> None:
    secrets = {
        role: run("tokens", "create", f"the {role}", "--role", role).out.strip()
        for role in ("operator", "auditor", "reader")
    }

    async def edits(client: Client) -> None:
        await done(client, "delete_facts", fact_ids=[keyed[0]], reason="wrong")

    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accept = {"Accept": "application/json, text/event-stream"}
    with serving() as address:
        for mode in ("auto", "legacy"):
            tools = over_http(address, secrets["auditor"], names, mode)
            assert tools == [*READING, "list_changes"]
        over_http(address, secrets["operator"], edits)
        bearer = accept | {"Authorization": f"Bearer {secrets['operator']}"}
        for headers, status in (
            (bearer, 200),
            (accept, 401),
            (accept | {"Authorization": "Bearer colmlm_no_such_secret"}, 401),
            (accept | {"Authorization": f"Bearer {secrets['reader']}"}, 403),
            (bearer | {"Host": "evil.example"}, 421),
            (bearer | {"Origin": "https://evil.example"}, 403),
        ):
            answer = httpx2.post(address, json=ping, headers=headers)
            assert answer.status_code == status, (headers, answer.text)
        assert run("tokens", "revoke", "the operator", "--yes").code == 0
        assert httpx2.post(address, json=ping, headers=bearer).status_code == 401
    (change,) = [one for one in run("log", "list", "--json").json["changes"] if one["kind"] == "delete"]
    assert (change["actor"], change["principal"]["kind"]) == ("the operator", "key")


@pytest.mark.slow(reason="starts an MCP server in a process of its own")
def test_http_takes_access_tokens_with_the_role_and_the_corpora_of_the_api(
    run: Run, keyed: list[int], annotated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = SigningKey.new("ES256")
    assert run("corpus", "add", annotated, "--format", "annotated", "--corpus", "other").code == 0
    lima, other = (one["fact_id"] for one in run("facts", "list", "--text", "Lima", "--json").json["facts"])
    assert lima == keyed[0]
    own = run("tokens", "create", "own", "--role", "auditor").out.strip()

    async def found(client: Client) -> tuple[list[str], list[int], bool]:
        facts = (await told(client, "find_facts", text="Lima"))["facts"]
        match = (await told(client, "look_up", question=CAPITAL, threshold=-1))["match"]
        return await names(client), [fact["fact_id"] for fact in facts], match

    async def edits(client: Client) -> None:
        await done(client, "delete_facts", fact_ids=[lima], reason="wrong")

    async def cannot_edit(client: Client) -> None:
        assert "'edit'" in await refused(client, "delete_facts", fact_ids=[keyed[1]], reason="wrong")

    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accept = {"Accept": "application/json, text/event-stream"}
    with serving_keys([key]) as provider:
        for name, value in {
            "ISSUER": provider.issuer,
            "AUDIENCE": AUDIENCE,
            "ROLES": "editors=operator,checkers=auditor:atlas,others=auditor:other,readers=reader",
        }.items():
            monkeypatch.setenv(f"COLMLM_SIGN_ON_{name}", value)

        def of(group: str, **changed: Any) -> str:
            claims = {"groups": [group], "sub": group, "email": f"{group}@example.org"} | changed
            return key.sign(provider.claims(**claims))

        with serving() as address:
            seeing = [*READING, "list_changes"]
            assert over_http(address, of("checkers"), found) == (seeing, [lima], True)
            assert over_http(address, of("others"), found) == (seeing, [other], False)  # it has no key
            assert over_http(address, own, found) == (seeing, [lima, other], True)
            over_http(address, of("checkers"), cannot_edit)
            over_http(address, of("editors"), edits)
            for token, status, code in (
                (of("readers"), 403, "RightMissing"),
                (of("strangers"), 403, "RoleUnmapped"),
                (of("editors", aud="other"), 401, "IdentityRefused"),
                (of("editors", exp=int(time.time()) - 60), 401, "IdentityRefused"),
                (key.sign(provider.claims(nonce="x"), typ="JWT"), 401, "IdentityRefused"),
                (
                    SigningKey.new("ES256").sign(provider.claims(groups=["editors"])),
                    401,
                    "IdentityRefused",
                ),
            ):
                answer = httpx2.post(
                    address, json=ping, headers=accept | {"Authorization": f"Bearer {token}"}
                )
                assert (answer.status_code, answer.json()["type"]) == (status, f"urn:colmlm:{code}")
            bearer = accept | {"Authorization": f"Bearer {of('editors')}"}
            assert httpx2.post(address, json=ping, headers=bearer).status_code == 200
            assert run("tokens", "revoke", "editors@example.org", "--yes").code == 0
            assert httpx2.post(address, json=ping, headers=bearer).status_code == 401
        monkeypatch.delenv("COLMLM_SIGN_ON_AUDIENCE")
        monkeypatch.setenv("COLMLM_SIGN_ON_CLIENT_ID", "console")
        with serving() as address:  # as the API of these settings, it takes no token of the provider
            answer = httpx2.post(
                address, json=ping, headers=accept | {"Authorization": f"Bearer {of('editors')}"}
            )
            assert (answer.status_code, answer.json()["type"]) == (401, "urn:colmlm:NotSignedIn")
    (change,) = [one for one in run("log", "list", "--json").json["changes"] if one["kind"] == "delete"]
    assert (change["actor"], change["principal"]["kind"]) == ("editors@example.org", "key")


@pytest.mark.slow(reason="starts an MCP server in a process of its own")
def test_a_head_over_http_has_limits(run: Run, keyed: list[int]) -> None:
    with serving() as address:
        at_port = ("127.0.0.1", int(address.rpartition(":")[2].removesuffix("/mcp")))
        with socket.create_connection(at_port, timeout=60) as connection:
            connection.sendall(b"POST /mcp HTTP/1.1\r\nX-A: " + b"a" * 400_000)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 431 ")
        with socket.create_connection(at_port, timeout=60) as connection:
            connection.sendall(b"POST /mcp HTTP/1.1\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 408 ")


@pytest.mark.slow(reason="starts an MCP server in a process of its own")
def test_http_before_a_server_takes_that_servers_token(there: There) -> None:
    secret = there.tokens["reader"].read_text().strip()
    other = there.tokens["admin"].read_text().strip()
    with serving(*at(there, "reader")) as address:
        assert over_http(address, secret, names) == READING
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        refusal = httpx2.post(address, json=ping, headers={"Authorization": f"Bearer {other}"})
        assert refusal.status_code == 401 and "WWW-Authenticate" in refusal.headers
