"""Draws the site's reference pages from the program, while MkDocs builds the site (`hooks` in mkdocs.yml).

Command line, settings, error codes, metrics, rights and the HTTP API are described once, in the code. Python calls
`PAGES` by the path of each page; nothing of them is committed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from html import escape
from inspect import getsource
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any, get_type_hints

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {"colmlm": "colmlm.cli.start.root:app", "colmlm-lab": "colmlm.lab.main:app"}
ERROR_FILES = (
    "kb/errors/__init__.py", "kb/errors/refusals.py", "api/errors.py", "api/openai/fields.py", "api/openai/chat.py",
    "api/client/connection.py", "api/console/views.py", "api/mcp/server.py", "cli/operating/serving.py",
)  # fmt: skip
NOTEBOOK = ROOT / "lab" / "notebook"  # log of measurements, which pages cite
OPTIONS_OF_ALL = {"--help", "--install-completion", "--show-completion"}


def command_line_page() -> str:
    """Describe every command with its arguments, options and examples."""
    from colmlm.cli import errors

    codes = re.findall(r"^(\d+) +(\S.*)$", errors.__doc__ or "", re.MULTILINE)
    rows = "\n".join(f"| {code} | {meaning} |" for code, meaning in codes)
    parts = [
        "# Command line\n\nEvery command answers `--help`. A command that reports takes `--json`.\n\n"
        f"| exit code | meaning |\n|---|---|\n{rows}"
    ]
    for name, where in PROGRAMS.items():
        parts += _describe_commands(_command_of(where), name, [])
    return "\n\n".join(parts) + "\n"


def _command_of(where: str) -> Any:
    from importlib import import_module

    import typer.main

    module, _, attribute = where.partition(":")
    return typer.main.get_command(getattr(import_module(module), attribute))


def _describe_commands(command: Any, name: str, path: list[str]) -> Iterator[str]:
    path = [*path, name]
    context = command.make_context(name, [], resilient_parsing=True)
    if hasattr(command, "list_commands"):
        if len(path) < 3:
            yield f"{'#' * (len(path) + 1)} {' '.join(path)}\n\n{_plain(command.help)}"
        for verb in command.list_commands(context):
            yield from _describe_commands(command.resolve_command(context, [verb])[1], verb, path)
        return
    rows = [row for one in command.params if (row := _parameter_row(one, context))]
    usage = " ".join(piece for piece in command.collect_usage_pieces(context) if piece)
    text = f"### {' '.join(path)}\n\n`{' '.join(path)} {usage}`\n\n{_plain(command.help)}"
    if rows:
        text += "\n\n| option | default | meaning |\n|---|---|---|\n" + "\n".join(rows)
    if examples := re.findall(r"^ *(colmlm.*)$", _plain(command.epilog), re.MULTILINE):
        text += "\n\n```sh\n" + "\n".join(examples) + "\n```"
    yield text


def _parameter_row(parameter: Any, context: Any) -> str | None:
    names = [name for name in (*parameter.opts, *parameter.secondary_opts) if name not in OPTIONS_OF_ALL]
    if not names or getattr(parameter, "hidden", False):
        return None
    if parameter.param_type_name == "argument":
        names = [(parameter.metavar or parameter.name).upper()]
    default = parameter.get_default(context, call=False)
    shown = "" if default in (None, (), [], False) or callable(default) else f"`{default}`"
    text = _plain(getattr(parameter, "help", "") or "").replace("\n", " ").replace("|", "\\|")
    return f"| {', '.join(f'`{name}`' for name in names)} | {shown} | {text} |"


def _plain(text: str | None) -> str:
    """Give a help text as Markdown: without Typer's marks, and with angle brackets as text."""
    return escape(re.sub(r"\[/?[a-z]*\]", "", dedent(text or "")).replace("\b", "").strip(), quote=False)


def settings_page() -> str:
    """Describe every `COLMLM_` variable, by the docstring below its field."""
    from colmlm.api.settings import ServerSettings
    from colmlm.cli.settings import UserSettings
    from colmlm.kb.store.settings import Settings

    parts = [
        "# Settings\n\nSettings are environment variables. An empty variable counts as unset. "
        "A variable that holds a secret may be given as a file: add `_FILE` to its name."
    ]
    for kind in (Settings, ServerSettings, UserSettings):
        rows = "\n".join(f"| `{name}` | {default} | {text} |" for name, default, text in _settings_of(kind))
        parts.append(
            f"## {kind.__name__}\n\n{kind.__doc__}\n\n| variable | default | meaning |\n|---|---|---|\n{rows}"
        )
    return "\n\n".join(parts) + "\n"


def _settings_of(kind: Any, prefix: str = "COLMLM_") -> Iterator[tuple[str, str, str]]:
    hints, texts = get_type_hints(kind), attribute_docstrings(kind)
    for field in fields(kind):
        name = f"{prefix}{field.name.upper()}"
        if is_dataclass(hints[field.name]):
            yield from _settings_of(hints[field.name], f"{name}_")
            continue
        value = "" if field.default in (MISSING, None, ()) else field.default
        shown = (
            {True: "`yes`", False: "`no`"}[value]
            if isinstance(value, bool)
            else f"`{value}`"
            if value != ""
            else ""
        )
        yield name, shown, texts[field.name]


def attribute_docstrings(kind: type) -> dict[str, str]:
    """Give the string that stands below each attribute of a class."""
    (body,) = (
        node.body for node in ast.parse(dedent(getsource(kind))).body if isinstance(node, ast.ClassDef)
    )
    return {
        before.target.id: " ".join(after.value.value.split())
        for before, after in pairwise(body)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


def errors_page() -> str:
    """Describe every error code: its HTTP status, and the message with its remedy."""
    from colmlm.api import errors as of_api
    from colmlm.kb.errors import KINDS, KBError

    rows = []
    for code, (title, text, status) in sorted(_messages().items()):
        if status is None:
            kind = KINDS.get(code, KBError)
            error = kind.__new__(kind)
            error.code = code
            status = of_api.status_of(error)
        rows.append(f"## {code}\n\n**{title}.** HTTP status {status}.\n\n> {escape(text, quote=False)}")
    head = (
        "# Error codes\n\nA message says what happened, whether anything changed, and what helps. Over HTTP an error "
        "is a problem document (RFC 9457) whose `type` is `urn:colmlm:CODE`. In Python it is `error.code`. "
        "Words in braces are filled in."
    )
    return "\n\n".join([head, *rows]) + "\n"


def _messages() -> dict[str, tuple[str, str, int | None]]:
    """Give the title and the message of each code as the code words it, and the HTTP status if it names one."""
    found: dict[str, tuple[str, str, int | None]] = {}
    for file in ERROR_FILES:
        for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                calls = [one for one in node.decorator_list if isinstance(one, ast.Call)]
                coded = [one for one in calls if ast.unparse(one.func).endswith(".coded")]
                for one in coded:
                    code, title = (ast.literal_eval(given) for given in one.args[:2])
                    named = [ast.literal_eval(k.value) for k in one.keywords if k.arg == "status"]
                    found[code] = (title, _longest_text(node), named[0] if named else None)
            elif isinstance(node, ast.ClassDef) and (title := _title_of(node)):
                found[node.name] = (title, _longest_text(node), None)
    return found


def _title_of(node: ast.ClassDef) -> str | None:
    for one in node.body:
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "title":
            return str(ast.literal_eval(one.value))
    return None


def _longest_text(node: ast.AST) -> str:
    """Give the message that a function or a constructor words: the longest of its strings, with holes in braces."""
    docstring = (
        ast.get_docstring(node, clean=False) if isinstance(node, ast.FunctionDef | ast.ClassDef) else None
    )
    texts = [_text_of(one) for one in ast.walk(node) if isinstance(one, ast.JoinedStr | ast.Constant)]
    return max((text for text in texts if text and text != docstring), key=len, default="")


def _text_of(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                str(one.value) if isinstance(one, ast.Constant) else f"{{{_hole(one)}}}" for one in values
            )
    return ""


def _hole(node: ast.expr) -> str:
    names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
    return names[-1] if names else "..."


def metrics_page() -> str:
    """Describe every metric of `GET /metrics`, as the code registers it."""
    source = ast.parse((ROOT / "api" / "watch" / "metrics.py").read_text(encoding="utf-8"))
    kinds = {"Histogram", "Counter", "Gauge", "CounterMetricFamily", "GaugeMetricFamily"}
    rows = []
    for node in ast.walk(source):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in kinds and len(node.args) > 1:
            name, text = (_text_of(one) for one in node.args[:2])
            if name.startswith("colmlm_") and "{" not in name:
                labels = re.findall(
                    r"'(\w+)'",
                    " ".join(
                        map(
                            ast.unparse,
                            [*node.args[2:], *(k.value for k in node.keywords if k.arg == "labels")],
                        )
                    ),
                )
                rows.append(
                    (
                        name,
                        ast.unparse(node.func).replace("MetricFamily", "").lower(),
                        ", ".join(labels),
                        text,
                    )
                )
    from colmlm.api.watch import metrics

    rows += [(f"colmlm_{part}_seconds", "histogram", "", text) for part, (text, _) in metrics._PARTS.items()]
    table = "\n".join(
        f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in sorted(rows)
    )
    return (
        "# Metrics\n\n`GET /metrics` gives Prometheus's text format to a token with the right `lookup`. "
        f"Counters end in `_total` there.\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n{table}\n"
    )


def rights_page() -> str:
    """Describe which role may call which route."""
    from colmlm.api.app import build_routes
    from colmlm.api.middleware.auth import right_of
    from colmlm.kb.access.records import ROLES

    rows = []
    for route in sorted(build_routes().routes, key=lambda one: str(one.path)):
        for method, handler in sorted(_handlers(route).items()):
            right = right_of(handler)
            may = (
                ["yes" if right in rights else "" for rights in ROLES.values()]
                if right
                else ["yes"] * len(ROLES)
            )
            is_scoped = right is None or (right in ROLES["reader"] and "scoped" in handler.opt)
            may.append("its own" if is_scoped and right else "yes" if is_scoped else "")
            rows.append(
                f"| `{method} {route.path_format}` | {right.value if right else 'none'} | {' | '.join(may)} |"
            )
    return (
        "# Rights by route\n\nEach route needs one right. A role is a set of rights. A token of some corpora (the last "
        "column) gets what is in these.\n\n"
        f"| route | right | {' | '.join(ROLES)} | reader of some corpora |\n|---|---|{'---|' * (len(ROLES) + 1)}\n"
        + "\n".join(rows)
        + "\n\n## The past\n\n"
        "A role without the right `audit` is shown marks in place of deleted, corrected and replaced values. "
        "An empty cell is a refusal.\n\n"
        + (ROOT / "tests" / "api" / "withheld.md").read_text(encoding="utf-8")
    )


def _handlers(route: Any) -> Mapping[str, Any]:
    return {
        method: pair[0]
        for method, pair in getattr(route, "route_handler_map", {}).items()
        if method not in {"OPTIONS", "HEAD"}
    }


def http_page() -> str:
    """Describe every route of the API, from its OpenAPI document."""
    from colmlm.api.app import build_routes
    from colmlm.api.schema.openapi import complete_document
    from colmlm.api.schema.reference import reference

    return reference(complete_document(build_routes()))


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/command-line.md": command_line_page,
    "reference/settings.md": settings_page,
    "reference/errors.md": errors_page,
    "reference/metrics.md": metrics_page,
    "reference/rights.md": rights_page,
    "reference/http.md": http_page,
}


def on_files(files: Any, config: Any) -> Any:
    """Add the drawn pages to the site; MkDocs calls this once a build."""
    from mkdocs.structure.files import File

    for path, draw in PAGES.items():
        files.append(File.generated(config, path, content=draw()))
    for entry in sorted(NOTEBOOK.iterdir()):
        files.append(File.generated(config, f"notebook/{entry.name}", abs_src_path=str(entry)))
    return files


_LINK = re.compile(r"\[(\[\d+\]|[^\]\n]+)\]\((\.\./[^)\s#]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Link to the notebook in the site, and name another file of the repository where a page links to it."""
    if page.file.src_uri.startswith("notebook/"):
        page.meta["hide"] = ["navigation"]  # which has no place for the entries
        return markdown.replace("](../../docs/", "](../")
    markdown = markdown.replace("](../../lab/notebook/", "](../notebook/").replace("](../../docs/", "](../")
    docs = Path(config["docs_dir"]).resolve()
    folder = (docs / page.file.src_uri).parent

    def replace_link(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(docs):
            return link[0]
        name = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else link[2]
        text = link[1].strip("`")
        return f"`{name}`" if text in name else f"{link[1]} (`{name}`)"

    return _LINK.sub(replace_link, markdown)
