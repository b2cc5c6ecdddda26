"""A question of a chat is asked as it would be asked alone."""

from __future__ import annotations

import pytest

from colmlm.kb.texts.asked import question_of_chat, resolve_question


@pytest.mark.parametrize(
    ("turns", "asked"),
    [
        (
            ["How many days of leave do full-time staff have?"],
            "How many days of leave do full-time staff have?",
        ),
        (
            ["How many days of leave do full-time staff have?", "And part-time staff?"],
            "How many days of leave do part-time staff have?",
        ),
        (["What is the capital of Peru?", "What about Chile?"], "What is the capital of Chile?"),
        (
            ["What is the capital of Peru?", "And of Chile?", "And Bolivia?"],
            "What is the capital of Bolivia?",
        ),
        (
            ["Who leads the Cusco office?", "When did she join?"],
            "Who leads the Cusco office? When did she join?",
        ),
        (["How do I book a room?", "Why?"], "How do I book a room? Why?"),
        (["What does a badge cost?", "Who approves a business trip?"], "Who approves a business trip?"),
        (["What does a badge cost?", "And for visitors?"], "What does a badge cost? And for visitors?"),
    ],
)
def test_a_follow_up_is_asked_with_what_it_leaves_to_the_questions_before_it(
    turns: list[str], asked: str
) -> None:
    assert resolve_question(turns) == asked


def test_the_last_question_of_a_conversation_is_found_in_its_text() -> None:
    said = "Be brief.\n\nQuestion: What is the capital of Peru?\nAnswer: Lima\n\nQuestion: What about Chile?\nAnswer:"
    assert question_of_chat(said) == "What is the capital of Chile?"
    assert (
        question_of_chat("Question: What is the capital of Peru?\nAnswer:") == "What is the capital of Peru?"
    )
    assert question_of_chat("Peru is old. What is its capital?") == "Peru is old. What is its capital?"
    assert question_of_chat("The capital of Peru is") is None
