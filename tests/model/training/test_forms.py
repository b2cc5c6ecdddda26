"""Questions are asked in many forms, each of which says what the question says."""

from __future__ import annotations

import random
from collections import Counter

from colmlm.model.training.config import ASKING, QA_FORMS, list_question_forms, one_of_many

QUESTION = "What is the capital of Peru?"


def drawn(question: str, count: int = 3000) -> Counter[str]:
    rng = random.Random(3)
    return Counter(one_of_many(question, rng) for _ in range(count))


def test_a_question_comes_in_all_thirty_forms():
    found = drawn(QUESTION)
    assert len(list_question_forms()) == len(set(list_question_forms())) == len(found) == 30
    assert all("Peru" in lead and lead[-1] in " \n" for lead in found)
    asked = sum(count for lead, count in found.items() if QUESTION in lead)
    assert 0.5 < asked / 3000 < 0.7
    assert found["The capital of Peru is "] > 50 and found["capital Peru: "] > 50


def test_what_the_rules_cannot_change_is_put_as_a_question():
    found = drawn("Why so?")
    assert len(found) == 20 and all("Why so?" in lead for lead in found)


def test_questions_are_put_in_five_forms_and_braces_are_left_as_they_are():
    rng = random.Random(3)
    put = {ASKING["questions"]("Who {is} it?", rng) for _ in range(200)}
    assert put == {form.format(question="Who {is} it?") for form in QA_FORMS}
    assert all("{is}" in lead for lead in drawn("Who {is} it?"))
