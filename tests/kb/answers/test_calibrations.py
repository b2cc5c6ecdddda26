"""Stored calibrations: they decide from which score answers are given, and say what speaks against them by now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.calibrations import KIND, AnswerCalibrations
from colmlm.kb.answers.ranked import RankedLookups
from colmlm.kb.answers.records import AnswerShares, AnswerThreshold, MeasuredAnswers
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.service import KnowledgeBase
from tests.fakes import NearReader, WordEncoder
from tests.kb.corpora import CAPITAL, CHILE, PERU, ingest

WHO = {"actor": "tester", "reason": "test"}


@pytest.fixture
def answers(kb: KnowledgeBase) -> Answering:
    ingest(kb, PERU)
    encoder = WordEncoder()
    kb.keysets.rekey(encoder)
    return Answering(kb, Questions(kb, [encoder]), NearReader())


@pytest.fixture
def calibrations(answers: Answering, kb: KnowledgeBase) -> AnswerCalibrations:
    return AnswerCalibrations(kb, answers.reader.digest, answers.reader.confidence.threshold)


def measured(threshold: float) -> MeasuredAnswers:
    here = AnswerShares(threshold, 0.5, 0.1, 0.02, 0.01)
    return MeasuredAnswers(here, replace(here, threshold=0.5), 0.05, 0.04, 0.03, 100, 90)


def store(calibrations: AnswerCalibrations, threshold: float) -> AnswerThreshold:
    calibrations.store_measured(measured(threshold), given=100, corpora=("atlas",), seconds=1.5, **WHO)
    return calibrations.standing()


def test_answers_need_the_calibrated_score_from_its_commit_on(
    answers: Answering, calibrations: AnswerCalibrations
) -> None:
    before = answers.ask(CAPITAL)
    assert before.answer == "Lima" and calibrations.standing().calibrated is False
    store(calibrations, 0.9999)
    assert answers.ask(CAPITAL).abstained and answers.ask(CAPITAL).threshold == 0.9999
    assert answers.ask(CAPITAL, threshold=0.5).answer == "Lima", "unless another is asked for"
    assert store(calibrations, 0.25).threshold == answers.ask(CAPITAL).threshold == 0.25, "the newest counts"


def test_what_a_decoder_has_read_for_it_needs_the_calibrated_score_too(
    calibrations: AnswerCalibrations, kb: KnowledgeBase
) -> None:
    store(calibrations, 0.9999)
    encoder, ranked = WordEncoder(), RankedLookups(kb, NearReader)
    asked = {"checkpoint_id": encoder.checkpoint.checkpoint_id, "ranking": "reader", "texts": [CAPITAL]}
    (found,) = ranked.find(encoder.encode_questions([CAPITAL]), **asked)
    assert not found.hits and found.threshold == 0.9999
    (found,) = ranked.find(encoder.encode_questions([CAPITAL]), threshold=0.5, **asked)
    assert [hit.value for hit in found.hits] == ["Lima"]


def test_a_calibration_is_kept_whole_and_logged(calibrations: AnswerCalibrations, kb: KnowledgeBase) -> None:
    standing = store(calibrations, 0.6)
    kept = standing.calibration
    assert kept is not None and kept.measured == measured(0.6) and kept.corpora == ("atlas",)
    change = kb.log.changes(kept.seq - 1, 1)[0]
    assert (change.kind, change.actor, kept.seq) == (KIND, "tester", kb.log.head_seq())
    assert kb.upkeep.fsck().ok and not standing.doubts


def test_another_readers_calibration_does_not_count(
    answers: Answering, calibrations: AnswerCalibrations
) -> None:
    store(calibrations, 0.9999)
    other = replace(answers, reader=NearReader(digest="another"))
    assert other.ask(CAPITAL).answer == "Lima"
    standing = replace(calibrations, reader="another").standing()
    assert (standing.calibrated, standing.threshold) == (False, 0.5)
    assert standing.doubts == ("It was made with another reader and does not count.",)


def test_what_was_changed_since_is_said(calibrations: AnswerCalibrations, kb: KnowledgeBase) -> None:
    store(calibrations, 0.6)
    ingest(kb, CHILE)
    kb.keysets.rekey(WordEncoder(), kinds=("context", "question"))
    assert calibrations.standing().doubts == (
        "It was made with other keys.",
        "Documents were added since, in 1 change.",
    )
    assert calibrations.standing().threshold == 0.6


def test_the_shipped_threshold_can_be_taken_again(
    answers: Answering, calibrations: AnswerCalibrations, kb: KnowledgeBase
) -> None:
    store(calibrations, 0.9999)
    assert calibrations.drop(**WHO) == AnswerThreshold(0.5, False, 0.5, None)
    head = kb.log.head_seq()
    assert answers.ask(CAPITAL).answer == "Lima"
    calibrations.drop(**WHO)
    assert kb.log.head_seq() == head, "where nothing is calibrated nothing is done"
