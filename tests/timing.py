"""Seconds of tests by file and by fixture: `pytest -p tests.timing --times FILE`, then `python -m tests.timing FILE`.

Seconds are those of the workers, so they add up to more than the clock shows. A fixture's seconds are those of its own
setup, without the fixtures that it uses; the teardown of a fixture is counted with the test's teardown.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

PHASES = ("setup", "call", "teardown")
MANY_FILES, MANY_FIXTURES = 40, 20


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, help="write the seconds of each test and fixture to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Record where tests are reported, which is not in the workers."""
    if config.getoption("--times") is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config.getoption("--times")))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(request: pytest.FixtureRequest) -> Generator[None, object, object]:
    """Send the seconds of a fixture with the report of the test that first needed it."""
    begun = time.perf_counter()
    try:
        return (yield)
    finally:
        spent = time.perf_counter() - begun
        request._pyfuncitem.user_properties.append(("fixture", (request.fixturename, spent)))


class Recorder:
    """Collects the reports of all workers, and writes them when the session ends."""

    def __init__(self, file: Path) -> None:
        self.file, self.tests = file, defaultdict[str, dict[str, Any]](dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests[report.nodeid]
        test[str(report.when)] = round(report.duration, 4)
        if report.when == "setup":
            fixtures = [value for name, value in report.user_properties if name == "fixture"]
            test["fixtures"] = [(name, round(seconds, 4)) for name, seconds in fixtures]

    def pytest_sessionfinish(self) -> None:
        self.file.write_text(json.dumps(self.tests), encoding="utf-8")


def tables(tests: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Write the two tables in Markdown, the most expensive first, and the sums of what is left out."""
    files, numbers = defaultdict[str, Counter[str]](Counter), Counter[str]()
    fixtures, uses = Counter[str](), Counter[str]()
    for nodeid, test in tests.items():
        file = nodeid.partition("::")[0].removeprefix("tests/")
        numbers[file] += 1
        files[file].update({phase: test.get(phase, 0.0) for phase in PHASES})
        for name, seconds in test.get("fixtures", ()):
            fixtures[name] += seconds
            uses[name] += 1
    spent_in = ", ".join(f"{phase} {sum(file[phase] for file in files.values()):,.0f}" for phase in PHASES)
    yield f"{len(tests):,} tests in {len(files)} files; seconds of the workers: {spent_in}"
    yield "\n| file | tests | setup | call | teardown | sum |\n|---|---|---|---|---|---|"
    by_cost = sorted(files, key=lambda file: -files[file].total())
    for file in by_cost[:MANY_FILES]:
        seconds = " | ".join(f"{files[file][phase]:.1f}" for phase in PHASES)
        yield f"| `{file}` | {numbers[file]} | {seconds} | {files[file].total():.1f} |"
    rest = by_cost[MANY_FILES:]
    seconds_of_rest = sum(files[file].total() for file in rest)
    yield f"| {len(rest)} others | {sum(numbers[file] for file in rest)} | | | | {seconds_of_rest:.1f} |"
    yield "\n| fixture | set up | seconds | each |\n|---|---|---|---|"
    for name, spent in fixtures.most_common(MANY_FIXTURES):
        yield f"| `{name}` | {uses[name]} | {spent:.1f} | {spent / uses[name]:.3f} |"


if __name__ == "__main__":
    print("\n".join(tables(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
