"""The results page: one Markdown file that says what was measured, on which data, with which command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from colmlm.lab.paper.sections import ordered, section
from colmlm.lab.paper.tables import markdown

Results = Mapping[str, Any]


def page(results: Results) -> str:
    """Writes results.json as a page in Markdown."""
    lines = ["# The paper's tables at our size", "", *_head(results)]
    for name in ordered(one["section"] for one in results["steps"]):
        records = [one for one in results["steps"] if one["section"] == name]
        lines += ["", *_section(name, records, results["plots"])]
    lines += ["", "## How to repeat a step", "", *_places(results), "", *_commands(results)]
    return "\n".join(lines) + "\n"


def _head(results: Results) -> list[str]:
    machine, counts = results["machine"], results["counts"]
    states = [one["state"] for one in results["steps"]]
    told = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    lines = [
        f"Variant **{results['variant']}**, {results['at']}. Steps: {told}.",
        f"Checkpoint {results['checkpoint']}; colmlm {results['version']}; "
        + ", ".join(f"{name} {value}" for name, value in machine.items())
        + ".",
        "Every interval is 95 %, by bootstrap over examples. Of one seed unless a row says otherwise.",
    ]
    if results["variant"] == "quick":
        numbers = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in counts.items())
        lines.append(
            f"This is the quick variant: few examples, so wide intervals ({numbers}), and no training."
        )
    return lines


def _section(name: str, records: Sequence[Mapping[str, Any]], plots: Sequence[str]) -> list[str]:
    about = section(name)
    lines = [f"## {about.title}", ""]
    if about.remark:
        lines += [about.remark, ""]
    done = [one for one in records if one["state"] == "done"]
    if done:
        lines += [*about.render(done), ""]
    if about.plot in plots:
        lines += [f"![{about.title}]({about.plot})", ""]
    lines += [f"- `{one['name']}`: {one['data']}." for one in done]
    lines += [
        f"- `{one['name']}` **failed**: {_failure(one['error'])}"
        for one in records
        if one["state"] == "failed"
    ]
    for state, why in (("no data", "passed over, as there is no {}"), ("not run", "not run")):
        named: dict[str, list[str]] = {}  # the steps by what they lack, since many lack the same
        for one in records:
            if one["state"] == state:
                named.setdefault(", ".join(one["missing"]), []).append(f"`{one['name']}`")
        lines += [f"- {', '.join(steps)}: {why.format(missing)}." for missing, steps in named.items()]
    return lines


def _failure(error: Mapping[str, Any]) -> str:
    return f"{error['cause']} (exit code {error['exit_code']} of `{error['command']}`)"


def _places(results: Results) -> list[str]:
    names = [f"`{name}` is `{folder}`" for name, folder in results["places"].items()]
    return [
        f"{', '.join(names)}. Each command has a `COLMLM_HOME` of its own, named with it, and works on the knowledge "
        "base there. Files in `$OUT/data` are excerpts of `$DATA` that the run wrote, and lie there still.",
    ]


def _commands(results: Results) -> list[str]:
    lines = []
    for one in results["preparations"]:
        if one["commands"]:
            lines += [f"Prepared once, `COLMLM_HOME=$OUT/kb/{one['name']}`:", "", "```sh"]
            lines += [f"{each['command']}   # {each['seconds']:.0f} s" for each in one["commands"]]
            lines += ["```", ""]
    rows = [
        (
            one["name"],
            f"`COLMLM_HOME=$OUT/kb/{one['home']} {one['command']} --json`",
            one.get("seconds"),
            one.get("at"),
        )
        for one in results["steps"]
    ]
    return [*lines, *markdown(("step", "command", "seconds", "ended"), rows)]
