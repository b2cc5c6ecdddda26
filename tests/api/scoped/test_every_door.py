"""Three people with a role on one corpus try every door at random, and none tells them of another corpus."""

from __future__ import annotations

import html
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client as Assistant

from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.facts.records import FactEdit
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.kb.webhooks.webhooks import Deliverer
from tests.api.planted import ASKED, HIDDEN, SEEN, SHARED, WHY, Planted, asking, edits, paths, words_in
from tests.api.serving import served
from tests.cli.conftest import invoke
from tests.cli.operating.test_mcp import over_http, over_stdio, serving
from tests.fakes import FakeEncoder
from tests.receiver import LOOPBACK, receiver

PEOPLE = {"ann": "reader", "ben": "operator", "cleo": "auditor"}
ATTEMPTS = 200
FORMS = ("/facts/delete", "/facts/edit", "/review", "/forget", "/corpora", "/questions", "/holds")
EXPORTS = ("/v1/changes/export", f"/v1/corpora/{HIDDEN}/export?live_only=true", "/console/facts/download")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, webhook_networks=LOOPBACK)


@dataclass(frozen=True)
class Doors:
    """The doors of a served base, as three people try them. Each attempt gives what was said, and what was given."""

    address: str
    folder: Path
    secrets: dict[str, str]
    planted: Planted
    encoder: FakeEncoder
    read: list[str]
    rng: random.Random

    def send(self, person: str, method: str, path: str, **how: Any) -> tuple[str, str]:
        headers = {
            "Authorization": f"Bearer {self.secrets[person]}",
            "Origin": self.address,
            "Accept-Encoding": "identity",
            **how.pop("headers", {}),
        }
        given = f"{path} {json.dumps(how, default=str)}"
        with httpx.Client(base_url=self.address, timeout=60) as client:
            answer = client.request(method, path, headers=headers, **how)
        said = html.unescape(answer.text)
        assert answer.status_code < 500 or answer.status_code == 503, (method, path, said)
        return f"{answer.headers} {said}", given

    def question(self) -> str:
        return self.rng.choice([ASKED, SHARED, "What is the title of Keller's pay slip?", "salary", "office"])

    def corpora(self) -> list[str]:
        return self.rng.choice([[], [SEEN], [HIDDEN], [HIDDEN, SEEN]])

    def ask(self, person: str, *, openai: bool) -> tuple[str, str]:
        ways = list(asking(self.planted, self.encoder, self.question(), self.corpora()))
        kinds = ("completions", "responses")
        path, how = self.rng.choice([one for one in ways if one[0].endswith(kinds) is openai])
        return self.send(person, "POST", path, **how)

    def api(self, person: str) -> tuple[str, str]:
        if self.rng.random() < 0.4:
            return self.ask(person, openai=False)
        if self.rng.random() < 0.5:
            ids = (self.rng.choice(self.planted.facts), self.planted.documents[0], HIDDEN)
            method, path, body = self.rng.choice(list(edits(*ids, self.planted.run, self.planted.job)))
            return self.send(person, method, path, json=body)
        path = self.rng.choice([one for one in self.read if one.startswith("/v1")])
        return self.send(person, "GET", path, params={"corpus": self.rng.choice([SEEN, HIDDEN])})

    def openai(self, person: str) -> tuple[str, str]:
        return self.ask(person, openai=True)

    def console(self, person: str) -> tuple[str, str]:
        if self.rng.random() < 0.6:
            path = self.rng.choice([one for one in self.read if one.startswith("/console")])
            sought = {"text": self.question(), "corpus": self.rng.choice([SEEN, HIDDEN]), "change": 2}
            return self.send(person, "GET", path, params=self.rng.choice([{}, sought]))
        form = {
            "fact": str(self.rng.choice(self.planted.facts)), "corpus": HIDDEN, "text": self.question(), "do": "edit",
            "rows": f"fact_id,value\n{self.planted.facts[0]},x\n", "reason": "tried", "everything": "yes",
            "accept": f"{self.planted.facts[0]}:1",
        }  # fmt: skip
        return self.send(person, "POST", f"/console{self.rng.choice(FORMS)}", data=form)

    def command(self, person: str) -> tuple[str, str]:
        fact, run = self.rng.choice(self.planted.facts), self.planted.run
        words: tuple[object, ...] = self.rng.choice(
            [
                ("facts", "list"),
                ("facts", "list", "--corpus", HIDDEN),
                ("facts", "show", fact),
                ("jobs", "list"),
                ("facts", "delete", fact, "--reason", "r", "--yes"),
                ("corpus", "list"),
                ("log", "list"),
                ("trace", "fact", fact),
                ("trace", "output", self.planted.outputs[0]),
                ("webhooks", "list"),
                ("ask", self.question()),
                ("lookup", self.question()),
                ("forget", "list"),
                ("forget", "list", run),
                ("forget", "plan", "--corpus", HIDDEN, "--reason", "r"),
                ("hold", "list"),
                ("tokens", "list"),
                ("corpus", "export", HIDDEN),
                ("log", "export"),
                ("keysets", "list"),
            ]
        )
        given = ("--server", self.address, "--token-file", self.folder / person)
        done = invoke(*words, *given)
        return done.out + done.err, " ".join(map(str, words))

    def export(self, person: str) -> tuple[str, str]:
        return self.send(person, "GET", self.rng.choice(EXPORTS))

    def metrics(self, person: str) -> tuple[str, str]:
        return self.send(person, "GET", self.rng.choice(["/metrics", "/readyz", "/healthz", "/v1/stats"]))

    async def editor(self, client: Assistant) -> list[tuple[str, str]]:
        """Have an assistant try what needs no model."""
        return await self.assistant(client, without=("ask", "look_up"))

    async def assistant(self, client: Assistant, without: Sequence[str] = ()) -> list[tuple[str, str]]:
        """Have an assistant try tools and resources in some order; those that ask, where the server has a model."""
        told = []
        fact, document = self.planted.facts[0], self.planted.documents[0]
        tries: list[tuple[str, dict[str, Any]]] = [
            ("find_facts", {"text": "Keller"}), ("show_fact", {"fact_id": fact}), ("list_changes", {}),
            ("trace_output", {"output_id": self.planted.outputs[0]}), ("look_up", {"question": ASKED}),
            ("delete_facts", {"fact_ids": [fact], "reason": "r"}), ("ask", {"question": ASKED}),
            ("correct_fact", {"fact_id": fact, "value": "x", "reason": "r"}),
            ("plan_forgetting", {"fact_ids": [fact], "reason": "r"}),
            ("forget", {"run_id": self.planted.run, "reason": "r"}),
        ]  # fmt: skip
        for name, given in self.rng.sample(tries, len(tries)):
            if name in without:
                continue
            result = await client.call_tool(name, given)
            told.append((str(result), f"{name} {given}"))
        for uri in (f"colmlm://facts/{fact}", f"colmlm://documents/{document}"):
            try:
                said = str(await client.read_resource(uri))
            except Exception as error:
                said = str(error)
            told.append((said, uri))
        return [*told, (str(await client.list_resources()), "")]


@pytest.fixture
def doors(
    kb: KnowledgeBase, app: GatedApp, planted: Planted, encoder: FakeEncoder, tmp_path: Path
) -> Iterator[Doors]:
    secrets = {name: kb.access.create(name, role, corpora=[SEEN])[0] for name, role in PEOPLE.items()}
    for name, secret in secrets.items():
        (file := tmp_path / name).write_text(secret)
        file.chmod(0o600)
    read = [path for path in paths(app, planted) if not path.endswith("/events")]
    with served(app) as address:
        yield Doors(address, tmp_path, secrets, planted, encoder, read, random.Random(45))


@pytest.mark.slow(reason="tries 200 requests and commands, and starts MCP servers")
def test_three_people_try_every_door_and_none_tells_of_another_corpus(
    kb: KnowledgeBase, doors: Doors, planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLMLM_HOME", str(kb.settings.home))
    monkeypatch.setenv("COLMLM_DATABASE_URL", str(kb.settings.database_url))
    tried, leaks = Counter[str](), list[tuple[str, str, list[str]]]()

    def note(door: str, person: str, said: str, given: str) -> None:
        tried[door] += 1
        if found := words_in(said, given):
            leaks.append((f"{person} at {door}", given, found))

    with receiver() as hook:
        for person in PEOPLE:
            note(
                "webhooks",
                person,
                *doors.send(person, "POST", "/v1/webhooks", json={"url": hook.url, "since": 0}),
            )
        chances = {
            doors.api: 4,
            doors.openai: 2,
            doors.console: 5,
            doors.command: 3,
            doors.export: 1,
            doors.metrics: 1,
        }
        for number in range(ATTEMPTS):
            (door,) = doors.rng.choices(list(chances), list(chances.values()))
            person = doors.rng.choice(list(PEOPLE))
            note(door.__name__, person, *door(person))
            if number % 20 == 0:
                mixed = [
                    FactEdit(planted.open_fact, f"Puckia {number}"),
                    FactEdit(planted.facts[0], f"Snoutia {number}"),
                ]
                kb.facts.edit_many(mixed, actor="tester", reason=WHY, anyway=True)
                kb.facts.edit(
                    planted.open_fact, f"Titania {number}", actor="tester", reason="mended", anyway=True
                )
        for person in PEOPLE:
            here = ("--server", doors.address, "--token-file", doors.folder / person)
            for said, given in over_stdio(*here, talk=doors.assistant):
                note("mcp over stdio", person, said, given)
        with serving() as address:
            for person in (
                "ben",
                "cleo",
            ):  # this process withholds nothing of the past, and asks for the right
                for said, given in over_http(address, doors.secrets[person], doors.editor):
                    note("mcp over http", person, said, given)
        Deliverer(kb).run_once()
        for one in hook.received:
            note("webhooks", "ben", f"{one.headers} {one.body.decode()}", "")
    assert leaks == []
    assert sum(tried.values()) >= ATTEMPTS and min(tried.values()) >= 5, tried
    assert len(hook.received) >= 11, "it was told of the edits of its own corpus"
    assert len(tried) == 9, tried
