"""Deleted, corrected and replaced texts are shown to keys with the right to audit, and on no route to others."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from litestar.openapi.spec import Parameter
from sqlalchemy import URL, text

from colmlm.api.middleware.auth import right_of
from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.access.records import ROLES
from colmlm.kb.answers.answering import Answering
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.evidence.generation import GenerationRequest
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.questions.asking import ByAnswers
from colmlm.kb.questions.records import DraftQuestion
from colmlm.kb.service import KnowledgeBase
from tests import servers
from tests.api.conftest import Client, Connect, ingest_and_key
from tests.api.generator import LookupGenerator
from tests.api.role_matrix import Ask, past_matrix, routes
from tests.api.serving import served
from tests.fakes import FakeEncoder, SayingReader

WITHHELD = (
    Path(__file__).parent / "withheld.md"
)  # what each role is shown of the past; the site shows it, too
WITH, WITHOUT = ("operator", "auditor", "admin"), ("decoder", "reader", "trainer")

# One word for each way into the past; none is part of another, or of anything else that is said.
DELETED, CORRECTED, REPLACED = "Zanzibarium", "Quixotium", "Vortigernium"
NOTED, ASKED = (
    "Brobdingnagium",
    "Lilliputium",
)  # the answer and the question of a deleted fact without a document
PLANTED = (DELETED, CORRECTED, REPLACED, NOTED, ASKED)
STANDING = "Oberonium"


def spans(text: str, **questions: str) -> tuple[FactSpan, ...]:
    found = (
        FactSpan(text.index(value), text.index(value) + len(value), value, question, f"It is {value}.")
        for value, question in questions.items()
    )
    return tuple(sorted(found, key=lambda one: one.start))


TEXT = f"Of metals, {DELETED} is the oldest. The lightest is {CORRECTED}. {STANDING} shines."
METALS = AnnotatedDocument(
    "metals",
    TEXT,
    spans(
        TEXT,
        **{DELETED: "Which metal is oldest?", CORRECTED: "Which is lightest?", STANDING: "Which shines?"},
    ),
)
OLD = f"The rarest metal is {REPLACED}."
RARE = AnnotatedDocument("rare", OLD, spans(OLD, **{REPLACED: "Which metal is rarest?"}))


@dataclass(frozen=True, slots=True)
class Planted:
    """Where the words are, and the change before they went."""

    deleted: int
    corrected: int
    noted: int
    standing: int
    metals: int
    rare: int
    output: int
    quoted: int
    rewritten: int
    seq: int


@pytest.fixture(scope="module")
def planted_template(server: URL) -> tuple[str, Planted]:
    """The name of a database in which the words were planted, and where they are."""
    return "planted_template", servers.fill(server, "planted_template", plant)


@pytest.fixture
def template(request: pytest.FixtureRequest, template: str) -> str:
    return request.getfixturevalue("planted_template")[0] if "planted" in request.fixturenames else template


@pytest.fixture
def planted(atlas: KnowledgeBase, planted_template: tuple[str, Planted]) -> Planted:
    """Facts that were looked up and spliced, and then deleted, corrected and replaced."""
    return planted_template[1]


def plant(atlas: KnowledgeBase) -> Planted:
    """Have facts looked up and spliced, and then delete, correct and replace them."""
    ingest_and_key(atlas)
    encoder = FakeEncoder()

    def fact_of(text: str) -> int:
        (fact,) = atlas.facts.find(text=text)
        return fact.fact_id

    why = {"actor": "tester", "reason": "set up"}
    atlas.corpora.ingest([Parsed(METALS), Parsed(RARE)], "metals", **why)
    noted = atlas.facts.add(f"What is {ASKED}?", "a small thing", answer=f"A small {NOTED}.", **why).fact_ids[
        0
    ]
    atlas.keysets.rekey(encoder, kinds=("context", "question"))
    generator = LookupGenerator(atlas, encoder)
    questions = (
        "Which metal is oldest?",
        "Which is lightest?",
        "Which metal is rarest?",
        f"What is {ASKED}?",
    )
    outputs = [generator.generate(GenerationRequest(prompt=q, threshold=0.9)) for q in questions]
    assert all(one.splices[0].outcome == "hit" for one in outputs)
    quoted, rewritten = (
        StoredAnswers(atlas, Answering(atlas, None, SayingReader(said))).answer(question)
        for said, question in (
            (f"metals, {DELETED[:6]}", "Of metals, which is the oldest?"),
            (f"rarest metal is {REPLACED}", "Which metal is the rarest?"),
        )
    )
    assert quoted.generation_id and rewritten.generation_id
    kept = [
        DraftQuestion(f"Say: {question}", (word,))  # asked otherwise than any fact, so that it is read
        for question, word in zip(questions, (DELETED, CORRECTED, REPLACED), strict=False)
    ]
    atlas.questions.add("metals", kept, actor="tester")
    for word in (DELETED, CORRECTED, REPLACED):
        asker = ByAnswers(Answering(atlas, None, SayingReader(word)))
        atlas.questions.run("metals", asker, actor="tester")
    seq = atlas.log.head_seq()
    deleted, corrected, rare = (fact_of(word) for word in (DELETED, CORRECTED, REPLACED))
    (old,) = (one for one in atlas.documents.find(corpus="metals") if one.external_id == "rare")
    atlas.facts.delete([deleted, noted], **why)
    answer = atlas.facts.show(corrected).answer
    atlas.facts.edit(corrected, "Hydrogen", **why)
    with atlas.engine.begin() as connection:  # as a release before left it
        connection.execute(
            text("UPDATE fact SET answer = :answer WHERE id = :id"), {"answer": answer, "id": corrected}
        )
    atlas.corpora.ingest([Parsed(replace(RARE, text="Nobody knows the rarest.", facts=()))], "metals", **why)
    assert atlas.facts.show(rare).deleted_seq is not None
    source = atlas.facts.show(deleted).source
    assert source is not None
    return Planted(
        deleted,
        corrected,
        noted,
        fact_of(STANDING),
        source.document_id,
        old.document_id,
        outputs[0].generation_id,
        quoted.generation_id,
        rewritten.generation_id,
        seq,
    )


def asks(planted: Planted) -> list[Ask]:
    """Every way there is to meet what is past, and the word that only it has."""
    fact, listed = f"/v1/facts/{planted.deleted}", "`GET /v1/facts`"
    output, document = f"/v1/generations/{planted.output}", f"/v1/documents/{planted.metals}"
    lookup = {"questions": ["Which metal is oldest?"], "as_of": planted.seq, "threshold": 0.9}
    diff = f"/v1/changes/diff?first={planted.seq}&last={planted.seq + 3}"
    return [
        Ask("`POST /v1/lookups` with `as_of`", "POST", "/v1/lookups", DELETED, lookup),
        Ask(f"{listed} with `state=deleted`", "GET", "/v1/facts?state=deleted", DELETED),
        Ask(f"{listed} with `state=all`", "GET", "/v1/facts?state=all", DELETED),
        Ask("a deleted fact: its value", "GET", fact, DELETED),
        Ask("a deleted fact: its question", "GET", f"/v1/facts/{planted.noted}", ASKED),
        Ask("a deleted fact: its answer", "GET", f"/v1/facts/{planted.noted}", NOTED),
        Ask("a corrected fact: its answer", "GET", f"/v1/facts/{planted.corrected}", CORRECTED),
        Ask("a corrected fact: its earlier values", "GET", f"/v1/facts/{planted.corrected}/trace", CORRECTED),
        Ask("a deleted fact: its trace", "GET", f"{fact}/trace", DELETED),
        Ask("a document: what it says at a deleted fact", "GET", document, DELETED),
        Ask("a document: what it says at a corrected fact", "GET", document, CORRECTED),
        Ask("a document that a newer text replaced", "GET", f"/v1/documents/{planted.rare}", REPLACED),
        Ask("a document's deleted facts", "GET", f"{document}/facts?state=deleted", DELETED),
        Ask("an output that spliced a deleted fact", "GET", output, DELETED),
        Ask("an answer that says a part of one", "GET", f"/v1/generations/{planted.quoted}", DELETED[:6]),
        Ask(
            "an answer that quotes a replaced document: its words between facts",
            "GET",
            f"/v1/generations/{planted.rewritten}",
            "rarest metal is",
        ),
        Ask("the list of outputs", "GET", "/v1/generations", DELETED),
        Ask("a corpus, exported whole", "GET", "/v1/corpora/metals/export", DELETED),
        Ask(
            "a corpus, exported with `live_only`", "GET", "/v1/corpora/metals/export?live_only=true", DELETED
        ),
        Ask("what changes did", "GET", diff, DELETED),
        Ask("uses of a deleted fact", "GET", f"{fact}/impact", DELETED),
        Ask("kept questions: what is expected", "GET", "/v1/questions/metals/items", DELETED),
        Ask("what kept questions were answered", "GET", "/v1/questions/metals/runs/1/items", DELETED),
        Ask("a comparison of two runs", "GET", "/v1/questions/metals/comparison?before=1", DELETED),
        Ask("the console: a deleted fact", "GET", f"/console/facts/{planted.deleted}", DELETED),
        Ask("the console: a document", "GET", f"/console/documents/{planted.metals}", DELETED),
        Ask("the console: an output", "GET", f"/console/audit/outputs/{planted.output}", DELETED),
        Ask("the console: a run of questions", "GET", "/console/questions/metals/runs/1", DELETED),
    ]


def test_the_table_on_the_site_is_what_the_answers_say(
    app: GatedApp, new_token: Callable[[str], str], planted: Planted
) -> None:
    tokens = {role: new_token(role) for role in ROLES}
    with served(app) as address:
        found = past_matrix(address, tokens, asks(planted))
    if os.environ.get("UPDATE_DOCS"):
        WITHHELD.write_text(found + "\n", encoding="utf-8")
    assert WITHHELD.read_text(encoding="utf-8") == found + "\n", (
        "run it with UPDATE_DOCS=1, and read the difference"
    )


def get(client: Client, token: str, path: str) -> str:
    """What the answer says, however it spells it; a refusal as a problem document."""
    answer = client.get(path, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code < 500 or answer.status_code == 503, (path, answer.text)
    if "json" in answer.headers.get("content-type", "") and answer.text.count("\n") == 0:
        return json.dumps(answer.json(), ensure_ascii=False)
    return html.unescape(answer.text)


def paths(app: GatedApp, planted: Planted, role: str) -> Iterator[str]:
    """Every GET route with ids that are there, and where the role may ask it, with every way to ask it for more."""
    facts = (planted.deleted, planted.corrected, planted.noted)
    ids = {
        "fact_id": facts,
        "document_id": (planted.metals, planted.rare),
        "generation_id": range(planted.output, planted.output + 4),
        "output_id": range(planted.output, planted.output + 4),
        "corpus": ("metals",),
        "name": ("metals",),
    }
    asked = [
        *(f"state={state}&text={word}" for state in ("deleted", "all") for word in ("", DELETED, ASKED)),
        *(f"fact={fact}" for fact in facts),
        *(f"output={output}&splice=0" for output in ids["output_id"]),
        *(f"live_only={flag}" for flag in ("true", "false")),
        "replaced=true",
        f"document_id={planted.metals}&state=all",
        f"first={planted.seq}&last={planted.seq + 3}",
        f"seq={planted.seq}&question=Which+is+lightest?",
    ]
    for route in routes(app):
        if route.method != "GET":
            continue
        name = next((part[1:-1] for part in route.template.split("/") if part.startswith("{")), "")
        for value in ids.get(name, (1,)):
            path = route.template.replace(f"{{{name}}}", str(value)).replace("{run_id}", "1")
            more = asked if right_of(route.handler) in ROLES[role] else ()
            yield path
            yield from (f"{path}?{query}" for query in more if fits(app, route.template, query))


def fits(app: GatedApp, template: str, query: str) -> bool:
    """Whether the description knows these parameters; the pages of the console are in none, and take any."""
    if template.startswith("/v1"):
        operation = (app.routed.openapi_schema.paths or {})[template].get
        assert operation is not None
        known = {one.name for one in operation.parameters or () if isinstance(one, Parameter)}
        return {part.partition("=")[0] for part in query.split("&") if part} <= known
    return template.startswith("/console")


@pytest.mark.slow(reason="asks thousands of paths")
def test_what_is_past_is_on_no_route_for_a_token_that_may_not_audit(
    app: GatedApp, connect: Connect, new_token: Callable[[str], str], planted: Planted
) -> None:
    client = connect(app)
    tokens = {role: new_token(role) for role in ROLES}
    for role in WITHOUT:
        for path in paths(app, planted, role):
            said = get(client, tokens[role], path)
            echoed = [
                word for word in PLANTED if f"={word}" in path
            ]  # a search repeats what was typed into it
            found = [word for word in PLANTED if word in said and word not in echoed]
            assert found == [], (role, path)


def test_to_list_deleted_facts_takes_the_right_to_audit(
    reader: Client, planted: Planted, subtests: pytest.Subtests
) -> None:
    for path in (
        "/v1/facts?state=deleted",
        "/v1/facts?state=all",
        "/v1/documents/{metals}/facts?state=deleted",
        "/v1/documents/{metals}/facts?state=all",
        "/console/facts?state=deleted",
    ):
        with subtests.test(path=path):
            answer = reader.get(path.format(metals=planted.metals))
            assert answer.status_code == 403 and "audit" in answer.text


def test_to_look_up_in_the_past_takes_the_right_to_audit(
    app: GatedApp, connect: Connect, new_token: Callable[[str], str], encoder: FakeEncoder, planted: Planted
) -> None:
    client = connect(app)
    body = {"questions": ["Which metal is oldest?"], "as_of": planted.seq, "threshold": 0.9}
    query = encoder.encode_questions(["Which metal is oldest?"])
    given = f"checkpoint_id={encoder.checkpoint.checkpoint_id}&dim={query.shape[1]}&as_of={planted.seq}"
    octets = query.astype(np.float32).tobytes()
    for role in ROLES:
        headers = {"Authorization": f"Bearer {new_token(role)}"}
        asked = client.post("/v1/lookups", json=body, headers=headers)
        told = client.post(
            f"/v1/lookups?{given}",
            content=octets,
            headers={**headers, "Content-Type": "application/octet-stream"},
        )
        for answer in (asked, told):
            assert answer.status_code == (200 if role in WITH else 403), (role, answer.text)
            assert (DELETED in answer.text) == (role in WITH), role


def test_offsets_and_all_else_stay_where_the_past_is_withheld(reader: Client, planted: Planted) -> None:
    fact = reader.get(f"/v1/facts/{planted.deleted}").json()
    assert (fact["value"], fact["question"], fact["answer"]) == (MARK * len(DELETED), None, None)
    assert fact["withheld"] and fact["deleted_seq"] is not None
    text = reader.get(f"/v1/documents/{planted.metals}").json()["text"]
    source = fact["source"]
    assert text[source["start"] : source["end"]] == MARK * len(DELETED) and len(text) == len(TEXT)
    assert STANDING in text and text.count(MARK) == len(DELETED) + len(CORRECTED)
    corrected = reader.get(f"/v1/facts/{planted.corrected}/trace").json()
    assert [one["value"] for one in corrected["versions"]] == [MARK * len(CORRECTED), "Hydrogen"]
    assert [one["document_says"] for one in corrected["versions"]] == [None, MARK * len(CORRECTED)]
    assert corrected["fact"]["value"] == "Hydrogen" and corrected["fact"]["question"] == "Which is lightest?"
    assert corrected["context"] == f"The lightest is {MARK * len(CORRECTED)}."
    trace = reader.get(f"/v1/generations/{planted.output}").json()
    (splice,) = trace["splices"]
    assert splice["withheld"] and splice["value"] == MARK * len(DELETED)
    assert trace["output"][splice["output_start"] : splice["output_end"]] == splice["value"]


def test_what_a_document_says_in_the_place_of_an_entered_value_is_past(
    app: GatedApp, connect: Connect, reader: Client, atlas: KnowledgeBase, planted: Planted
) -> None:
    auditor = connect(app, "auditor")
    splices = (Splice(0, 8, "hit", planted.corrected, 2, 0.9),)
    made = NewOutput("Which is lightest?", "Hydrogen.", "", "auto", atlas.log.head_seq(), splices)
    path = f"/v1/generations/{atlas.outputs.record(made)}"
    for client, said in ((auditor, CORRECTED), (reader, MARK * len(CORRECTED))):
        (splice,) = client.get(path).json()["splices"]
        assert splice["document_says"] == said and splice["given_by"]["actor"] == "tester"
        assert (CORRECTED in client.get(path).text) == (client is auditor)
        console = client.get(path.replace("/v1/generations", "/console/audit/outputs")).text
        assert "value entered by tester" in console and (CORRECTED in console) == (client is auditor)


def test_what_stands_or_was_brought_back_is_shown(
    reader: Client, atlas: KnowledgeBase, planted: Planted
) -> None:
    standing = reader.get(f"/v1/facts/{planted.standing}").json()
    assert standing["value"] == STANDING and not standing["withheld"] and standing["answer"]
    atlas.facts.restore([planted.deleted], actor="tester", reason="settled")
    fact = reader.get(f"/v1/facts/{planted.deleted}").json()
    assert fact["value"] == DELETED and fact["question"] and not fact["withheld"]
    assert DELETED in reader.get(f"/v1/documents/{planted.metals}").json()["text"]
    assert DELETED in reader.get(f"/v1/generations/{planted.output}").json()["output"]


def test_a_digest_of_a_text_confirms_no_guess_at_what_is_withheld(
    reader: Client, atlas: KnowledgeBase, planted: Planted
) -> None:
    (whole,) = (
        one.sha256 for one in atlas.documents.find(corpus="metals") if one.document_id == planted.metals
    )
    listed = reader.get("/v1/documents?corpus=metals").json()["items"]
    (shown,) = (one["sha256"] for one in listed if one["document_id"] == planted.metals)
    read = reader.get(f"/v1/documents/{planted.metals}").json()["document"]["sha256"]
    assert shown == read != whole


def test_a_trainer_exports_what_stands_and_is_told_what_more_takes(
    app: GatedApp, connect: Connect, planted: Planted
) -> None:
    trainer = connect(app, "trainer")
    assert trainer.get("/v1/corpora/metals/export").status_code == 403
    lines = trainer.get("/v1/corpora/metals/export?live_only=true").text.splitlines()
    metals = next(found for found in map(json.loads, lines) if found["id"] == "metals")
    assert [fact["value"] for fact in metals["facts"]] == [STANDING]
    assert len(metals["text"]) == len(TEXT) and MARK in metals["text"]
