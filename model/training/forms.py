"""The forms in which a decoder is asked for a fact: what stands before the ``<FACT>`` of a query.

`questions` are five ways to put a question. `many` are thirty ways, one of which is drawn for every pair: as a
question, in keywords, in a chat, in a list of questions, and in running text. Keywords and running text are made of the
question by rule (`model.reader.asking`); where the rules make nothing of it, it is put as a question.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from colmlm.model.reader.asking import keywords, statement

QA_FORMS = (
    "Question: {question}\nAnswer: ",
    "Question: {question} Answer: ",
    "Q: {question}\nA: ",
    "{question}\n",
    "{question} ",
)
_ASKED = (
    *QA_FORMS,
    "{question}\n\n",
    "{question}\nAnswer: ",
    "{question} The answer is ",
    "Question: {question}\n",
    "Question: {question}\nShort answer: ",
    "Answer the question.\n{question}\nAnswer: ",
    "I have a question: {question} ",
    "Do you know this? {question} ",
    "FAQ\n\n{question}\n",
)
_CHATS = (
    "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\nThe answer is ",
    "<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
    "<|im_start|>assistant\n",
    "User: {question}\nAssistant: ",
    "Human: {question}\nAI: ",
    "- {question}\n- ",
)
_KEYWORDS = (
    "{keywords}: ",
    "{keywords}\n",
    "{keywords} ",
    "Search: {keywords}\nResult: ",
    "Query: {keywords}\nAnswer: ",
)
_RUNNING = (
    "{statement} ",
    "In short: {statement} ",
    "Here is what I found. {statement} ",
    "Note: {statement} ",
    "Complete the sentence: {statement} ",
)
_KINDS = (_ASKED, _CHATS, _KEYWORDS, _RUNNING)
_SHARES = (0.4, 0.2, 0.2, 0.2)


def _sentence(question: str) -> str | None:
    said = statement(question)
    return said and said[0].upper() + said[1:]


_RULES: Mapping[str, Callable[[str], str | None]] = {"keywords": keywords, "statement": _sentence}


def one_of_questions(question: str, rng: random.Random) -> str:
    """Puts the question in one of five forms."""
    return rng.choice(QA_FORMS).format(question=question)


def one_of_many(question: str, rng: random.Random) -> str:
    """Puts the question in one of thirty forms: two fifths as questions, the others in equal parts."""
    (kind,) = rng.choices(_KINDS, _SHARES)
    return _put(rng.choice(kind), question) or rng.choice(_ASKED).format(question=question)


ASKING: Mapping[str, Callable[[str, random.Random], str]] = {
    "questions": one_of_questions,
    "many": one_of_many,
}


def forms() -> Sequence[str]:
    """Lists all forms of `many`."""
    return [form for kind in _KINDS for form in kind]


def _put(form: str, question: str) -> str | None:
    for name, rule in _RULES.items():
        if f"{{{name}}}" in form:
            said = rule(question)
            return said and form.format(**{name: said})
    return form.format(question=question)
