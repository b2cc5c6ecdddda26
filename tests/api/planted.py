"""Two corpora with words that a token of one must never be told, and every way to ask for them."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.answers.answering import Answering
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.evidence.generation import GenerationRequest
from colmlm.kb.evidence.records import NewFeedback
from colmlm.kb.jobs.kinds import Sync
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.questions.records import DraftQuestion
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.holds import Holds
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
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
FIRST_IDS = {"fact": 73_400_171, "document": 84_500_213, "forget_run": 95_600_339, "job": 61_200_413}
IDS = (*FIRST_IDS.values(), FIRST_IDS["fact"] + 1)


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
    run: int
    job: int


def plant(kb: KnowledgeBase) -> Planted:
    """Fill two corpora, ask of both, keep questions, miss, plan a run, hold and queue a job in the hidden one."""
    encoder, why = FakeEncoder(), {"actor": "tester", "reason": WHY}
    kb.corpora.ingest([Parsed(OPEN)], SEEN, actor="tester", reason="set up")
    with kb.engine.begin() as connection:  # numbers that are told apart from those of the other corpus
        for table, number in FIRST_IDS.items():
            connection.exec_driver_sql(f"SELECT setval('{table}_id_seq', {number - 1})")
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
    run = Forgetting(kb).plan(Selector(corpus=HIDDEN), **why).run_id
    job = Jobs(kb).submit(Sync(corpus=HIDDEN, folder=HIDDEN, reason=WHY), actor="tester").job_id
    holding = {"fact_ids": [fact.fact_id], "document_ids": [hidden.document_id]}
    Holds(kb).place(token=None, **holding, **why)
    ids = (fact.fact_id, shown.document_id, kb.log.head_seq(), run, job)
    return Planted(facts, (hidden.document_id,), outputs, *ids)


def client_of(role: str, kb: KnowledgeBase, app: GatedApp, connect: Connect) -> Client:
    """Give a client with a token of this role on the seen corpus."""
    client = connect(app)
    secret, _ = kb.access.create(f"sales {role}", role, corpora=[SEEN])
    client.headers["Authorization"] = f"Bearer {secret}"
    return client


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


def words_in(said: str, given: str) -> list[str]:
    """Give the planted words and numbers in what was said, but for those that were given, which it may repeat."""
    return [word for word in (*PLANTED, *map(str, IDS)) if word in said and word not in given]


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
        "run_id": (planted.run,),
        "job_id": (planted.job,),
    }
    for route in routes(app):
        if route.method != "GET":
            continue
        name = next((part[1:-1] for part in route.template.split("/") if part.startswith("{")), "")
        for value in ids.get(name, (1,)):
            yield route.template.replace(f"{{{name}}}", str(value)).replace("{run_id}", "1")


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


def edits(
    fact_id: int, document_id: int, corpus: str, run_id: int, job_id: int
) -> Iterator[tuple[str, str, dict[str, Any]]]:
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
    yield "POST", f"/v1/forget-runs/{run_id}/apply", why
    yield "POST", f"/v1/forget-runs/{run_id}/restore", why
    yield "POST", f"/v1/jobs/{job_id}/cancel", {}
    yield "POST", "/v1/jobs/sync", {"corpus": corpus, "folder": "new", **why}
    yield "POST", "/v1/jobs/documents", {"corpus": corpus, "upload_ids": ["0" * 32], **why}
    yield "POST", "/v1/jobs/ingest", {"corpus": corpus, "upload_id": "0" * 32, **why}
