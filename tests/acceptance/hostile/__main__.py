"""Run every known hostile case on a server, a worker and a database: documents, headers, connections, bodies, races.

    python -m tests.acceptance.hostile
    python -m tests.acceptance.hostile --only races --long
    python -m tests.acceptance.hostile --only "host: user" --json

A case fails if the server answers with a 5xx, except a transient one with a problem document, or does what the case
forbids. At the end the base must be sound and hold nothing that was erased. The exit code is 1 if a case failed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict

from tests.acceptance.hostile.run import LONG, SHORT, run
from tests.acceptance.hostile.world import own_database


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="NAME", help="a group, or a part of the names of cases")
    parser.add_argument("--long", action="store_true", help=f"{LONG} rounds of each race and not {SHORT}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # ends the server, the worker and the database as well
    with own_database() as settings:
        outcome = run(settings, only=options.only, rounds=LONG if options.long else SHORT)
    if options.json:
        print(json.dumps(asdict(outcome)))
    else:
        print(f"{outcome.tried} tried, {outcome.failed} failed")
    return 1 if outcome.failed or not outcome.tried else 0


if __name__ == "__main__":
    sys.exit(main())
