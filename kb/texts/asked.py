"""The text of a lookup: what the words of sentences are compared with, and what a reader is asked.

The query itself stays the hidden state, which knows all that was written; a text is short, so that its words count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from colmlm.kb.texts.sentences import is_question, sentence_ends

QUESTION, ANSWER = "Question:", "Answer:"
ANSWER_MODES = ("read", "paper")  # of outputs that answer a question, and were not decoded
FEWEST_WORDS = 5  # of a sentence that is asked without the one before it
MOST_CHARACTERS = 2_000


# How a question is asked, which says what form its answer has. The first that fits counts; the rules are for English.
_FORMS = {
    "how-to": r"how (?:do|can|could|should|would|to|does one|is it possible to)\b(?!.*\b(?:call|say|mean))",
    "amount": r"how (?:many|much|long|often|old|far|high|big|large|fast|late|soon)\b|what (?:percentage|number)\b",
    "why": r"why\b|what (?:is|was|are) the (?:reason|purpose|point)\b|for what reason|what .*\bfor\W*$",
    "definition": r"what (?:is|are|does) (?:an? |the )?(?:\S+ ){0,4}(?:mean|meant|stand for)\b|define\b"
    r"|what(?:'s| is) (?:an? )?\S+(?: \S+)?\W*$",
    "list": r"(?:list|name) (?:all|the|every|three|some)\b|which (?:\S+ )?\S+s (?:are|were|do|can|have)\b"
    r"|what are (?:all |the )",
    "yes-no": r"(?:is|are|was|were|do|does|did|can|could|may|must|should|will|would|has|have|am)\b(?!.*\bor\b)",
    "entity": r"(?:who|whom|whose|when|where|which|what)\b",
}
_ASKED = {
    form: re.compile(
        rf"(?:.*[,;.:] )?(?:and |but |so |to |in |on |at |by |for |from |with )?(?:{said})", re.IGNORECASE
    )
    for form, said in _FORMS.items()
}
FORMS = (*_FORMS, "other")
OF_SEVERAL_WORDS = frozenset(("how-to", "why", "definition", "list", "yes-no"))


def form_of(question: str) -> str:
    """Give the form of a question, one of `FORMS`: "other" for keywords and for what begins in no other form."""
    asked = " ".join(question.split())
    return next((form for form, words in _ASKED.items() if words.match(asked)), "other")


_COMPARES = re.compile(
    r"\b(?:compar(?:e|ed|ing|ison)\b|differences? between\b|differ from\b|versus\b|vs\b)"
    r"|^(?:which|what|who)\b.*\b(?:more|less|better|worse|\w{2,}er)\b.*\bor\b",
    re.IGNORECASE,
)


def asks_to_compare(question: str) -> bool:
    """Tell whether a question asks to compare, so that no quotation of one place answers it."""
    return _COMPARES.search(question) is not None


def question_of_lookup(output_mode: str, prompt: str, output_before: str, *, asks_reader: bool) -> str:
    """Give the question of a lookup in an output: the prompt's, or the text by which the lookup compares words.

    `output_before` is the output up to the lookup. `asks_reader` is True where the lookup asks the reader the prompt's
    question, as each does until one finds a fact.
    """
    if output_mode in ANSWER_MODES:
        return prompt
    question = question_in(prompt) if asks_reader else None
    return asked_text(prompt, output_before) if question is None else question


def question_in(prompt: str) -> str | None:
    """Find the question at the end of a prompt, before "Answer:" or as a last sentence; None where it has neither."""
    asked = prompt.rstrip()
    if asked.endswith(ANSWER):
        return asked_text(prompt, "")
    return _sentence_being_written(asked) if is_question(asked) else None


_TURN = re.compile(rf"{QUESTION}(.*?)(?={ANSWER}|\Z)", re.DOTALL)
_ABOUT = re.compile(
    r"(?:and |but |or |so )?(?:(?:what|how) about |and (?:for |in |at |of |on )?)(?P<other>[^?]+)\??", re.I
)
_REFERS = re.compile(
    r"\b(?:it|its|they|them|their|he|him|his|she|her|this|that|these|those|there|then|same)\b", re.IGNORECASE
)
_FEWEST_ALONE = 3  # words of a question that asks for itself
_NAMED = re.compile(r"(?:[A-Z][\w'’-]*)(?: (?:of |the )?[A-Z][\w'’-]*)*")


def question_of_chat(prompt: str) -> str | None:
    """Find the question that a conversation ends in, as it would be asked alone; None where it ends in none."""
    if not prompt.rstrip().endswith(ANSWER):
        return question_in(prompt)
    turns = [turn.strip()[-MOST_CHARACTERS:] for turn in _TURN.findall(prompt)]
    return resolve_question(turns) if turns else question_in(prompt)


def resolve_question(turns: Sequence[str]) -> str:
    """Rewrite the last of some questions so that it can be asked alone.

    "And for managers?" takes the form of the question before it; one that only refers ("What does it cost?") is put
    behind it. The rules are for English.
    """
    *earlier, last = turns
    if not earlier:
        return last
    about = _ABOUT.fullmatch(last.strip())
    if about is None and not _REFERS.search(last) and len(last.split()) >= _FEWEST_ALONE:
        return last
    before = resolve_question(earlier)
    if about is not None and (exchanged := _exchange_words(before, about["other"].strip())) is not None:
        return exchanged
    return f"{before} {last}"[-MOST_CHARACTERS:]


def _exchange_words(question: str, other: str) -> str | None:
    """Put `other` for the words of a question that end as it does, or for its last proper name; None without either."""
    words, said = other.split(), question.rstrip("? ").split()
    ends = [at for at, word in enumerate(said) if word.casefold() == words[-1].casefold()]
    if ends:
        first = max(0, ends[-1] + 1 - len(words))
        return " ".join([*said[:first], *words, *said[ends[-1] + 1 :]]) + "?"
    names = [found for found in _NAMED.finditer(question) if found.start()]
    if names and other[:1].isupper():
        return question[: names[-1].start()] + other + question[names[-1].end() :]
    return None


def asked_text(prompt: str, said: str) -> str:
    """Give the text by which a lookup compares words or asks the reader, after `prompt` and the text `said` since.

    That is the question, where the prompt ends in "Answer:", with what the answer's first sentence says so far; else
    the sentence that is being written, with the one before it where it has few words yet.
    """
    asked = prompt.rstrip()
    if not asked.endswith(ANSWER):
        return _sentence_being_written(f"{prompt}{said}")
    if len(sentence_ends(said)) > 1:
        return _sentence_being_written(said)
    question = asked.removesuffix(ANSWER).rpartition(QUESTION)[2].strip()
    return f"{question} {said.lstrip()}".strip()[-MOST_CHARACTERS:]


def _sentence_being_written(text: str) -> str:
    text = text[-2 * MOST_CHARACTERS :]
    begins = [0, *sentence_ends(text)[:-1]]
    last = text[begins[-1] :]
    if len(last.split()) < FEWEST_WORDS and len(begins) > 1:
        last = text[begins[-2] :]
    return last.strip()[-MOST_CHARACTERS:]
