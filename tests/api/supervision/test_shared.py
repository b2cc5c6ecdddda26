"""What server processes share: who is up, since when changes are counted, and rates that hold for all together."""

from __future__ import annotations

from pathlib import Path

import pytest

from colmlm.api.supervision import SharedState


def test_all_are_up_when_each_has_said_so(tmp_path: Path) -> None:
    shared = SharedState(2, tmp_path)
    shared.set_process_at(0, 17)
    assert not shared.are_all_up()
    shared.set_process_at(1, 18)
    assert shared.are_all_up() and (shared.process_at(0), shared.process_at(1)) == (17, 18)
    shared.set_process_at(0, 0)
    assert not shared.are_all_up()


def test_changes_are_counted_from_where_the_first_process_was_asked(tmp_path: Path) -> None:
    shared = SharedState(1, tmp_path)
    assert [shared.counted_since(head) for head in (0, 4)] == [0, 0]


def test_permits_are_taken_from_one_bucket_whoever_takes_them(tmp_path: Path) -> None:
    now = 100.0
    shared = SharedState(2, tmp_path)
    one, other = shared.permit_taker(lambda: now), shared.permit_taker(lambda: now)
    assert [take(1, 4) for take in (one, other, other, one)] == [0.0] * 4
    assert one(1, 4) == other(1, 4) == pytest.approx(15)
    assert other(2, 4) == 0.0, "another token has a bucket of its own"
    now += 15
    assert other(1, 4) == 0.0 and one(1, 4) == pytest.approx(15)
    assert one(1, 5) == 0.0, "another rate begins anew"


def test_where_too_many_tokens_ask_the_one_that_asked_longest_ago_begins_anew(tmp_path: Path) -> None:
    now = 100.0
    take = SharedState(1, tmp_path).permit_taker(lambda: now)
    alike = [1 + 4096 * n for n in range(17)]
    for token_id in alike:
        now += 0.001
        assert take(token_id, 1) == 0.0
    assert take(alike[-1], 1) > 0 and take(alike[1], 1) > 0
    assert take(alike[0], 1) == 0.0
