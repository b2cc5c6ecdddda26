from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.waits import Waits, refusal_of
from tests.kb.corpora import PERU, ingest
from tests.refusals import code_of

REPORTS = {
    "the corpora": lambda kb: kb.corpora.all(),
    "the counts": lambda kb: kb.upkeep.statistics(),
    "a difference": lambda kb: kb.log.diff(0, 1),
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_report_ends_after_its_time_and_other_work_has_none(kb: KnowledgeBase, report: object) -> None:
    assert callable(report)
    ingest(kb, PERU)
    hasty = KnowledgeBase(replace(kb.settings, report_timeout_seconds=0.1), kb.engine)
    report(hasty)
    with kb.engine.begin() as holder:
        holder.execute(text("LOCK TABLE document IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(OperationalError) as ended:
            report(hasty)
    assert code_of(refusal_of(ended.value)) == "StatementTooLong"
    with hasty.sessions() as session:  # of the same connections
        assert session.scalar(text("SHOW statement_timeout")) == "0"
    hasty.reader.dispose()


def test_a_request_keeps_its_own_limit(kb: KnowledgeBase) -> None:
    with kb.reports() as session:
        assert session.scalar(text("SHOW statement_timeout")) == "10min"
    asked = kb.beside("asked", Waits(lock=1.0, statement=3.0), 1)
    with asked.reports() as session:
        assert session.scalar(text("SHOW statement_timeout")) == "3s"
