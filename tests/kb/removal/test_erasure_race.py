"""What is stored while a fact is being erased: it waits for the erasure, or is redacted by it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from colmlm.kb.access import access
from colmlm.kb.access.access import KeptAnswer
from colmlm.kb.access.tokens import create_token
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.jobs import tickets
from colmlm.kb.jobs.kinds import Check, Gate, Ingest
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.principal import Claim, Principal, acting_as
from colmlm.kb.removal.erase import Erasure, erase_facts
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, PERU, fact_id, ingest, numbered

BY = {"actor": "tester", "reason": "request"}
DECODERS, ERASED = 3, 25


@contextmanager
def erasing(kb: KnowledgeBase, *fact_ids: int) -> Iterator[Callable[[Callable[[], object]], Future[object]]]:
    """An erasure that is done and not committed. What is handed to the function runs beside it from then on."""
    with ThreadPoolExecutor() as threads, kb.sessions() as session:
        erase_facts(session, fact_ids, **BY)

        def beside(work: Callable[[], object]) -> Future[object]:
            begun = threading.Event()
            running = threads.submit(lambda: (begun.set(), work())[1])
            assert begun.wait(60)
            await_lock(kb)
            return running

        yield beside
        session.commit()


def await_lock(kb: KnowledgeBase) -> None:
    """Wait until somebody waits for a lock of this program."""
    waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    with kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for _ in range(600):
            if connection.scalar(waiting):
                return
            threading.Event().wait(0.05)
    raise AssertionError("nobody waits")


def spoken(
    kb: KnowledgeBase, of: int, value: str, prompt: str = "Where?", seq: int | None = None
) -> NewOutput:
    output = f"It is {value}, {value.upper()} they say, not Limassol."
    splice = Splice(6, 6 + len(value), "hit", of, 1, 0.9, query=b"\0" * 32)
    return NewOutput(prompt, output, "fake", "auto", kb.log.head_seq() if seq is None else seq, (splice,))


def test_output_recorded_while_its_fact_is_erased_is_stored_redacted(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    made = spoken(kb, lima, "Lima", prompt=f"{CAPITAL} LIMA?")
    with erasing(kb, lima) as beside:
        recorded = beside(lambda: kb.outputs.record(made))
    traced = kb.outputs.trace(recorded.result())
    assert traced.output == f"It is {MARK * 4}, {MARK * 4} they say, not Limassol."
    assert traced.prompt == f"{MARK * len(CAPITAL)} {MARK * 4}?"
    assert traced.redacted_seq == kb.log.head_seq()
    assert [(s.value, s.erased) for s in traced.splices] == [(MARK * 4, True)]
    with kb.engine.connect() as connection:
        assert connection.scalar(text("SELECT query FROM attribution")) is None
    assert kb.upkeep.fsck().ok


def test_output_of_before_an_erasure_is_redacted_where_it_says_the_fact_without_a_splice(
    kb: KnowledgeBase,
) -> None:
    ingest(kb, PERU)
    lima, before = fact_id(kb, "Lima"), kb.log.head_seq()
    Erasure(kb).erase([lima], **BY)
    of_before = kb.outputs.record(
        NewOutput("Of lima", "Peru's LI\u00adMA, Ｌｉｍａ", "fake", "auto", before, ())
    )
    later = kb.outputs.record(NewOutput("Of Lima", "Lima beans", "fake", "auto", kb.log.head_seq(), ()))
    traced = kb.outputs.trace(of_before)
    assert (traced.prompt, traced.output) == (f"Of {MARK * 4}", f"Peru's {MARK * 5}, {MARK * 4}")
    assert kb.outputs.trace(later).output == "Lima beans"  # people may say the word; it is not the fact's
    assert kb.upkeep.fsck().ok


def test_whoever_guesses_an_erased_value_is_not_told(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    Erasure(kb).erase([lima], **BY)
    answers = {
        kb.outputs.trace(kb.outputs.record(spoken(kb, lima, guess))).output for guess in ("Lima", "Rome")
    }
    assert answers == {f"It is {MARK * 4}, {MARK * 4} they say, not Limassol."}


@pytest.mark.slow(reason="erases amid decoders until each order has happened")
def test_nothing_keeps_a_value_that_decoders_say_while_it_is_erased(kb: KnowledgeBase) -> None:
    ingest(kb, *numbered(ERASED))
    facts = {f.fact_id: f.value for f in kb.facts.find(limit=ERASED)}
    made = {n: spoken(kb, n, value, prompt=f"{value}?") for n, value in facts.items()}
    done = threading.Event()
    current = list(facts)[:1]

    def decode() -> int:
        stored = 0
        while not done.is_set():
            kb.outputs.record(made[current[0]])
            stored += 1
        return stored

    with ThreadPoolExecutor() as threads:
        decoding = [threads.submit(decode) for _ in range(DECODERS)]
        try:
            for n in facts:
                current[0] = n
                Erasure(kb).erase([n], **BY)
        finally:
            done.set()
        assert sum(one.result() for one in decoding) > 0
    with kb.engine.connect() as connection:
        stored = connection.execute(text("SELECT prompt, output FROM generation")).all()
    kept = [row for row in stored for value in facts.values() if value.casefold() in " ".join(row).casefold()]
    assert (len(kept), bool(stored)) == (0, True)
    assert kb.upkeep.fsck().ok


def test_plan_worked_out_while_its_fact_is_erased_keeps_no_value(
    kb: KnowledgeBase, encoder: FakeEncoder
) -> None:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    lima = fact_id(kb, "Lima")
    selector = Selector(text="Lim")
    plan = lambda: Forgetting(kb).plan(selector, actor="tester", reason="as Lima asked")  # noqa: E731
    with erasing(kb, lima) as beside:
        planned = beside(plan)
    run, _, _ = Forgetting(kb).run(planned.result().run_id)
    assert (dict(run.selector), run.reason) == ({"text": MARK * 3}, f"as {MARK * 4} asked")
    assert kb.upkeep.fsck().ok


def test_job_asked_for_and_ended_beside_an_erasure_says_nothing_of_it(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    with erasing(kb, lima) as beside:
        asked = beside(lambda: Jobs(kb).submit(Gate(keyset_id=1, reason="before Lima goes"), actor="tester"))
    assert asked.result().arguments["reason"] == f"before {MARK * 4} goes"


def test_an_erasure_redacts_jobs_and_requests_that_say_the_fact(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    job = Jobs(kb).submit(Gate(keyset_id=1, reason="for LIMA"), actor="tester")
    over = Jobs(kb).submit(Check(), actor="tester")
    with kb.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE job SET state = 'succeeded', finished_at = now(), result = '{\"a\": [\"in Lima\"]}'"
                " WHERE id = :id"
            ),
            {"id": over.job_id},
        )
    report = Erasure(kb).erase([fact_id(kb, "Lima")], actor="tester", reason="Lima must go")
    assert Jobs(kb).get(job.job_id).arguments["reason"] == f"for {MARK * 4}"
    assert Jobs(kb).get(over.job_id).result == {"a": [f"in {MARK * 4}"]}
    assert report.erased.jobs == (job.job_id, over.job_id)
    assert kb.log.changes()[-1].reason == f"{MARK * 4} must go"


@pytest.mark.parametrize("how", ["cancelled", "left by its worker"])
def test_a_job_that_nobody_runs_to_its_end_says_nothing_of_what_was_erased(
    kb: KnowledgeBase, how: str
) -> None:
    """While it waits its arguments are what it does, and they stay; once it is over they are a record."""
    ingest(kb, PERU)
    upload = Jobs(kb).uploads.save("news.jsonl", [b"{}"])
    job = Jobs(kb).submit(Ingest(upload_id=upload.upload_id, corpus="of Lima"), actor="tester")
    Erasure(kb).erase([fact_id(kb, "Lima")], **BY)
    assert Jobs(kb).get(job.job_id).arguments["corpus"] == "of Lima"
    if how == "cancelled":
        Jobs(kb).cancel(job.job_id, actor="tester")
    else:
        with kb.sessions.begin() as session:
            session.execute(
                text(
                    "UPDATE job SET state = 'running', attempts = 5, heartbeat_at = now() - interval '1 day'"
                )
            )
            assert [one.state for one in tickets.rescue_tickets(session)] == ["failed"]
    assert Jobs(kb).get(job.job_id).arguments["corpus"] == f"of {MARK * 4}"
    assert kb.upkeep.fsck().quoting == ()


def test_on_whose_behalf_an_erasure_is_asked_for_does_not_keep_the_fact(kb: KnowledgeBase) -> None:
    """Who asks for an erasure may be whom the fact is about."""
    ingest(kb, PERU)
    by_key = Principal("key", "the desk", 1)
    with acting_as(by_key, "Lima"):
        kb.facts.edit(fact_id(kb, "Amazon"), "Ucayali", **BY)
    with acting_as(by_key, "Ms LIMA"):
        report = Erasure(kb).erase([fact_id(kb, "Lima")], **BY)
    assert report.erased is not None and report.erased.left.reasons == (2,)
    change = kb.log.changes()[-1]
    assert (change.actor, change.on_behalf_of) == ("the desk", f"Ms {MARK * 4}")
    assert kb.upkeep.fsck().chain_ok


def test_answer_that_was_made_before_an_erasure_is_not_kept_after_it(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    with kb.sessions.begin() as session:
        create_token(session, "someone", "operator")
        held = access.claim_key(session, 1, "once", b"request")
        other = access.claim_key(session, 1, "other", b"request")
    assert isinstance(held, Claim) and isinstance(other, Claim)
    Erasure(kb).erase([fact_id(kb, "Lima")], **BY)
    with kb.sessions.begin() as session:
        access.settle_key(session, held, KeptAnswer(200, "text/plain", b"Lima"))
        after = access.claim_key(session, 1, "after", b"request")
        assert isinstance(after, Claim)
        access.settle_key(session, after, KeptAnswer(200, "text/plain", b"Cusco"))
    with kb.engine.connect() as connection:
        bodies = connection.execute(text("SELECT key, body FROM idempotency WHERE status IS NOT NULL")).all()
    assert {row.key: row.body for row in bodies} == {"once": None, "after": b"Cusco"}


@pytest.mark.parametrize("planted", ["output", "prompt", "selector", "job"])
def test_what_still_says_an_erased_fact_is_found_and_erasing_again_redacts_it(
    kb: KnowledgeBase, planted: str
) -> None:
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    generation = kb.outputs.record(spoken(kb, lima, "Lima"))
    job = Jobs(kb).submit(Gate(keyset_id=1, reason="for it"), actor="tester")
    with kb.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO forget_run (state, policy, selector, fact_ids, plan, planned_seq, actor, reason)"
                " VALUES ('planned', 'abstain', '{\"text\": \"x\"}', :ids, '{}', 1, 'a', 'r')"
            ),
            {"ids": [lima]},
        )
    Erasure(kb).erase([lima], **BY)
    assert kb.upkeep.fsck().ok
    statement = {
        "output": "UPDATE generation SET output = replace(output, 'It is', 'lima')",
        "prompt": "UPDATE generation SET prompt = 'Is it Lima?'",
        "selector": 'UPDATE forget_run SET selector = \'{"text": "LIMA"}\'',
        "job": "UPDATE job SET arguments = jsonb_set(arguments, '{reason}', '\"of Lima\"')",
    }[planted]
    with kb.engine.begin() as connection:
        connection.execute(text(statement))
    before = kb.log.head_seq()
    report = kb.upkeep.fsck()
    assert not report.ok and len(report.quoting) == 1
    done = Erasure(kb).erase([lima], **BY).erased
    assert (done.seq, done.again, done.num_keys) == (before + 1, (lima,), 0)
    assert kb.upkeep.fsck().ok
    again = Erasure(kb).erase([lima], **BY).erased
    assert (again.seq, kb.log.head_seq()) == (None, before + 1)
    assert (generation in done.generations) == (planted in ("output", "prompt"))
    assert (job.job_id in done.jobs) == (planted == "job")


def test_repair_redacts_a_splice_that_an_earlier_release_left(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    made = spoken(kb, lima, "Lima")
    kb.outputs.record(made)
    Erasure(kb).erase([lima], **BY)
    with kb.engine.begin() as connection:
        connection.execute(text("DELETE FROM erased_text"))
        connection.execute(text("UPDATE generation SET output = :said"), {"said": made.output})
    report = kb.upkeep.repair(dry_run=True)
    assert not report.after.ok and any("outputs" in one for one in report.mended)
    assert kb.log.head_seq() == 2
    report = kb.upkeep.repair()
    assert report.after.ok and not report.left
    with kb.engine.connect() as connection:
        assert connection.scalar(text("SELECT output FROM generation")).count(MARK) == 8
    assert (kb.log.changes()[-1].kind, kb.log.changes()[-1].fact_ids) == ("erase", (lima,))


def test_what_another_fact_says_too_is_left_where_the_erased_one_was_not_spliced(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    kb.facts.add("Which beans?", "lima", **BY)
    lima = fact_id(kb, "Lima")
    said = kb.outputs.record(NewOutput("Lima?", "Lima!", "fake", "auto", kb.log.head_seq(), ()))
    spliced = kb.outputs.record(spoken(kb, lima, "Lima"))
    done = Erasure(kb).erase([lima], **BY).erased
    assert done.generations == (spliced,)
    assert kb.outputs.trace(said).output == "Lima!"
    assert kb.upkeep.fsck().ok
