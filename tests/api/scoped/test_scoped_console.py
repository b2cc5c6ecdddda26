"""The console of people with a role on some corpora: what they may do works, and nothing else is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Client, Connect
from tests.api.planted import HIDDEN, OFFICE, SEEN, WHY, Planted, client_of, document, leaked
from tests.api.role_matrix import routes

PAGE = {"Origin": "http://127.0.0.1:8484"}


def send(client: Client, path: str, **form: Any) -> Any:
    """Send a form of the console, as its page would, and follow where it leads."""
    return client.post(f"/console{path}", data=form, headers=PAGE)


def forms(fact_id: int, planted: Planted) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every form with which a person edits what is named in it."""
    why, document_id = {"reason": "tried"}, planted.documents[0]
    yield "/facts/delete", {"fact": fact_id, **why}
    yield "/facts/restore", {"fact": fact_id, **why}
    yield f"/facts/{fact_id}", {"value": "Other", **why}
    yield "/facts/edit", {"rows": f"fact_id,value\n{fact_id},Other\n", "do": "edit", **why}
    yield f"/documents/{document_id}/facts", {"start": 0, "end": 3, "question": "Who?", **why}
    yield f"/documents/{document_id}/facts", {"start": 0, "end": 3, "move": fact_id, **why}
    yield "/review", {"accept": f"{fact_id}:1", **why}
    yield f"/review/{fact_id}", {"version": 1, "question": "Who?", **why}
    yield "/changes/2/undo", {}
    yield f"/forget/{planted.run}/apply", why
    yield f"/forget/{planted.run}/restore", why
    yield f"/jobs/{planted.job}/cancel", {}


def test_no_form_edits_or_tells_what_is_in_another_corpus(
    kb: KnowledgeBase, app: GatedApp, editor: Client, planted: Planted
) -> None:
    before, tried = kb.log.head_seq(), set()
    for fact_id in planted.facts:
        for path, form in forms(fact_id, planted):
            answer = send(editor, path, **form)
            assert answer.status_code >= 400 or "cannot be used" in answer.text, (path, answer.text)
            assert leaked(answer, path, *map(str, form.values())) == [], (path, answer.text)
            tried.add(re.sub(r"/\d+", "/{}", path))
    taken = editor.post(
        "/console/corpora",
        data={"corpus": HIDDEN, "format": "documents"},
        files={"file": ("a.txt", b"Rome is old.")},
        headers=PAGE,
    )
    assert taken.status_code == 404 and leaked(taken, HIDDEN) == []
    tried.add("/corpora")
    assert kb.log.head_seq() == before and Jobs(kb).get(planted.job).state == "queued"
    limited = {
        re.sub(r"\{[^}]*\}", "{}", one.template.removeprefix("/console"))
        for one in routes(app)
        if one.template.startswith("/console") and one.handler.opt.get("scoped") == "by targets"
    }
    assert limited <= tried, "every form that a scoped operator may send is tried"


def test_a_fact_of_another_corpus_beside_an_own_one_refuses_the_form(
    kb: KnowledgeBase, editor: Client, planted: Planted
) -> None:
    before = kb.log.head_seq()
    both = f"{planted.open_fact}, {planted.facts[0]}"
    assert send(editor, "/facts/delete", fact=both, reason="r").status_code == 404
    moved = send(
        editor,
        f"/documents/{planted.open_document}/facts",
        move=planted.facts[0],
        start=0,
        end=3,
        reason="r",
    )
    assert moved.status_code == 404 and leaked(moved) == [] and kb.log.head_seq() == before


def test_an_operator_of_a_corpus_corrects_deletes_restores_marks_and_undoes(
    kb: KnowledgeBase, editor: Client, planted: Planted
) -> None:
    fact_id = planted.open_fact
    corrected = send(editor, f"/facts/{fact_id}", value="Titania", question="Where is it?", reason="mended")
    assert corrected.status_code == 200 and "Titania" in corrected.text and "Undo" in corrected.text
    (seq,) = (change.seq for change in kb.log.changes() if change.kind == "update")
    undone = send(editor, f"/changes/{seq}/undo")
    assert undone.status_code == 200 and kb.facts.show(fact_id).value == OFFICE
    shown = editor.get("/console/facts/delete", params={"fact": fact_id})
    assert shown.status_code == 200 and OFFICE in shown.text
    for path in ("/facts/delete", "/facts/restore"):
        done = send(editor, path, fact=fact_id, reason="mended")
        assert done.status_code == 200 and leaked(done) == [], done.text
    marked = send(
        editor,
        f"/documents/{planted.open_document}/facts",
        text="garden",
        question="What has it?",
        reason="r",
    )
    assert marked.status_code == 200 and "garden" in marked.text
    rows = f"fact_id,value\n{fact_id},Puckia\n"
    assert send(editor, "/facts/edit", rows=rows, do="edit", reason="r").status_code == 200
    assert kb.facts.show(fact_id).value == "Puckia"


def test_an_operator_of_a_corpus_reviews_what_is_proposed_in_it(
    kb: KnowledgeBase, editor: Client, planted: Planted
) -> None:
    said = document("news", "The canteen is in Illyria.", {"Illyria": "Where is the canteen?"})
    kb.corpora.ingest([Parsed(said)], SEEN, actor="machine", reason="marked", generated=True)
    said = document("grades", "The bonus is Elsinorium.", {"Elsinorium": "What is the bonus?"})
    kb.corpora.ingest([Parsed(said)], HIDDEN, actor="machine", reason=WHY, generated=True)
    shown = editor.get("/console/review")
    assert "Illyria" in shown.text and "Elsinorium" not in shown.text and leaked(shown) == []
    listed = editor.get("/v1/review").json()
    assert [one["fact"]["value"] for one in listed["items"]] == ["Illyria"]
    assert (listed["total"], listed["progress"]["proposed"]) == (1, 1)
    fact = listed["items"][0]["fact"]
    fixed = send(
        editor, f"/review/{fact['fact_id']}", version=fact["version"], question="Where do we eat?", reason="r"
    )
    assert fixed.status_code == 200 and kb.facts.show(fact["fact_id"]).review == "accepted"
    assert editor.get(f"/console/review?corpus={HIDDEN}").status_code == 404


@pytest.mark.parametrize("role", ["reader", "auditor", "operator"])
def test_pages_lead_only_to_what_the_person_may_see(
    kb: KnowledgeBase, app: GatedApp, connect: Connect, planted: Planted, role: str
) -> None:
    client = client_of(role, kb, app, connect)
    asked = client.post("/v1/generations", json={"prompt": "Where is the office?", "threshold": -1}).json()
    start = ["/console/ask", f"/console/audit/outputs/{asked['generation_id']}"]
    seen, left = set[str](), start
    while left:
        path = left.pop()
        shown = client.get(path)
        assert shown.status_code == 200, (role, path, shown.text)
        assert leaked(shown, path) == [], (role, path)
        for found in re.findall(r'(?:href|action)="(/console/[^"#]*)', shown.text):
            if found.startswith(("/console/static", "/console/theme", "/console/sign-out")):
                continue
            bare = found.partition("?")[0]
            if bare not in seen and f'action="{found}"' not in shown.text:
                seen.add(bare)
                left.append(found.replace("&amp;", "&"))
    may_edit = role == "operator"
    assert ("/console/review" in seen) and ("/console/facts/edit" in seen) is may_edit
    assert ("/console/audit" in seen) is (role != "reader")
    for hidden in (
        "/console/misses",
        "/console/tokens",
        "/console/status",
        "/console/holds",
        "/console/facts/new",
    ):
        assert hidden not in seen


def test_what_is_refused_says_so_in_plain_words(editor: Client, planted: Planted) -> None:
    for path in ("/console/status", "/console/misses", "/console/facts/new", "/console/audit?check=yes"):
        refused = editor.get(path)
        assert refused.status_code == 403, path
        assert (
            "Needs a right on all corpora" in refused.text or "needs them on all corpora" in refused.text
        ), path
        assert leaked(refused) == []
    assert f"operator of {SEEN}" in editor.get("/console/facts").text


def test_an_operator_of_a_corpus_plans_forgets_and_restores_its_own_facts_alone(
    kb: KnowledgeBase, editor: Client, planted: Planted
) -> None:
    made = send(editor, "/forget", everything="yes", equivalents="include", reason="the lease has ended")
    assert made.status_code == 200 and leaked(made) == [] and OFFICE in made.text, made.text
    (run,) = editor.get("/v1/forget-runs").json()["items"]
    plan = editor.get(f"/v1/forget-runs/{run['run_id']}").json()["plan"]
    assert (plan["num_facts"], plan["live_facts"]) == (1, 1)
    for verb in ("apply", "restore"):
        shown = editor.get(f"/console/forget/{run['run_id']}/{verb}")
        done = send(editor, f"/forget/{run['run_id']}/{verb}", reason="agreed")
        assert (shown.status_code, done.status_code) == (200, 200), (verb, done.text)
        assert leaked(shown) == leaked(done) == []
    assert kb.facts.show(planted.open_fact).deleted_seq is None
    assert all(fact.deleted_seq is None for fact in kb.facts.every(HIDDEN))
