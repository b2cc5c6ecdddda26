"""Check that an annotation must pass (section 3.3, and the specification of the annotation prompt).

The work of every annotator goes through `review`. A fault has a code (`Code`) and a sentence that names what is wrong.
Only the part at fault is removed: a bad answer leaves the question, a bad question leaves the fact.

**The sentence-boundary test** (code "forward"). A question may use the document's title and its text up to the end of
the sentence that holds the span. A question fails where

- a number in it, or a name (a capitalised word that is not the question's first), is not in there, or
- any other content word of it is not in there, but further on in the text.

Words are compared by root; ordinary question words do not count. A word in small letters that is nowhere in the
document passes: it is the annotator's own wording and cannot come from a later sentence.

Limits: the test misses what is told later in other words, and a name that is written in small letters; a name from the
same sentence passes even if it stands after the span; unrelated words may share a root.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from colmlm.kb.corpus.format import (
    AnnotatedDocument,
    FactSpan,
    InlineError,
    parse_inline,
    unstorable_characters,
)
from colmlm.kb.texts.sentences import sentence_around, sentence_ends

# Words as the checks of annotations compare them: content words by their root, numbers by their digits.
#
# Rules and no model: the result is the same everywhere and cheap enough for every question of a corpus. The rules
# are made for English; in other languages of the Latin alphabet the roots are coarser, and a text without spaces is
# one long word.

_TOKEN = re.compile(
    r"(?P<number>\d+(?:,\d{3})*)(?:(?:st|nd|rd|th|s)\b)?|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)*)"
)
_POSSESSIVE = re.compile(r"['’]s?$")
_ENDINGS = ("ations", "ation", "ings", "ing", "ied", "ies", "ers", "ed", "er", "es", "ly", "e", "s", "y")
_LEAST_ROOT, _MOST_ROOT = 3, 6
_MONTH_NAMES = "january february march april may june july august september october november december sept"
_MONTHS = frozenset(_MONTH_NAMES.split())

# These may be in any question: grammar, question words, and verbs that only form a question.
_ORDINARY = """
    a about after against all also am among an and any are around as at be became become been before began begin
    being belong belonged belongs between by call called can come comes contain contains consist consists could did do
    does done during each far first for found from gave get give given had happen happened has have he her him his
    how if in include included includes into is it its kind know known last like located made make many may me mean
    means member more most much my name named names near no nor not of often old on one only or other our out over
    own part people refer referred refers regarded said same say since serve served serves she should so some sort stand
    stands such tall term than that the their them then there these they this those through to took type types under
    until up upon use used uses using was we well were what when where which while who whom whose why will with
    within without word would year years you your
    age amount area born capital city color colour company country date day death decade did die died distance
    event example field founded founding group height job language length located location long month nationality
    number occupation ocean organisation organization person place position profession purpose reason region
    relation result role size start started state subject team time title town village war way week weigh weight wide
"""
ORDINARY = frozenset(_ORDINARY.split())


@dataclass(frozen=True, slots=True)
class Word:
    """One word or number of a text.

    `key` is what is compared: the digits of a number (thousands without commas), the root of a word. `folded` is the
    word itself without accents, case and possessive.
    """

    key: str
    folded: str
    start: int
    end: int
    is_number: bool
    is_capitalised: bool

    @property
    def is_ordinary(self) -> bool:
        return self.folded in ORDINARY


def words_of_text(text: str) -> Iterator[Word]:
    """Yield the words and numbers of a text, in order; a hyphen parts words, "19th" and "1990s" are numbers."""
    for found in _TOKEN.finditer(text):
        if number := found.group("number"):
            digits = number.replace(",", "")
            yield Word(digits, digits, found.start(), found.end(), True, False)
            continue
        word = _POSSESSIVE.sub("", found.group("word"))
        plain = fold_word(word)
        yield Word(word_root(plain), plain, found.start(), found.end(), False, word[:1].isupper())


def telling_words(text: str) -> frozenset[str]:
    """Give the `Word.key` of each word of a text that is not in the list `ORDINARY`."""
    return frozenset(word.key for word in words_of_text(text) if not word.is_ordinary)


def fold_word(word: str) -> str:
    """Remove case and accents from the word."""
    if word.isascii():
        return word.lower()
    parts = unicodedata.normalize("NFKD", word)
    return "".join(part for part in parts if not unicodedata.combining(part)).casefold()


def word_root(folded: str) -> str:
    """Give the form that related words share: without a common ending, cut at six letters; a month at three.

    "discovered" and "discovery" have one root, as have "city" and "cities", "Sep" and "September"; "won" and "win" do
    not.
    """
    if folded in _MONTHS:
        return folded[:3]
    for ending in _ENDINGS:
        if folded.endswith(ending) and len(folded) - len(ending) >= _LEAST_ROOT:
            folded = folded.removesuffix(ending)
            break
    return folded[:_MOST_ROOT]


# The checks: what is at fault in an annotation, and what is left of it.

Code = Literal[
    "altered", "malformed", "span", "subject", "form", "pointing", "vague", "answered", "forward", "reveals", "clause",
    "lossy", "unverified", "refused",
]  # fmt: skip

_LONGEST_QUESTION = 300
_TEXT = re.compile(
    r"\b(?:the|this|that|given|above|following)\s+(?:given\s+|above\s+|following\s+)?"
    r"(?:text|passage|paragraph|excerpt|extract|snippet|document|article)\b"
    r"|\baforementioned\b|\b(?:mentioned|described|stated|given)\s+(?:above|below|earlier|here)\b",
    re.IGNORECASE,
)
_IN_BRACKETS = re.compile(r"\s*\([^()]*\)\s*$")  # distinguishes titles of the same name
_DEMONSTRATIVES = {"this", "these"}
_PRONOUNS = {"he", "she", "it", "they", "him", "her", "them", "his", "hers", "its", "their", "theirs"}
_SUBJECTS = {"he", "i", "it", "she", "they", "we", "you"}
_EXPLETIVE = {"cost", "costs", "mean", "means", "take", "taken", "takes", "took"}  # "how long did it take"
_RELATIVES = {"that", "when", "where", "which", "who", "whose"}
_SMALL_WORDS = (
    "a an and are as at by for from he her his in is it its of on or she that the their these they this those to was"
    " were which who with"
)
_SAYS_NOTHING = frozenset(_SMALL_WORDS.split())
_COUNTS = {"one", "no", "all"}
_AUXILIARIES = "am are can could did do does had has have is may might must shall should was were will would"
_FINITE = frozenset(_AUXILIARIES.split())


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of an annotation: a code, and a sentence that names what is wrong."""

    code: Code
    reason: str


@dataclass(frozen=True, slots=True)
class RejectedAnnotation:
    """A fact, a question or an answer that was not kept. Offsets are into the document's text.

    For a chunk that the endpoint returned broken, `value` is the returned text.
    """

    document: str
    start: int
    end: int
    code: Code
    reason: str
    value: str = ""
    question: str | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class ReviewedDocument:
    """A document with the part of its annotation that passed the checks, and the parts that did not."""

    document: AnnotatedDocument
    rejected: tuple[RejectedAnnotation, ...] = ()


class Review:
    """The checks of one document's annotation, in two parts; its spans are sorted and do not overlap.

    The rules run at once: `asked` are the spans whose question passed them. A verifier may then check those of many
    documents together; `finish` takes the faults that it finds.
    """

    def __init__(self, document: AnnotatedDocument) -> None:
        self.document = document
        found = [
            (span, span_fault(document.text, span) or _subject_fault(document.title, span))
            for span in document.facts
        ]
        self.rejected = [self._reject(span, fault) for span, fault in found if fault is not None]
        spans = [span for span, fault in found if fault is None]
        self.words = DocumentWords(document, spans)
        self.spans = [
            (span, None if span.question is None else self.words.question_fault(span)) for span in spans
        ]
        self.asked = [span for span, fault in self.spans if span.question is not None and fault is None]

    def finish(
        self, *, drop_unquestioned: bool = False, faults: Sequence[Fault | None] = ()
    ) -> ReviewedDocument:
        """Give the acceptable part of the annotation; `faults` are a verifier's, one or None for each span of `asked`.

        A fact whose question is rejected stays without one, since its span is still a fact and has a context key. With
        `drop_unquestioned` it is dropped, as is a fact that never had a question.
        """
        others = dict(zip(map(id, self.asked), faults, strict=False))
        rejected, kept = list(self.rejected), []
        for checked, known in self.spans:
            span = checked
            if (fault := known or others.get(id(checked))) is not None:
                rejected.append(self._reject(span, fault))
                span = replace(span, question=None, answer=None)
            if span.answer is not None and (fault := self.words.answer_fault(span)) is not None:
                rejected.append(self._reject(span, fault))
                span = replace(span, answer=None)
            if span.question is not None or not drop_unquestioned:
                kept.append(span)
        return ReviewedDocument(replace(self.document, facts=tuple(kept)), tuple(rejected))

    def _reject(self, span: FactSpan, fault: Fault) -> RejectedAnnotation:
        return RejectedAnnotation(
            self.document.external_id, span.start, span.end, fault.code, fault.reason,
            span.value, span.question, span.answer,
        )  # fmt: skip


def review(document: AnnotatedDocument, *, drop_unquestioned: bool = False) -> ReviewedDocument:
    """Check every fact of a document whose spans are sorted and do not overlap, by rules alone (see `Review`)."""
    return Review(document).finish(drop_unquestioned=drop_unquestioned)


def spans_of(source: str, annotated: str) -> tuple[FactSpan, ...] | Fault:
    """Read the spans of `annotated`, `source` with inline tags; give a fault if tags are broken or text was altered."""
    try:
        plain, spans = parse_inline(annotated)
    except InlineError as error:
        return Fault("malformed", f"The tags cannot be read: {error}.")
    if plain == source:
        return spans
    at = next((n for n, (a, b) in enumerate(zip(source, plain, strict=False)) if a != b), None)
    at = min(len(source), len(plain)) if at is None else at
    return Fault(
        "altered",
        f"The text was altered at character {at}: it has {source[at : at + 30]!r}, "
        f"the annotated text {plain[at : at + 30]!r}.",
    )


def span_fault(text: str, span: FactSpan) -> Fault | None:
    """Find a fault of the span itself: it says nothing, or cuts a word or a number in two. None without one."""
    if not any(character.isalnum() for character in span.value):
        return Fault("span", f"The span {span.value!r} has neither a letter nor a digit.")
    said = list(words_of_text(span.value))
    named = span.value.isupper() or any(word.is_capitalised for word in said[1:])  # "IT", "The Who"
    if said and not named and all(_says_nothing(word) for word in said):
        return Fault("span", f"The span {span.value!r} says nothing.")
    for at in (span.start, span.end):
        if 0 < at < len(text) and _is_inside_word(text[at - 1], text[at]):
            return Fault("span", f"The span {span.value!r} cuts a word or a number in two.")
    return None


def _says_nothing(word: Word) -> bool:
    """Tell whether a word by itself answers no question, such as "time" or "of"; a number in words may answer one."""
    return word.folded in _SAYS_NOTHING or (word.is_ordinary and word.folded not in _COUNTS)


def _subject_fault(title: str | None, span: FactSpan) -> Fault | None:
    """Give a fault if a span names the subject of the document, as the document's title does; else None.

    Every question about the document would contain that name, and so be near to the span's key. A title of one word
    may be a part of a longer name of something else, which is no fault.
    """
    named, said = (_content(text) for text in (_IN_BRACKETS.sub("", title or ""), span.value))
    if said and (said <= named or (len(named) > 1 and named <= said)):
        return Fault("subject", f"The span {span.value!r} names what the document is about.")
    return None


def _content(text: str) -> set[str]:
    return {word.key for word in words_of_text(text) if word.folded not in _SAYS_NOTHING}


def _is_inside_word(before: str, after: str) -> bool:
    """Tell whether the two characters belong to one word; scripts without capitals may have no spaces."""
    return all(c.isdigit() or c.islower() or c.isupper() for c in (before, after))


class DocumentWords:
    """The words of a document by the place where each first occurs, by which questions and answers are checked."""

    def __init__(self, document: AnnotatedDocument, spans: Sequence[FactSpan]) -> None:
        self._ends = sentence_ends(document.text)
        # Where each word or number first occurs; title words have a place before the text.
        self._first: dict[str, float] = {}
        for word in words_of_text(document.title or ""):
            self._first.setdefault(word.key, -1)
        for word in words_of_text(document.text):
            self._first.setdefault(word.key, word.start)
        self._values: dict[str, list[tuple[FactSpan, list[Word]]]] = {}
        for span in spans:
            for text in dict.fromkeys(filter(None, (span.value, span.answer))):
                said = list(words_of_text(text))
                if any(not word.is_ordinary for word in said):
                    self._values.setdefault(said[0].folded, []).append((span, said))

    def question_fault(self, span: FactSpan) -> Fault | None:
        """Find the first fault of a span's question; None if it passes every check."""
        question = span.question or ""
        asked = list(words_of_text(question))
        return (
            _form_fault(question)
            or _pointing_fault(question, asked)
            or _answered_fault(span, asked)
            or self._sentence_boundary_fault(span, question, asked)
            or self._reveals_fault(span, asked)
        )

    def answer_fault(self, span: FactSpan) -> Fault | None:
        """Find the first fault of a span's answer; None if it passes every check."""
        answer = span.answer or ""
        begins, _ = sentence_around(self._ends, span.start, span.end)
        return _clause_fault(span, answer) or _left_out_fault(span, answer, at_start=begins == span.start)

    def _sentence_boundary_fault(self, span: FactSpan, question: str, asked: Sequence[Word]) -> Fault | None:
        """Give a fault if the question has a word from after the span's sentence, or a name or number that is new."""
        _, limit = sentence_around(self._ends, span.start, span.end)
        for number, word in enumerate(asked):
            first = self._first.get(word.key, inf)
            if word.is_ordinary or first < limit:
                continue
            said = question[word.start : word.end]
            if first != inf:
                return Fault("forward", f"The question says {said!r}, which the text says only later.")
            if word.is_number or (word.is_capitalised and number > 0):
                return Fault("forward", f"The question names {said!r}, which is not in the text.")
        return None

    def _reveals_fault(self, span: FactSpan, asked: Sequence[Word]) -> Fault | None:
        """Give a fault if the question says a later span's value or answer that the text before this span does not."""
        folded = [word.folded for word in asked]
        for at, word in enumerate(folded):
            for later, said in self._values.get(word, ()):
                if later.start < span.end or folded[at : at + len(said)] != [w.folded for w in said]:
                    continue
                if any(self._first.get(w.key, inf) >= span.start for w in said):
                    return Fault(
                        "reveals", f"The question gives away {later.value!r}, a fact that comes later."
                    )
        return None


def _form_fault(question: str) -> Fault | None:
    if not 3 <= len(question.strip()) <= _LONGEST_QUESTION:
        return Fault(
            "form", f"The question has {len(question.strip())} characters, not 3 to {_LONGEST_QUESTION}."
        )
    if len(question.splitlines()) > 1:
        return Fault("form", "The question has more than one line.")
    if re.search(r"</?FACT\b", question) or unstorable_characters(question):
        return Fault("form", "The question holds a tag or a character that cannot be stored.")
    return None


def _pointing_fault(question: str, asked: Sequence[Word]) -> Fault | None:
    if (found := _TEXT.search(question)) is not None:
        return Fault("pointing", f"The question speaks of {found.group()!r}, which its reader has not.")
    named = False
    for number, word in enumerate(asked):
        said = question[word.start : word.end]
        following = asked[number + 1].folded if number + 1 < len(asked) else ""
        is_acronym = len(said) > 1 and said.isupper()
        if word.folded in _DEMONSTRATIVES and not is_acronym:
            return Fault("pointing", f"The question points with {said!r} at what its reader does not see.")
        is_expletive = word.folded == "it" and following in _EXPLETIVE
        if word.folded in _PRONOUNS and not (named or is_acronym or is_expletive):
            return Fault("pointing", f"The question says {said!r} before it names anybody or anything.")
        named = named or not word.is_ordinary
    return None if named else Fault("vague", "The question names nothing that it could be about.")


def _answered_fault(span: FactSpan, asked: Sequence[Word]) -> Fault | None:
    in_question = {word.folded for word in asked}
    for text in (span.value, span.answer or ""):
        said = list(words_of_text(text))
        telling = {word.folded for word in said if not word.is_ordinary} or {word.folded for word in said}
        if telling and telling <= in_question:
            return Fault("answered", f"The question holds the answer, {text!r}.")
    return None


def _clause_fault(span: FactSpan, answer: str) -> Fault | None:
    said, in_span = list(words_of_text(answer)), list(words_of_text(span.value))
    if not said:
        return Fault("clause", "The answer has no word and no number.")
    if len(said) > 2 * len(in_span) + 8:
        return Fault("clause", f"The answer has {len(said)} words for a span of {len(in_span)}.")
    known = {word.folded for word in in_span}
    if said[0].folded in _SUBJECTS - known and not answer[said[0].start : said[0].end].isupper():
        return Fault("clause", f"The answer begins with {said[0].folded!r}, as a sentence does.")
    for word in said:
        if word.folded in _RELATIVES:
            break  # the clause that this word begins belongs to a noun
        if word.folded in _FINITE - known and not word.is_capitalised:
            return Fault("clause", f"The answer has the verb {word.folded!r}, which the span has not.")
    if len(said) > 3 and answer.rstrip()[-1] in ".!?" and span.value.rstrip()[-1] not in ".!?":
        return Fault("clause", "The answer ends like a sentence.")
    return None


def _left_out_fault(span: FactSpan, answer: str, *, at_start: bool) -> Fault | None:
    """Give a fault if the answer leaves out a number or a name of the span, which may begin a sentence (`at_start`)."""
    kept = {word.key for word in words_of_text(answer)}
    in_span = list(words_of_text(span.value))
    for number, word in enumerate(in_span):
        opens_sentence = at_start and number == 0 and len(in_span) > 1  # any word has a capital there
        is_name = word.is_capitalised and not word.is_ordinary and not opens_sentence
        if (word.is_number or is_name) and word.key not in kept:
            said = span.value[word.start : word.end]
            return Fault("lossy", f"The answer leaves out {said!r}.")
    return None
