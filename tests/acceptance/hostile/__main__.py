"""Run every known hostile case on a server, a worker and a database: documents, headers, connections, bodies, races.

    python -m tests.acceptance.hostile
    python -m tests.acceptance.hostile --only races --long
    python -m tests.acceptance.hostile --only "host: user" --json

A case fails if the server answers with a 5xx, except a transient one with a problem document, or does what the case
forbids. At the end the base must be sound and hold nothing that was erased. The exit code is 1 if a case failed.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import asdict

from tests.acceptance.hostile.run import LONG, SHORT, run
from tests.acceptance.programs import options_of, own_database, report


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--only", metavar="NAME", help="a group, or a part of the names of cases")
    parser.add_argument("--long", action="store_true", help=f"{LONG} rounds of each race and not {SHORT}")
    options = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # ends the server, the worker and the database as well
    with own_database() as settings:
        outcome = run(settings, only=options.only, rounds=LONG if options.long else SHORT)
    found = asdict(outcome) if options.json else {"tried": outcome.tried, "failed": outcome.failed}
    return report(found, is_good=outcome.tried > 0 and not outcome.failed, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
