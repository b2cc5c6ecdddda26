"""Runs Schemathesis on the whole description of the API, as each role: every check and phase, on a real database.

    python -m tests.acceptance.schemathesis_all --max-examples 100
    python -m tests.acceptance.schemathesis_all --max-examples 10 --role admin --role decoder

It serves a small base in this process, runs `schemathesis run` against it, and prints one JSON object: cases, failures
and server errors, of each role and in all. Reports of roles that failed go to stderr, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from litestar import Litestar
from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.api.app import create_app
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.middleware.limiters import Tuning
from colmlm.api.schema.openapi import complete_document
from colmlm.kb.access.records import ROLES
from colmlm.kb.access.tokens import create_token
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.faults.harness import own_database
from tests.api.generator import LookupGenerator
from tests.api.serving import served
from tests.fakes import FakeEncoder, NearReader
from tests.kb.corpora import numbered
from tests.places import ROOT

PHASES = ("examples", "coverage", "fuzzing", "stateful")

# An admin's run would revoke or rotate the token that it uses, by its id or as one of a list, and every later answer
# would be 401 and test nothing. For these keys alone such an edit is carried out without effect.
_KEEP = (
    "CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'",
    "CREATE TRIGGER keeps_its_own_keys BEFORE UPDATE ON api_key FOR EACH ROW "
    "WHEN (OLD.name LIKE 'schemathesis as %') EXECUTE FUNCTION kept()",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one role's run. `operations` were called; `failures` are distinct; `report` is for people."""

    role: str
    operations: int
    cases: int
    failures: int
    server_errors: int
    errors: int
    report: str

    @property
    def ok(self) -> bool:
        return not (self.failures or self.server_errors or self.errors)


def fill(kb: KnowledgeBase, encoder: FakeEncoder) -> GatedApp:
    """Makes the app on a base that has some of everything."""
    parsed = [Parsed(document) for document in numbered(20)]
    kb.corpora.ingest(parsed, "atlas", actor="tester", reason="set up")
    kb.keysets.rekey(encoder)
    at_once = Tuning(longest_seconds=0)  # streams are read to their end
    app = create_app(kb, encoder, LookupGenerator(kb, encoder), tuning=at_once, reader=NearReader())
    kb.facts.delete([kb.facts.find(limit=1)[0].fact_id], actor="tester", reason="set up")
    with kb.engine.begin() as connection:
        for statement in _KEEP:
            connection.execute(text(statement))
    return app


def run(
    app: GatedApp,
    token: str,
    role: str,
    *,
    max_examples: int,
    phases: Sequence[str] = PHASES,
    seed: int = 1,
    only: Sequence[str] = (),
) -> Outcome:
    """Serves the app and tests it with a token of this role, with all checks; `only` names operations."""
    with served(app) as address, tempfile.TemporaryDirectory() as folder:
        file, description = Path(folder) / "report.json", Path(folder) / "openapi.json"
        description.write_text(
            json.dumps(description_of(app.routed))
        )  # not every role may read it from the server
        command = [
            str(Path(sys.executable).parent / "schemathesis"),
            "--config-file", str(ROOT / "tests/acceptance/schemathesis.toml"),
            "run", str(description),
            "--url", address,
            "--header", f"Authorization: Bearer {token}",
            "--checks", "all",
            "--phases", ",".join(phases),
            "--max-examples", str(max_examples),
            "--seed", str(seed),
            "--generation-database", "none",
            "--continue-on-failure", "--no-color",
            "--report-json-path", str(file), "--report", "json",
        ]  # fmt: skip
        for name in only:
            command += ["--include-operation-id", name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if not file.exists():
            raise RuntimeError(f"schemathesis gave no report: {done.stdout}{done.stderr}")
        return _outcome(role, json.loads(file.read_text()), done.stdout)


def description_of(app: Litestar) -> dict[str, Any]:
    """Gives the app's description with only the served model allowed, since made-up model names are all refused."""
    served_here = FakeEncoder().checkpoint.name
    document = copy.deepcopy(complete_document(app))  # its examples are those of every document
    schemas = document["components"]["schemas"]
    for name in ("CompletionRequest", "ChatRequest", "ResponseRequest", "EmbeddingRequest"):
        schemas[name]["properties"]["model"] = {"enum": [served_here]}
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"):
        document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]["model"] = (
            served_here
        )
    return document


def _outcome(role: str, report: dict[str, Any], said: str) -> Outcome:
    of_server = [failure["count"] for failure in report["failures"] if failure["type"] == "ServerError"]
    return Outcome(
        role=role,
        operations=report["operations"]["tested"],
        cases=report["test_cases"]["generated"],
        failures=report["test_cases"]["unique_failures"],
        server_errors=sum(of_server),
        errors=len(report["errors"]) + report["operations"]["errored"],
        report=said,
    )


@contextmanager
def empty_base() -> Iterator[KnowledgeBase]:
    """Open a new base on an embedded server, which ends with it."""
    with own_database() as settings, KnowledgeBase.open(replace(settings, index_wait_seconds=0.1)) as kb:
        yield kb


def token_of(kb: KnowledgeBase, role: str) -> str:
    with Session(kb.engine) as session, session.begin():
        return create_token(session, f"schemathesis as {role}", role)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-examples", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--role", action="append", choices=tuple(ROLES))
    parser.add_argument("--operation", action="append", default=[])
    parser.add_argument("--phases", default=",".join(PHASES))
    asked = parser.parse_args()
    with empty_base() as kb:
        app = fill(kb, FakeEncoder())
        outcomes = [_as(role, kb, app, asked) for role in asked.role or ROLES]
    is_ok = all(outcome.ok for outcome in outcomes)
    told = {"ok": is_ok, "max_examples": asked.max_examples, "seed": asked.seed, "phases": asked.phases}
    rows = [{name: value for name, value in asdict(o).items() if name != "report"} for o in outcomes]
    total = {
        name: sum(row[name] for row in rows) for name in ("cases", "failures", "server_errors", "errors")
    }
    print(json.dumps(told | total | {"roles": rows}))
    return 0 if is_ok else 1


def _as(role: str, kb: KnowledgeBase, app: GatedApp, asked: argparse.Namespace) -> Outcome:
    """Gives the outcome of the run as one role, after printing it as progress."""
    token = token_of(kb, role)
    outcome = run(
        app,
        token,
        role,
        max_examples=asked.max_examples,
        phases=asked.phases.split(","),
        seed=asked.seed,
        only=asked.operation,
    )
    if kb.access.of_secret(token) is None:
        raise RuntimeError(f"the key of {role} was ended on the way, and what came after it says nothing")
    said = outcome.report if not outcome.ok else f"{role}: {outcome.cases} cases"
    print(said, file=sys.stderr, flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
