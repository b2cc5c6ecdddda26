"""Checks after all cases: nothing is broken or leaked, and nothing erased is kept."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import text

from tests.acceptance.hostile.cases import Case, expect
from tests.acceptance.hostile.world import World

GROUP = "aftermath"
MOST_MB = 1500  # of the server; bodies are bounded, and so is the memory they take

_COLUMNS = text("""
    SELECT table_name, column_name, data_type FROM information_schema.columns
    JOIN information_schema.tables USING (table_schema, table_name)
    WHERE table_schema = 'public' AND table_type = 'BASE TABLE'
      AND data_type IN ('text', 'character varying', 'json', 'jsonb', 'bytea', 'ARRAY')""")


def cases() -> Iterator[Case]:
    yield Case(GROUP, "fsck and the log", _fsck)
    yield Case(GROUP, "no erased value in any column", _erased)
    yield Case(GROUP, "no traceback in a log", _logs)
    yield Case(GROUP, "memory of the server", _memory)
    yield Case(GROUP, "no upload is left", _uploads)
    yield Case(GROUP, "an ordinary lookup", _lookup)


def _fsck(world: World) -> str:
    world.kb.lookups.catch_up()
    report = world.kb.upkeep.fsck()
    expect(report.chain_ok, f"the log is broken at {report.chain_first_break}")
    expect(report.ok, f"{report}"[:1000])
    return f"{report.changes_checked} changes, {report.live_facts} live facts"


def _erased(world: World) -> str:
    found = []
    with world.kb.engine.connect() as connection:
        columns = connection.execute(_COLUMNS).all()
        for table, column, kind in columns:
            shown = f"encode({column}, 'escape')" if kind == "bytea" else f"{column}::text"
            for value in world.erased:
                holding = text(f'SELECT count(*) FROM "{table}" WHERE position(:value IN {shown}) > 0')
                if connection.execute(holding, {"value": value}).scalar():
                    found.append(f"{value!r} in {table}.{column}")
    expect(not found, f"{len(found)} left: {found[:10]}")
    return f"{len(world.erased)} values looked for in {len(columns)} columns"


def _logs(world: World) -> str:
    found = world.logs[0].tracebacks() + world.logs[1].tracebacks()
    expect(not found, f"{found.total()}: {dict(found)}")
    return f"{sum(len(log.lines) for log in world.logs)} lines"


def _memory(world: World) -> str:
    peak = world.peak_mb()
    expect(peak <= MOST_MB, f"{peak} MB")
    return f"{peak} MB at most"


def _uploads(world: World) -> str:
    """Checks that no incomplete upload is left; a complete one may wait for its job."""
    directory = world.kb.settings.home / "uploads"
    partial = [path.name for path in directory.glob("*/.part")] if directory.is_dir() else []
    expect(not partial, f"{len(partial)} left")
    return "none"


def _lookup(world: World) -> str:
    answer = world.ask("POST", "/v1/lookups", {"questions": ["Question 7?"]})
    expect(answer.status == 200, f"{answer.status} {answer.body[:200]!r}")
    values = [hit["value"] for hit in answer.said["answers"][0]["hits"]]
    expect(values[:1] == ["value 7"], f"{values}")
    return "right"
