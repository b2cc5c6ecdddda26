"""An outage of the database is a line a minute in the log, whoever notices it, and never a traceback."""

from __future__ import annotations

import logging

import psycopg
import pytest
from psycopg.errors import AdminShutdown, DiskFull
from sqlalchemy.exc import OperationalError

from colmlm.kb.errors import DatabaseUnavailable
from colmlm.kb.store import waits

_log = logging.getLogger("tests.outages")


def refused() -> OperationalError:
    return OperationalError(
        "SELECT secret", {"q": "asked"}, psycopg.OperationalError("connection\n\trefused")
    )


def test_an_outage_is_told_once_a_minute_by_its_cause_alone(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    teller = waits.OutageLog(clock=lambda: now)
    for error in (refused(), AdminShutdown("terminating connection"), refused(), DiskFull("no space left")):
        teller.log_outage(_log, "it did not answer", error)
        now += 10
    now = 1000.0 + waits.TOLD_SECONDS
    teller.log_outage(_log, "it did not answer", refused())
    assert [record.getMessage() for record in caplog.records] == [
        "it did not answer: connection refused",
        "it did not answer: no space left",
        "it did not answer: connection refused; 2 more like this since it was last said",
    ]


def test_what_the_system_refuses_hides_no_outage_of_the_database(caplog: pytest.LogCaptureFixture) -> None:
    teller = waits.OutageLog(clock=lambda: 1000.0)
    for error in (OSError(13, "Permission denied"), refused(), OSError(13, "Permission denied")):
        teller.log_outage(_log, "it did not go", error)
    assert [record.getMessage() for record in caplog.records] == [
        "it did not go: [Errno 13] Permission denied",
        "it did not go: connection refused",
    ]


def test_a_fault_of_the_program_hides_no_outage_and_no_other_fault(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    teller = waits.OutageLog(clock=lambda: now)
    for said in ("cannot prune", "cannot prune", "cannot share"):
        try:
            {}["a bug"]
        except KeyError as error:
            teller.log_outage(_log, said, error)
    teller.log_outage(_log, "it did not answer", refused())
    assert [record.getMessage() for record in caplog.records] == [
        "cannot prune: 'a bug'",
        "cannot share: 'a bug'",
        "it did not answer: connection refused",
    ]
    assert [record.exc_info is not None for record in caplog.records] == [True, True, False]
    assert "in test_a_fault_of_the_program" in caplog.text, "the place of the fault is told"


def test_an_outage_is_one_whatever_error_it_is_the_cause_of(caplog: pytest.LogCaptureFixture) -> None:
    teller = waits.OutageLog(clock=lambda: 1000.0)
    wrapped = RuntimeError("the queue lost its connection")
    wrapped.__cause__ = refused()
    for error in (refused(), wrapped, DatabaseUnavailable("a socket", "refused")):
        assert waits.is_outage(error)
        teller.log_outage(_log, "it did not answer", error)
    assert not waits.is_outage(DiskFull("no space left"))
    assert [record.getMessage() for record in caplog.records] == ["it did not answer: connection refused"]


def test_pauses_grow_up_to_the_longest_however_long_the_outage() -> None:
    assert [waits.pause_after(n, 2.0) for n in (0, 1, 2, 5, 10_000)] == [0.1, 0.2, 0.4, 2.0, 2.0]


def test_what_a_library_logs_of_an_outage_loses_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(waits.is_news)
    try:
        for _ in range(3):
            try:
                try:
                    raise refused()
                except OperationalError as error:
                    raise RuntimeError("a library's own") from error
            except RuntimeError:
                _log.exception("job %d failed", 7)
        _log.exception("something else", exc_info=ValueError("x"))
    finally:
        caplog.handler.removeFilter(waits.is_news)
    first, other = caplog.records
    assert first.getMessage() == "job 7 failed: connection refused" and first.exc_info is None
    assert other.exc_info
