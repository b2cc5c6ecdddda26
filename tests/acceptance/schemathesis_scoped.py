"""Runs Schemathesis with tokens of one corpus, beside another with planted words and numbers that no answer may hold.

    python -m tests.acceptance.schemathesis_scoped --max-examples 50
    python -m tests.acceptance.schemathesis_scoped --max-examples 10 --role operator

It prints one JSON object: cases, failures, server errors and leaks of each role. The exit code is 1 where one is not 0.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from colmlm.api.app import create_app
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.middleware.limiters import Tuning
from colmlm.kb.access.records import SCOPED_ROLES
from colmlm.kb.service import KnowledgeBase
from tests.acceptance.schemathesis_all import PHASES, Outcome, empty_base, run
from tests.api.generator import LookupGenerator
from tests.api.planted import SALARY, SEEN, plant, words_in
from tests.fakes import FakeEncoder, SayingReader


@dataclass
class ListeningApp:
    """An app whose every answer, with its headers, is searched for what was planted in the other corpus."""

    app: GatedApp
    answers: int = 0
    leaks: list[tuple[str, list[str]]] = field(default_factory=list)

    @property
    def routed(self) -> Any:
        return self.app.routed

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        asked = [scope["path"].encode(), scope["query_string"], *(value for _, value in plain)]
        said: list[bytes] = []

        async def hear() -> Any:
            message = await receive()
            asked.append(message.get("body", b""))
            return message

        async def tell(message: Any) -> None:
            said.extend(b": ".join(header) for header in message.get("headers", ()))
            said.append(message.get("body", b""))
            await send(message)

        await self.app({**scope, "headers": plain}, hear, tell)
        self.answers += 1
        given = b"\n".join(asked).decode(errors="replace")
        if found := words_in(b"\n".join(said).decode(errors="replace"), given):
            self.leaks.append((f"{scope['method']} {scope['path']}", found))


@dataclass(frozen=True)
class ScopedOutcome:
    """The outcome of a role's run: that of Schemathesis, the number of answers, and which of them leaked what."""

    outcome: Outcome
    answers: int
    leaks: Sequence[tuple[str, list[str]]]

    @property
    def ok(self) -> bool:
        return self.outcome.ok and not self.leaks


def app_of(kb: KnowledgeBase, encoder: FakeEncoder) -> GatedApp:
    at_once = Tuning(longest_seconds=0)  # streams are read to their end
    return create_app(kb, encoder, LookupGenerator(kb, encoder), tuning=at_once, reader=SayingReader(SALARY))


def run_scoped(kb: KnowledgeBase, app: GatedApp, role: str, **how: Any) -> ScopedOutcome:
    """Tests the app with a token of this role on the seen corpus alone."""
    secret, _ = kb.access.create(f"schemathesis as {role} of {SEEN}", role, corpora=[SEEN])
    listening = ListeningApp(app)
    outcome = run(cast(GatedApp, listening), secret, role, **how)
    return ScopedOutcome(outcome, listening.answers, listening.leaks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-examples", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--role", action="append", choices=SCOPED_ROLES)
    parser.add_argument("--phases", default=",".join(PHASES))
    asked = parser.parse_args()
    how = {"max_examples": asked.max_examples, "seed": asked.seed, "phases": asked.phases.split(",")}
    with empty_base() as kb:
        plant(kb)
        app = app_of(kb, FakeEncoder())
        found = [run_scoped(kb, app, role, **how) for role in asked.role or SCOPED_ROLES]
    for one in found:
        if not one.ok:
            print(one.outcome.report, one.leaks, file=sys.stderr)
    rows = [
        {name: value for name, value in asdict(one.outcome).items() if name != "report"}
        | {"answers": one.answers, "leaks": len(one.leaks)}
        for one in found
    ]
    print(json.dumps({"ok": all(one.ok for one in found), "roles": rows}))
    return 0 if all(one.ok for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
