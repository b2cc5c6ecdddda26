"""Places that would still answer: what a plan finds by reading, and what verification finds afterwards."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.reading import UNFITTED
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.log import signing
from colmlm.kb.log.signing import close_envelope
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.removal import quotations
from colmlm.kb.removal.certificate import (
    FORGET_TYPE,
    certificate_text,
    check_here,
    issue_forget_certificate,
    subject_of,
)
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.records import ForgetPlan, SaidSurvivor
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import ForgetRunRow
from tests.fakes import SURE_OF_PASSAGES, NearReader, WordEncoder
from tests.kb.corpora import document, fact_id, ingest

WHO = {"actor": "tester", "reason": "test"}
OPENED = "When was the tower opened?"
TOWER = document("tower", "The tower was opened on ", ("March 31, 1889", OPENED), ".")
REWORDED = document(
    "diary", "What day was the tower opened for visitors? ", ("31 March 1889", "Which day?"), " it was."
)
LONGER = document("guide", "The tower opened in ", ("1889", "Which year?"), ".")
OTHER = document(
    "bridge", "Cars cross the bridge since ", ("March 31, 1889", "When did cars first cross?"), "."
)
RIVAL = document(
    "doubts",
    "Some say the tower was opened, after delays of more than a year, in ",
    ("1890", "What do some say?"),
    ".",
)
SILENT = document("mayor", "The mayor of the town is ", ("Ana Ruiz", ""), ".")
SURNAME = document("gazette", "In the town the mayor is ", ("Ruiz", ""), ".")


@pytest.fixture
def encoder() -> WordEncoder:
    return WordEncoder()


@pytest.fixture
def tower(kb: KnowledgeBase, encoder: WordEncoder) -> KnowledgeBase:
    ingest(kb, TOWER, REWORDED, OTHER, RIVAL, SILENT, SURNAME)
    kb.keysets.rekey(encoder)
    return kb


@pytest.fixture
def forgetting(tower: KnowledgeBase, encoder: WordEncoder) -> Forgetting:
    return Forgetting(tower, encoder, NearReader())


def of(kb: KnowledgeBase, external_id: str) -> int:
    (found,) = [
        fact.fact_id
        for fact in kb.facts.find(limit=100, deleted=None)
        if fact.source and fact.source.external_id == external_id
    ]
    return found


def planned(forgetting: Forgetting, fact: int, **how: str) -> tuple[ForgetPlan, list[SaidSurvivor]]:
    plan = forgetting.plan(Selector(fact_ids=(fact,)), **how, **WHO)
    return plan, forgetting.survivors(plan.run_id)


def test_a_plan_lists_what_would_still_answer_with_its_words_and_place(
    forgetting: Forgetting, tower: KnowledgeBase
) -> None:
    plan, found = planned(forgetting, of(tower, "tower"))
    assert plan.read == 1 and plan.before["read"].leaks == 1
    said = {one.source.external_id if one.source else None: one for one in found}
    assert set(said) == {"diary", "doubts"}
    diary = said["diary"]
    assert (diary.text, diary.says) == ("31 March 1889", "same")
    assert diary.source is not None and REWORDED.text[diary.source.start : diary.source.end] == diary.text
    assert [fact.fact_id for fact in diary.facts] == [of(tower, "diary")]
    assert 0.5 <= diary.score <= 1
    assert (said["doubts"].text, said["doubts"].says) == ("1890", "other")
    assert plan.equivalents == (of(tower, "diary"),) and plan.fact_ids == (of(tower, "tower"),)


class MeaningOfKeepers:
    """Encodes texts so that a question means what sentences about a keeper say, and no other does."""

    encoder = 1

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        near = [text.endswith("?") or "keeper" in text for text in texts]
        return np.array([[one, not one] for one in near], dtype=np.float32)


def test_a_plan_reads_the_texts_that_an_answer_would_read(
    forgetting: Forgetting, tower: KnowledgeBase, encoder: WordEncoder
) -> None:
    """Nothing but the sentence's vector puts it before a dozen others that have the question's words."""
    decoys = [
        document(f"decoy-{n}", f"The tower opened, the tower was opened, say {n} people.") for n in range(12)
    ]
    told = "A keeper, who had lived on the hill with a dog and two lamps, wrote of his tower that guests came in "
    keeper = document("keeper", told, ("1902", "What did he write?"), ".")
    ingest(tower, *decoys, keeper)
    tower.keysets.rekey(encoder)
    fact, meaning = of(tower, "tower"), MeaningOfKeepers()
    _, by_words = planned(forgetting, fact)
    assert "1902" not in {one.text for one in by_words}
    answering = Answering(tower, Questions(tower, [encoder]), NearReader(), meaning)
    assert any("1902" in text for text in answering.window_texts(OPENED))
    _, by_meaning = planned(Forgetting(tower, encoder, NearReader(), meaning), fact)
    assert "1902" in {one.text for one in by_meaning}


def test_what_is_next_best_in_a_forgotten_sentence_answers_something_else(
    forgetting: Forgetting, tower: KnowledgeBase
) -> None:
    sold = (("May 3, 1950", "When was the hall sold?"), " by ", ("Kent", "Who sold the hall?"))
    ingest(tower, document("hall", "The hall was sold on ", *sold, "."))
    _, found = planned(forgetting, fact_id(tower, "May 3, 1950"))
    assert found == []


def test_what_is_included_is_forgotten_too_and_what_says_something_else_stays(
    forgetting: Forgetting, tower: KnowledgeBase
) -> None:
    plan, found = planned(forgetting, of(tower, "tower"), equivalents="include")
    assert plan.fact_ids == tuple(sorted((of(tower, "tower"), of(tower, "diary"))))
    assert [one.text for one in found] == ["1890"], "the others are to be gone"
    left, none = planned(forgetting, of(tower, "tower"), equivalents="exclude")
    assert left.read == 0 and left.equivalents == () and none == []


def test_plans_and_verifications_do_not_tell_what_an_erased_fact_said(
    forgetting: Forgetting, tower: KnowledgeBase
) -> None:
    asked, others = of(tower, "tower"), of(tower, "mayor")
    selector = Selector(fact_ids=(asked, others))
    listed, applied = (forgetting.plan(selector, **WHO) for _ in range(2))
    assert of(tower, "diary") in listed.equivalents and len(listed.survivors) >= 2
    forgetting.apply(applied.run_id, **WHO)
    assert asked in {one.asked_fact_id for one in forgetting.verify(applied.run_id).survivors}
    report = Erasure(tower).erase([asked], **WHO)
    assert report.erased is not None and set(report.erased.forget_runs) >= {listed.run_id, applied.run_id}
    for run_id in (listed.run_id, applied.run_id):
        _, plan, _ = forgetting.run(run_id)
        assert plan.equivalents == ()
        assert asked not in {one.asked_fact_id for one in (*plan.survivors, *forgetting.survivors(run_id))}
    assert find_quotations(tower) == ()
    assert asked not in {one.asked_fact_id for one in forgetting.verify(applied.run_id).survivors}


def find_quotations(kb: KnowledgeBase) -> tuple[int, ...]:
    with kb.sessions() as session:
        return quotations.find_quotations(session, quotations.ErasedFacts.read(session)).forget_runs


def test_verification_reads_the_whole_base_again(
    forgetting: Forgetting, tower: KnowledgeBase, encoder: WordEncoder
) -> None:
    plan, _ = planned(forgetting, of(tower, "tower"))
    forgetting.apply(plan.run_id, **WHO)
    found = forgetting.verify(plan.run_id)
    assert found.holds and found.read == 1 and found.probes["read"].abstained == 1
    assert [one.says for one in found.survivors] == ["same", "other"]
    tower.facts.delete([of(tower, "diary")], **WHO)
    assert [one.text for one in forgetting.survivors(plan.run_id)] == ["█" * 13, "1890"]
    forgetting.verify(plan.run_id)
    assert [one.text for one in forgetting.survivors(plan.run_id)] == ["1890"]
    tower.facts.delete([of(tower, "doubts")], **WHO)
    last = forgetting.verify(plan.run_id)
    assert last.survivors == () and last.probes["read"].abstained == 1
    assert Forgetting(tower, encoder).verify(plan.run_id).read == 0


def test_a_fact_that_is_back_is_a_leak_by_reading(forgetting: Forgetting, tower: KnowledgeBase) -> None:
    plan, _ = planned(forgetting, of(tower, "tower"))
    forgetting.apply(plan.run_id, **WHO)
    tower.facts.restore(plan.fact_ids, **WHO)
    found = forgetting.verify(plan.run_id)
    assert (found.level, found.leaked, found.probes["read"].leaks) == (0, plan.fact_ids, 1)


def test_a_fact_without_a_question_is_asked_for_by_its_sentence(
    forgetting: Forgetting, tower: KnowledgeBase
) -> None:
    plan, found = planned(forgetting, of(tower, "mayor"))
    assert plan.read == 1
    assert [(one.text, one.says) for one in found] == [("Ruiz", "same")]


def test_a_fact_without_a_document_is_a_place_too(
    forgetting: Forgetting, tower: KnowledgeBase, encoder: WordEncoder
) -> None:
    added = tower.facts.add("What day was the tower opened?", "March 31, 1889", **WHO)
    tower.keysets.rekey(encoder)
    plan, found = planned(forgetting, of(tower, "tower"))
    (alone,) = [one for one in found if one.source is None]
    assert (alone.text, alone.says) == ("March 31, 1889", "same")
    assert tuple(fact.fact_id for fact in alone.facts) == added.fact_ids
    tower.facts.delete(added.fact_ids, **WHO)
    assert "█" * 14 in [one.text for one in forgetting.survivors(plan.run_id)]


def test_a_question_with_a_likelier_place_elsewhere_is_told_the_value(
    forgetting: Forgetting, tower: KnowledgeBase, encoder: WordEncoder
) -> None:
    tower.facts.add(OPENED, "March 31, 1889", **WHO)
    tower.keysets.rekey(encoder)
    plan, _ = planned(forgetting, of(tower, "tower"))
    forgetting.apply(plan.run_id, **WHO)
    found = forgetting.verify(plan.run_id)
    assert found.probes["read"].value_leaks == 1


def counted(tower: KnowledgeBase, forgetting: Forgetting) -> tuple[bytes, dict[str, Any]]:
    plan, _ = planned(forgetting, of(tower, "tower"), policy="abstain")
    forgetting.apply(plan.run_id, **WHO)
    forgetting.verify(plan.run_id)
    issued = issue_forget_certificate(tower, plan.run_id).encode()
    said: dict[str, Any] = json.loads(base64.b64decode(json.loads(issued)["payload"]))["predicate"]
    return issued, said


def test_a_certificate_counts_the_places_and_says_none_of_their_words(
    forgetting: Forgetting, tower: KnowledgeBase
) -> None:
    issued, said = counted(tower, forgetting)
    assert check_here(tower, issued).ok
    assert said["survivors"] == {
        "questions": 1, "answered": 1, "places": 2, "say_the_value": 1, "rate": "1.0000"
    }  # fmt: skip
    assert said["after"]["read"]["probes"] == 1
    assert re.search(r"\b1889\b", json.dumps(said)) is None  # a digest may hold these digits


def test_a_certificate_with_other_counts_of_places_contradicts_itself(
    forgetting: Forgetting, tower: KnowledgeBase
) -> None:
    _, said = counted(tower, forgetting)
    key, applied = signing.signing_key(tower.settings.home), said["applied"]
    subject = subject_of(said["database"], applied["entry"]["seq"])
    for wrong in ({"answered": 2}, {"rate": "0.0000"}, {"say_the_value": 3}):
        other = {**said, "survivors": {**said["survivors"], **wrong}}
        envelope = close_envelope(key, FORGET_TYPE, subject, applied["hash"], other)
        found = check_here(tower, certificate_text(envelope).encode())
        assert not found.ok and "the counts of survivors does not hold" in found.problems


def before_places(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stored.items() if name not in ("read", "survivors")}


def test_a_plan_and_a_verification_of_the_release_before_name_no_places(
    forgetting: Forgetting, tower: KnowledgeBase
) -> None:
    plan, _ = planned(forgetting, of(tower, "tower"))
    forgetting.apply(plan.run_id, **WHO)
    forgetting.verify(plan.run_id)
    with tower.sessions.begin() as session:
        run = session.get_one(ForgetRunRow, plan.run_id)
        assert run.verification is not None
        run.plan, run.verification = before_places(run.plan), before_places(run.verification)
    _, made, found = forgetting.run(plan.run_id)
    assert made.read == 0 and made.survivors == ()
    assert found is not None and found.read == 0 and found.survivors == ()
    assert forgetting.survivors(plan.run_id) == []
    assert check_here(tower, issue_forget_certificate(tower, plan.run_id).encode()).ok


def test_a_passage_that_would_be_said_survives_though_no_fact_is_marked_in_it(
    tower: KnowledgeBase, encoder: WordEncoder
) -> None:
    text = "The tower was opened on March 31, 1889, says the notice."
    ingest(tower, AnnotatedDocument("notice", text, ()))
    sure = replace(UNFITTED, passage=SURE_OF_PASSAGES)
    without, of_passages = (
        Forgetting(tower, encoder, NearReader(confidence=confidence)) for confidence in (UNFITTED, sure)
    )
    _, spans = planned(without, of(tower, "tower"))
    plan, found = planned(of_passages, of(tower, "tower"))
    assert "notice" not in {one.source.external_id for one in spans if one.source}
    (notice,) = [one for one in found if one.source and one.source.external_id == "notice"]
    assert notice.facts == () and notice.text in text and notice.score >= 0.5
    of_passages.apply(plan.run_id, **WHO)
    assert of_passages.verify(plan.run_id).probes["read"].leaks == 0


def test_what_only_a_passage_says_is_counted_before_and_after(
    tower: KnowledgeBase, encoder: WordEncoder
) -> None:
    unsure = replace(UNFITTED, threshold=1.0, passage=SURE_OF_PASSAGES)
    forgetting = Forgetting(tower, encoder, NearReader(confidence=unsure))
    plan, _ = planned(forgetting, of(tower, "bridge"))
    assert plan.before["read"].leaks == 1
    forgetting.apply(plan.run_id, **WHO)
    assert forgetting.verify(plan.run_id).probes["read"].leaks == 0
