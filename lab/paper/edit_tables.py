"""The results page's tables of the effects of edits: deletions, and updates of values."""

from __future__ import annotations

from collections.abc import Sequence

from colmlm.lab.paper.tables import Record, markdown, percent


def deletion(records: Sequence[Record]) -> list[str]:
    """Tabulates the runs of forgetting, and the facts planted beside those that are forgotten."""
    columns = ("facts are", "radius", "forgotten", "leaks of checks", "wrong neighbours of checks", "says it, %",
               "splices it, %", "wrong neighbour, %", "now another value, %", "others found, %", "others lost, %",
               "neighbours lost, %")  # fmt: skip
    rows: list[Sequence[object]] = []
    planted: list[Sequence[object]] = []
    for one in records:
        result = one["result"]
        for name, title in ((name, title) for name, title in _THERE.items() if name in result):
            rows.append((title, None, None, None, None, *_said(result[name]), None, None, None, None))
        for run in result["runs"]:
            checks = run["probes"]
            counts = (f"{checks[name]} of {checks['probes']}" for name in ("leaks", "wrong_neighbours"))
            looked_up = (
                percent(run[name]) for name in ("wrong_neighbour", "others", "others_lost", "neighbours_lost")
            )
            rows.append((f"forgotten, {run['policy']}", f"{run['radius']:.2f}", run["forgotten"], *counts,
                         *_said(run["said"]), *looked_up))  # fmt: skip
        for each in result.get("survivors", ()):
            shares = (percent(each[name]) for name in ("found", "by_question", "by_wording"))
            policy = f"{each['policy']}, read" if each.get("reading") else each["policy"]
            planted.append((each["kind"], policy, f"{each['radius']:.2f}", each["planted"], *shares))
    lines = markdown(columns, rows)
    if planted:
        named = ("planted in other words", "policy", "radius", "facts", "found by the plan, %",
                 "value told by the question, %", "by the planted wording, %")  # fmt: skip
        lines += ["", *markdown(named, planted)]
    return lines


_THERE = {"full": "there", "off": "there, no lookups", "null": "there, lookups find nothing"}


def _said(said: Record | None) -> tuple[object, object, object]:
    says, splices, wrong = (
        percent(said[name]) if said else None for name in ("says", "splices", "wrong_neighbour")
    )
    return says, splices, wrong


def updates(records: Sequence[Record]) -> list[str]:
    """Tabulates shares of prompts, in the record's wording and in others."""
    columns = ("records", "facts", "found before, %", "new value, %", "new value where found, %", "former value, %",
               "neighbours as before, %", "all as before when undone, %")  # fmt: skip
    rows = []
    for one in records:
        found = one["result"]
        own = ("found", "efficacy", "efficacy_where_found", "old_value", "locality", "undone")
        others = ("paraphrase_found", "paraphrase", "paraphrase_where_found")
        sizes = (f"{one['label']}, {found['records']} records", found["live_facts"])
        rows.append((*sizes, *(percent(found[name]) for name in own)))
        rows.append(("in other words", None, *(percent(found[name]) for name in others), None, None, None))
    return markdown(columns, rows)
