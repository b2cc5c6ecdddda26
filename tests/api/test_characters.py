"""Characters that do not show: refused in names, shown on pages and in lines of the log."""

from __future__ import annotations

from colmlm.api.console import views
from colmlm.api.console.views import Form
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.watch.logs import show_all
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Client, Connect


def test_nobody_is_named_with_what_does_not_show(operator: Client, fact_id: int) -> None:
    for named in ({"on_behalf_of": "a\u202eb"}, {"actor": "\x1b[2J"}, {"on_behalf_of": "\u200b"}):
        body = {"value": "Cusco", "reason": "test", **named}
        assert operator.patch(f"/v1/facts/{fact_id}", json=body).status_code == 422


def test_pages_show_what_does_not_show(
    app: GatedApp, atlas: KnowledgeBase, connect: Connect, fact_id: int
) -> None:
    atlas.facts.edit(fact_id, "a\u202eb\u200b<i>", actor="ann", reason="test")
    page = connect(app, "operator").get(f"/console/facts/{fact_id}").text
    assert r"a\u202eb\u200b&lt;i&gt;" in page


def test_a_field_keeps_what_was_typed() -> None:
    source = '{% from "macros.html" import field with context %}{{ field(form, "value", "Value") }}'
    shown = views.templates.from_string(source).render(form=Form({"value": "a\u202eb"}))
    assert 'value="a\u202eb"' in shown


def test_lines_of_the_log_are_lines() -> None:
    told = show_all(None, "info", {"event": "a\nb\x1b\u202e", "exception": "x\n  y\x1b", "status": 200})
    assert told == {"event": r"a\x0ab\x1b\u202e", "exception": "x\n  y\\x1b", "status": 200}
