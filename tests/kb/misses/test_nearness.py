"""Misses are near by their queries where these are of one space, else by their words."""

from __future__ import annotations

import pytest

from colmlm.kb.misses.misses import COSINE, ComparedMiss, Leaders
from tests.fakes import Vectors, unit_vector

NORTH, EAST = unit_vector("north"), unit_vector("east")


def miss(words: str, query_D: Vectors | None = None, space: str = "a") -> ComparedMiss:
    return ComparedMiss(frozenset(words.split()), space if query_D is not None else "", query_D)


def between(share: float, side: int = 1) -> Vectors:
    """A unit vector with this cosine to the north, to the east of it or to the west."""
    across = EAST - (EAST @ NORTH) * NORTH
    across = across / float((across @ across) ** 0.5)
    return share * NORTH + side * (1 - share**2) ** 0.5 * across


def test_queries_of_one_space_are_near_by_their_cosine() -> None:
    leaders = Leaders()
    near, far = between(COSINE + 0.02), between(COSINE - 0.02, -1)
    assert leaders.join([miss("one", NORTH), miss("two", near), miss("three", far)]) == [0, 0, 1]
    assert leaders.join([miss("four", near), miss("five", EAST)]) == [0, 2]


def test_the_nearest_leader_counts_whether_it_is_of_before_or_of_the_same_batch() -> None:
    leaders = Leaders()
    assert leaders.join([miss("one", NORTH)]) == [0]
    far = between(COSINE - 0.05)
    assert leaders.join([miss("two", far), miss("three", between(COSINE - 0.04))]) == [1, 1]


def test_queries_of_other_spaces_are_not_compared() -> None:
    leaders = Leaders()
    assert leaders.join([miss("capital peru", NORTH), miss("lake depth", NORTH, "b")]) == [0, 1]
    assert leaders.join([miss("capital peru", NORTH, "c")]) == [0], "their words are the same"


@pytest.mark.parametrize(
    ("words", "joins"),
    [
        ("capital peru today", True),
        ("capital peru", True),
        ("capital chile", False),
        ("peru", False),
    ],
)
def test_without_a_query_most_words_must_be_the_same(words: str, joins: bool) -> None:
    leaders = Leaders()
    assert leaders.join([miss("capital peru")]) == [0]
    assert leaders.join([miss(words)]) == [0 if joins else 1]


def test_many_leaders_that_share_words_do_not_hide_the_nearest() -> None:
    leaders = Leaders()
    leaders.join([miss(f"height of {n} {n + 1000} {n + 2000}") for n in range(200)])
    assert leaders.join([miss("height of 77 1077 2077 tall")]) == [77]
    assert len(leaders) == 200
