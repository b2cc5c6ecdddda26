"""A token of some corpora is given what is in these, and nothing of any other through any door."""

from __future__ import annotations

import hashlib
import html
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from sqlalchemy import URL, text

from colmlm.api.app import create_app
from colmlm.api.middleware.auth import right_of
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.middleware.limiters import Tuning
from colmlm.kb.access.records import ROLES, SCOPED_ROLES
from colmlm.kb.answers.answering import Answering
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.errors import InvalidValue, NotFound
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.evidence.generation import GenerationRequest
from colmlm.kb.evidence.records import NewFeedback
from colmlm.kb.facts.records import Correction
from colmlm.kb.principal import Origin, Principal, origin
from colmlm.kb.questions.records import DraftQuestion
from colmlm.kb.service import KnowledgeBase
from tests import servers
from tests.api.conftest import Client, Connect
from tests.api.generator import LookupGenerator
from tests.api.role_matrix import routes
from tests.fakes import FakeEncoder, SayingReader

SEEN, HIDDEN = "sales", "payrollium"
SALARY, RAISE, TITLE, LICENCE, ADDRESS, WHY = (
    "Zanzibarium", "Quixotium", "Vortigernium", "Brobdingnagium", "Lilliputium", "Laputium"
)  # fmt: skip
PLANTED = (SALARY, RAISE, TITLE, LICENCE, ADDRESS, WHY, HIDDEN)
ASKED, SHARED = "What does Keller earn?", "Where is the office?"
OFFICE = "Oberonium"


def document(name: str, said: str, questions: dict[str, str], **more: str) -> AnnotatedDocument:
    spans = tuple(
        FactSpan(said.index(value), said.index(value) + len(value), value, question, f"It is {value}.")
        for value, question in questions.items()
    )
    return AnnotatedDocument(name, said, spans, **more)


OPEN = document("map", f"The office is in {OFFICE}. It has a garden.", {OFFICE: SHARED}, title="Map")
SECRET = document(
    "pay",
    f"Keller earns {SALARY}. The office is in {RAISE}.",
    {SALARY: ASKED, RAISE: SHARED},
    title=TITLE,
    licence=LICENCE,
    uri=f"https://example.org/{ADDRESS}",
)


@dataclass(frozen=True, slots=True)
class Planted:
    """Hold where the words are: facts, documents and outputs of the hidden corpus, and of the seen one."""

    facts: tuple[int, ...]
    documents: tuple[int, ...]
    outputs: tuple[int, ...]
    open_fact: int
    open_document: int
    seq: int


@pytest.fixture(scope="module")
def planted_template(server: URL) -> tuple[str, Planted]:
    """The name of a database with two corpora, and where the words are."""
    return "scoped_template", servers.fill(server, "scoped_template", plant)


@pytest.fixture
def template(planted_template: tuple[str, Planted]) -> str:
    return planted_template[0]


@pytest.fixture
def planted(kb: KnowledgeBase, planted_template: tuple[str, Planted]) -> Planted:
    return planted_template[1]


def plant(kb: KnowledgeBase) -> Planted:
    """Fill two corpora, ask of both, keep questions, miss, and correct and delete in the hidden one."""
    encoder, why = FakeEncoder(), {"actor": "tester", "reason": WHY}
    kb.corpora.ingest([Parsed(OPEN)], SEEN, actor="tester", reason="set up")
    kb.corpora.ingest([Parsed(SECRET)], HIDDEN, **why)
    kb.keysets.rekey(encoder, kinds=("context", "question"))
    generator = LookupGenerator(kb, encoder)
    made = [generator.generate(GenerationRequest(prompt=asked, threshold=0.9)) for asked in (ASKED, SHARED)]
    assert all(one.splices[0].outcome == "hit" for one in made)
    answers = StoredAnswers(kb, Answering(kb, None, SayingReader(SALARY)))
    quoted = answers.answer("How much does Keller earn?")
    assert quoted.generation_id
    outputs = (*(one.generation_id for one in made), quoted.generation_id)
    kb.outputs.give_feedback(outputs[0], NewFeedback(thumb="down", comment=WHY), actor="tester")
    kb.questions.add(HIDDEN, [DraftQuestion(ASKED, (SALARY,))], actor="tester", corpus=HIDDEN)
    kb.misses.group()
    facts = tuple(fact.fact_id for fact in kb.facts.every(HIDDEN))
    (fact,) = kb.facts.every(SEEN)
    (hidden,) = kb.documents.find(corpus=HIDDEN)
    (shown,) = kb.documents.find(corpus=SEEN)
    return Planted(facts, (hidden.document_id,), outputs, fact.fact_id, shown.document_id, kb.log.head_seq())


@pytest.fixture
def app(kb: KnowledgeBase, planted: Planted, encoder: FakeEncoder, tuning: Tuning) -> GatedApp:
    return create_app(kb, encoder, LookupGenerator(kb, encoder), tuning=tuning, reader=SayingReader(SALARY))


def client_of(role: str, kb: KnowledgeBase, app: GatedApp, connect: Connect) -> Client:
    """Give a client with a token of this role on the seen corpus."""
    client = connect(app)
    secret, _ = kb.access.create(f"sales {role}", role, corpora=[SEEN])
    client.headers["Authorization"] = f"Bearer {secret}"
    return client


@pytest.fixture
def scoped(kb: KnowledgeBase, app: GatedApp, connect: Connect) -> Client:
    """A client with a reader's token of the seen corpus."""
    return client_of("reader", kb, app, connect)


@pytest.fixture
def editor(kb: KnowledgeBase, app: GatedApp, connect: Connect) -> Client:
    """A client with an operator's token of the seen corpus."""
    return client_of("operator", kb, app, connect)


def said_by(answer: Any) -> str:
    """Give what an answer says, however it spells it; refuse one that is a fault of the server."""
    assert answer.status_code < 500 or answer.status_code == 503, (str(answer.request.url), answer.text)
    if "json" in answer.headers.get("content-type", "") and answer.text.count("\n") == 0:
        return json.dumps(answer.json(), ensure_ascii=False)
    return html.unescape(answer.text)


def leaked(answer: Any, *given: str) -> list[str]:
    """Give the planted words that an answer says, but for those that were given to it, which it may repeat."""
    said = said_by(answer)
    return [word for word in PLANTED if word in said and not any(word in one for one in given)]


def paths(app: GatedApp, planted: Planted) -> Iterator[str]:
    """Every GET route, with ids of both corpora."""
    ids: dict[str, tuple[object, ...]] = {
        "fact_id": (*planted.facts, planted.open_fact),
        "document_id": (*planted.documents, planted.open_document),
        "generation_id": planted.outputs,
        "output_id": planted.outputs,
        "seq": tuple(range(1, planted.seq + 1)),
        "corpus": (SEEN, HIDDEN),
        "name": (SEEN, HIDDEN),
    }
    for route in routes(app):
        if route.method != "GET":
            continue
        name = next((part[1:-1] for part in route.template.split("/") if part.startswith("{")), "")
        for value in ids.get(name, (1,)):
            yield route.template.replace(f"{{{name}}}", str(value)).replace("{run_id}", "1")


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


def asking(planted: Planted, encoder: FakeEncoder, question: str, corpora: list[str]) -> Iterator[Any]:
    """Every way to ask: how to send it, with the question in it and the corpora that are named."""
    named = {"corpora": corpora} if corpora else {}
    query_1D = encoder.encode_questions([question])
    yield "/v1/answers", {"json": {"question": question, "threshold": 0, **named}}
    yield "/v1/answers", {"json": {"question": question, "mode": "paper", "threshold": -1, **named}}
    for ranking in ("key", "words", "reader"):
        asked = {
            "questions": [question],
            "k": 5 if ranking == "key" else 1,
            "threshold": -1,
            "ranking": ranking,
        }
        yield "/v1/lookups", {"json": asked | named}
    vectors = {"queries": query_1D.tolist(), "checkpoint_id": encoder.checkpoint.checkpoint_id, "k": 5}
    yield "/v1/lookups", {"json": vectors | {"threshold": -1} | named}
    given = {
        "checkpoint_id": encoder.checkpoint.checkpoint_id,
        "dim": query_1D.shape[1],
        "threshold": -1,
        "k": 5,
    }
    octets = {"content": query_1D.astype(np.float32).tobytes()}
    yield "/v1/lookups", octets | {
        "params": given | named, "headers": {"Content-Type": "application/octet-stream"}
    }  # fmt: skip
    yield "/v1/generations", {"json": {"prompt": f"Question: {question}\nAnswer:", "threshold": 0} | named}
    yield "/v1/generations", {"json": {"prompt": question, "threshold": -1, "stream": True} | named}
    chat = [{"role": "user", "content": question}]
    yield "/v1/chat/completions", {"json": {"model": "colmlm", "messages": chat} | named}
    yield "/v1/completions", {"json": {"model": "colmlm", "prompt": question} | named}
    yield "/v1/responses", {"json": {"model": "colmlm", "input": question} | named}
    page = {"Origin": "http://127.0.0.1:8484"}
    form = {"question": question, "prompt": question, "threshold": "0", "corpora": ", ".join(corpora)}
    yield "/console/ask/answer", {"data": form, "headers": page}
    yield "/console/ask", {"data": form | {"threshold": "-1"}, "headers": page}


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


def edits(fact_id: int, document_id: int, corpus: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every edit that an operator of a corpus may ask for, of what is named."""
    why, record = {"reason": "tried"}, {"id": "new", "text": "Rome is old.", "facts": []}
    yield "PATCH", f"/v1/facts/{fact_id}", {"value": "Other", **why}
    yield "PATCH", "/v1/facts/batch", {"facts": [{"fact_id": fact_id, "value": "Other"}], **why}
    yield "DELETE", f"/v1/facts/{fact_id}", why
    yield "DELETE", "/v1/facts", {"fact_ids": [fact_id], **why}
    yield "DELETE", "/v1/facts", {"fact_ids": [fact_id], "dry_run": True, **why}
    yield "POST", "/v1/facts/restore", {"fact_ids": [fact_id], **why}
    yield "POST", f"/v1/facts/{fact_id}/move", {"start": 0, "end": 3, **why}
    yield "POST", f"/v1/documents/{document_id}/facts", {"start": 0, "end": 3, "question": "Who?", **why}
    verdict = {"fact_id": fact_id, "verdict": "accept", "version": 1, "review": None}
    yield "POST", "/v1/review/verdicts", {"verdicts": [verdict], **why}
    yield "POST", "/v1/documents", {"corpus": corpus, "documents": [record], **why}
    yield "DELETE", f"/v1/documents/{document_id}", why
    yield "DELETE", f"/v1/corpora/{corpus}", why


def test_an_operator_of_a_corpus_edits_nothing_in_another(
    kb: KnowledgeBase, app: GatedApp, editor: Client, planted: Planted
) -> None:
    limited = {
        (one.method, one.template) for one in routes(app) if one.handler.opt.get("scoped") == "by targets"
    }
    tried, before = set(), kb.log.head_seq()
    for fact_id, document_id in zip(planted.facts, planted.documents * 2, strict=True):
        for method, path, body in edits(fact_id, document_id, HIDDEN):
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
    given = [Correction(planted.open_fact, "Oberoniumia"), Correction(hidden, f"{SALARY} and a half")]
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
