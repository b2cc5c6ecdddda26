"""A token of some corpora is given what is in these, and nothing of any other through any door."""

from __future__ import annotations

import hashlib
import random
import re

import pytest
from sqlalchemy import text

from colmlm.api.middleware.auth import right_of
from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.access.records import ROLES, SCOPED_ROLES
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed
from colmlm.kb.errors import InvalidValue, NotFound
from colmlm.kb.evidence.generation import GenerationRequest
from colmlm.kb.facts.records import FactEdit
from colmlm.kb.principal import Origin, Principal, origin
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Client, Connect
from tests.api.generator import LookupGenerator
from tests.api.planted import (
    ASKED,
    HIDDEN,
    OFFICE,
    RAISE,
    SALARY,
    SEEN,
    SHARED,
    WHY,
    Planted,
    asking,
    client_of,
    edits,
    leaked,
    paths,
)
from tests.api.role_matrix import routes
from tests.fakes import FakeEncoder


@pytest.mark.parametrize("role", ["reader", "auditor", "operator"])
def test_no_route_that_is_read_says_what_is_in_another_corpus(
    kb: KnowledgeBase, app: GatedApp, connect: Connect, planted: Planted, role: str
) -> None:
    scoped, answered = client_of(role, kb, app, connect), 0
    for path in paths(app, planted):
        answer = scoped.get(path)
        assert leaked(answer, path) == [], path
        answered += answer.status_code == 200
    assert answered > 15
    assert scoped.get(f"/console/facts/download?corpus={HIDDEN}").status_code == 404
    assert OFFICE in scoped.get(f"/console/facts/download?corpus={SEEN}").text


def test_a_route_that_is_not_limited_refuses_the_token_whatever_its_right(
    app: GatedApp, editor: Client, planted: Planted
) -> None:
    for route in routes(app):
        right = right_of(route.handler)
        if right in ROLES["operator"] and "scoped" not in route.handler.opt:
            answer = editor.request(route.method, route.path, json={"reason": WHY})
            if route.path.startswith("/v1") and answer.status_code not in (200, 404):
                assert answer.status_code == 403 and "on all corpora" in answer.text, (route, answer.text)


def test_no_way_to_ask_answers_from_another_corpus(
    scoped: Client, planted: Planted, encoder: FakeEncoder
) -> None:
    for question in (ASKED, SHARED, "How much does Keller earn?", "What is the title?"):
        for corpora in ([], [SEEN], [HIDDEN], [SEEN, HIDDEN]):
            for path, how in asking(planted, encoder, question, corpora):
                answer = scoped.post(path, **how)
                assert leaked(answer, question, *corpora) == [], (path, question, corpora, answer.text)
                if HIDDEN in corpora and path.startswith("/v1") and "lookups" not in path:
                    assert answer.status_code == 404, (path, answer.text)


def test_its_own_corpus_answers_as_for_any_other_token(
    scoped: Client, planted: Planted, encoder: FakeEncoder
) -> None:
    found = scoped.post("/v1/lookups", json={"questions": [SHARED], "k": 5, "threshold": -1}).json()
    assert [hit["value"] for hit in found["answers"][0]["hits"]] == [OFFICE]
    (fact,) = scoped.get("/v1/facts").json()["items"]
    assert fact["fact_id"] == planted.open_fact and fact["value"] == OFFICE
    assert [one["corpus"] for one in scoped.get("/v1/corpora").json()["items"]] == [SEEN]
    assert OFFICE in scoped.get(f"/v1/documents/{planted.open_document}").json()["text"]
    trace = scoped.get(f"/v1/facts/{planted.open_fact}/trace").json()
    assert [one["kind"] for one in trace["history"]] == ["ingest"]
    near = scoped.get("/v1/facts", params={"near": ASKED}).json()["items"]
    assert [one["fact_id"] for one in near] == [planted.open_fact]
    made = scoped.post("/v1/generations", json={"prompt": SHARED, "threshold": -1}).json()
    assert made["corpora"] == [SEEN] and OFFICE in made["output"]
    own = scoped.get(f"/v1/generations/{made['generation_id']}").json()
    assert own["output"] == made["output"] and own["splices"][0]["fact_id"] == planted.open_fact
    told = scoped.get(f"/v1/generations/{made['generation_id']}", headers={"Accept": "application/ld+json"})
    assert told.status_code == 200 and OFFICE in told.text
    for page in (
        f"/console/ask?output={made['generation_id']}",
        f"/console/audit/outputs/{made['generation_id']}",
    ):
        shown = scoped.get(page)
        assert shown.status_code == 200 and OFFICE in shown.text, page
    for page in (
        "/console/ask",
        "/console/facts",
        "/console/corpora",
        f"/console/documents/{planted.open_document}",
    ):
        assert scoped.get(page).status_code == 200, page
    assert [one["generation_id"] for one in scoped.get("/v1/generations").json()["items"]] == [
        made["generation_id"]
    ]


def test_the_numbers_that_it_is_given_count_its_own_corpus_alone(scoped: Client, planted: Planted) -> None:
    counted = scoped.get("/v1/facts", params={"limit": 1}).json()
    assert counted.get("total", 1) == 1
    (corpus,) = scoped.get("/v1/corpora").json()["items"]
    assert (corpus["documents"], corpus["facts"]) == (1, 1)


@pytest.mark.slow(reason="asks hundreds of paths")
def test_two_hundred_random_attempts_leak_nothing(
    app: GatedApp, scoped: Client, planted: Planted, encoder: FakeEncoder
) -> None:
    rng = random.Random(45)
    read = list(paths(app, planted))
    for _ in range(200):
        question = rng.choice([ASKED, SHARED, "What is the title of Keller's pay slip?", "salary", "office"])
        corpora = rng.choice([[], [SEEN], [HIDDEN], [HIDDEN, SEEN]])
        if rng.random() < 0.5:
            path, how = rng.choice(list(asking(planted, encoder, question, corpora)))
            answer = scoped.post(path, **how)
        else:
            path = rng.choice(read)
            more = {
                "text": question,
                "corpus": rng.choice(corpora or [SEEN]),
                "state": rng.choice(["live", "all"]),
            }
            answer = scoped.get(path, params=more if rng.random() < 0.7 else {})
        assert leaked(answer, path, question, *corpora) == [], (path, question, corpora)


def test_the_database_itself_shows_a_scoped_caller_no_other_row(kb: KnowledgeBase, planted: Planted) -> None:
    before = origin.set(Origin(Principal("key", "sales desk", 7, corpora=(SEEN,))))
    try:
        with kb.sessions() as session:
            for table in (
                "document",
                "fact",
                "fact_version",
                "generation",
                "attribution",
                "change",
                "sentence",
            ):
                counted = session.scalar(text(f"SELECT count(*) FROM {table}"))
                assert counted == {"generation": 0, "attribution": 0, "sentence": 2}.get(table, 1), table
        with pytest.raises(Exception, match="on all corpora"), kb.sessions() as session:
            session.execute(text("SELECT * FROM api_key"))
        with pytest.raises(Exception, match="on all corpora"), kb.sessions() as session:
            session.execute(text("UPDATE fact SET question = 'x'"))
    finally:
        origin.reset(before)
    with kb.sessions() as session:
        assert session.scalar(text("SELECT count(*) FROM document")) == 2
        assert session.scalar(text("SELECT current_user")) != "colmlm_scoped"


def test_an_operator_of_a_corpus_edits_nothing_in_another(
    kb: KnowledgeBase, app: GatedApp, editor: Client, planted: Planted
) -> None:
    limited = {
        (one.method, one.template)
        for one in routes(app)
        if one.handler.opt.get("scoped") == "by targets" and not one.template.startswith("/console")
    }
    tried, before = set(), kb.log.head_seq()
    for fact_id, document_id in zip(planted.facts, planted.documents * 2, strict=True):
        for method, path, body in edits(fact_id, document_id, HIDDEN, planted.run, planted.job):
            answer = editor.request(method, path, json=body)
            assert answer.status_code in (404, 400), (method, path, answer.text)
            assert leaked(answer, path, *map(str, body.values())) == [], (method, path, answer.text)
            tried.add((method, re.sub(r"/\d+", "/{}", path.replace(HIDDEN, "{}"))))
    for seq in range(1, before + 1):
        answer = editor.post(f"/v1/changes/{seq}/undo", json={"reason": "tried"})
        assert leaked(answer) == [] and answer.status_code != 200, answer.text
    tried.add(("POST", "/v1/changes/{}/undo"))
    assert {(method, re.sub(r"\{[^}]*\}", "{}", path)) for method, path in limited} <= tried
    assert kb.log.head_seq() == before and all(fact.deleted_seq is None for fact in kb.facts.every(HIDDEN))


def test_an_operator_of_a_corpus_edits_its_own_and_undoes_it(editor: Client, planted: Planted) -> None:
    fact_id, why = planted.open_fact, {"reason": "mended"}
    edit = editor.patch(f"/v1/facts/{fact_id}", json={"value": "Titania", **why})
    assert edit.status_code == 200, edit.text
    assert editor.post(f"/v1/changes/{edit.json()['seq']}/undo", json=why).status_code == 200
    for method, path, status in (("DELETE", "/v1/facts", 200), ("POST", "/v1/facts/restore", 200)):
        done = editor.request(method, path, json={"fact_ids": [fact_id], **why})
        assert (done.status_code, done.json()["fact_ids"]) == (status, [fact_id]), done.text
    record = {"id": "rome", "text": "Rome is old.", "facts": []}
    taken = editor.post("/v1/documents", json={"corpus": SEEN, "documents": [record], **why})
    assert taken.status_code == 201 and taken.json()["documents"] == 1, taken.text
    reasons = [one["reason"] for one in editor.get("/v1/changes").json()["items"]]
    assert reasons == ["set up", *["mended"] * 5]
    assert editor.get(f"/v1/facts/{fact_id}").json()["value"] == OFFICE


def test_an_edit_is_told_nothing_of_facts_that_say_the_same_elsewhere(
    kb: KnowledgeBase, editor: Client, planted: Planted
) -> None:
    hidden = next(fact for fact in kb.facts.every(HIDDEN) if fact.value == RAISE)
    edit = editor.patch(f"/v1/facts/{planted.open_fact}", json={"value": "Titania", "reason": "a guess"})
    assert edit.status_code == 200, "that a fact elsewhere answers the question otherwise refuses nothing"
    edit = editor.patch(f"/v1/facts/{planted.open_fact}", json={"value": RAISE, "reason": "a guess"})
    assert edit.json()["also_said_by"] == [] and hidden.fact_id not in edit.json()["fact_ids"]
    gone = editor.request(
        "DELETE", "/v1/facts", json={"fact_ids": [planted.open_fact], "dry_run": True, "reason": "r"}
    )
    assert gone.status_code == 200 and gone.json()["also_said_by"] == [], gone.text
    said = f"The office is in {RAISE}."
    record = {
        "id": "guess",
        "text": said,
        "facts": [{"start": 17, "end": 17 + len(RAISE), "value": RAISE, "question": SHARED}],
    }
    taken = editor.post("/v1/documents", json={"corpus": SEEN, "documents": [record], "reason": "a guess"})
    assert taken.status_code == 201, taken.text
    assert (taken.json()["contradictions"], taken.json()["duplicates"]) == (0, 1), "its own fact alone"


def test_only_those_roles_that_read_are_given_on_some_corpora(kb: KnowledgeBase, planted: Planted) -> None:
    for role in ROLES:
        if role in SCOPED_ROLES:
            _, made = kb.access.create(f"the {role}", role, corpora=[SEEN, SEEN])
            assert made.corpora == (SEEN,) and made.principal.corpora == (SEEN,)
        else:
            with pytest.raises(InvalidValue, match="is a role on all corpora"):
                kb.access.create(f"the {role}", role, corpora=[SEEN])
    with pytest.raises(NotFound, match="No corpus"):
        kb.access.create("nobody", "reader", corpora=["elsewhere"])


def test_the_console_makes_and_shows_a_token_of_a_corpus(
    kb: KnowledgeBase, app: GatedApp, connect: Connect, planted: Planted
) -> None:
    admin = connect(app, "admin")
    page = admin.get("/console/tokens").text
    assert "Keep it to corpus" in page
    form = {"name": "desk", "role": "reader", "days": "", "rate": "", "corpus": SEEN}
    made = admin.post("/console/tokens", data=form, headers={"Origin": "http://127.0.0.1:8484"})
    assert made.status_code < 400 and f"reader of {SEEN}" in made.text
    assert kb.access.show("desk").corpora == (SEEN,) and f"of {SEEN}" in admin.get("/console/tokens").text
    refused = admin.post(
        "/console/tokens",
        data=form | {"name": "boss", "role": "admin"},
        headers={"Origin": "http://127.0.0.1:8484"},
    )
    assert "is a role on all corpora" in refused.text


def test_a_denial_is_recorded_for_auditors(kb: KnowledgeBase, scoped: Client, planted: Planted) -> None:
    refused = scoped.get("/v1/misses")
    assert refused.status_code == 403 and refused.json()["type"].endswith("NeedsAllCorpora")
    assert kb.log.denials()[0].path == "/v1/misses"


def test_what_others_asked_of_its_corpora_is_not_shown(
    kb: KnowledgeBase, scoped: Client, planted: Planted, encoder: FakeEncoder
) -> None:
    asked = GenerationRequest(prompt=f"Keller earns {SALARY}. {SHARED}", threshold=-1, corpora=(SEEN,))
    made = LookupGenerator(kb, encoder).generate(asked)
    assert made.corpora == (SEEN,) and leaked(scoped.get("/v1/generations")) == []
    assert scoped.get(f"/v1/generations/{made.generation_id}").status_code == 404


def test_a_change_of_both_corpora_is_told_through_no_door(
    kb: KnowledgeBase, scoped: Client, planted: Planted
) -> None:
    (hidden, *_) = planted.facts
    given = [FactEdit(planted.open_fact, "Oberoniumia"), FactEdit(hidden, f"{SALARY} and a half")]
    kb.facts.edit_many(given, actor="tester", reason=WHY)
    made = scoped.post("/v1/generations", json={"prompt": SHARED, "threshold": -1})
    assert "Oberoniumia" in made.text and leaked(made) == []
    for path in (f"/v1/generations/{made.json()['generation_id']}", f"/v1/facts/{planted.open_fact}/trace"):
        assert leaked(scoped.get(path)) == [], path


def test_a_release_that_knows_of_no_corpora_does_not_find_the_secret(
    kb: KnowledgeBase, planted: Planted
) -> None:
    secret, made = kb.access.create("sales desk", "reader", corpora=[SEEN])
    cookie = kb.access.begin_session(made, None)
    with kb.sessions() as session:
        known = {bytes(one) for one in session.scalars(text("SELECT key_hash FROM api_key"))}
        known |= {bytes(one) for one in session.scalars(text("SELECT secret_hash FROM browser_session"))}
    assert known.isdisjoint(hashlib.sha256(said.encode()).digest() for said in (secret, cookie))
    again, _ = kb.access.rotate("sales desk")
    rotated = kb.access.of_secret(again)
    assert rotated is not None and rotated.corpora == (SEEN,) and kb.access.of_secret(secret) is None


def test_sentences_of_another_corpus_push_none_of_its_own_out(kb: KnowledgeBase, planted: Planted) -> None:
    def many(name: str, said: str, number: int) -> Parsed:
        return Parsed(AnnotatedDocument(name, " ".join(said.format(n) for n in range(number))))

    kb.corpora.ingest(
        [many("log", "Entry {} is long and says nothing at all.", 1100)], SEEN, actor="t", reason="r"
    )
    ours = Parsed(
        AnnotatedDocument("ship", "A zeppelin of the firm crossed the sea in nine days, as was said.")
    )
    kb.corpora.ingest([ours], SEEN, actor="t", reason="r")
    kb.corpora.ingest([many("air", "Zeppelin {}.", 2500)], HIDDEN, actor="t", reason="r")
    with kb.sessions() as session:
        found = kb.words.find(session, "Which zeppelin?", 30, corpora=(SEEN,))
    assert len(found) == 1
