"""Spans of a text: from BIO tags of words and back (section 3.3), and completed to wholes.

A span is a pair of offsets in Unicode code points, so its value is always a stretch of the text. The tagged unit is the
word as the tokenizer splits it: no span begins or ends within one.
"""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colmlm.model.text.markup import Span

TAGS = ("O", "B", "I")
OUTSIDE, BEGIN, INSIDE = range(3)
_OPENER_OF = {")": "(", "]": "[", "}": "{", "»": "«", "”": "“", "’": "‘"}
_CLOSER_OF = {opener: closer for closer, opener in _OPENER_OF.items()}
_BELONGS = frozenset("#@&%‰§†′″*/\\")  # punctuation that belongs to the number or word beside it
_ENDING_INITIALS = re.compile(r"(?:\w\.){2,}$")


@dataclass(frozen=True, slots=True)
class SpannedText:
    """A text with its title and its spans (sorted, without overlap)."""

    text: str
    spans: Sequence[Span]
    title: str | None = None


def tags_of(words: Sequence[Span], spans: Sequence[Span]) -> list[int]:
    """Give each word's tag (`OUTSIDE`, `BEGIN`, `INSIDE`) by the spans that cover it; both are sorted, without overlap.

    A word that a span covers in part belongs to that span; a word that two spans share belongs to the first.
    """
    tags = [OUTSIDE] * len(words)
    at = 0
    for start, end in spans:
        while at < len(words) and words[at][1] <= start:
            at += 1
        tag = BEGIN
        while at < len(words) and words[at][0] < end:
            tags[at], tag = tag, INSIDE
            at += 1
    return tags


def best_tags(log_probs_N3: NDArray[np.floating], threshold: float = 0.5) -> list[int]:
    """Find the likeliest sequence of tags in which no I follows an O or begins the text (Viterbi).

    The tags' probabilities are read as those of a chain: a span continues over a word with the probability of I there,
    given that the word before is in a span. So a span's length does not depend on the probability that it is one, which
    matters where only some of the facts were marked in training. `threshold` trades precision for recall: at t, a span
    begins at a word where the odds of that are at least t to 1 - t. A higher threshold never gives more spans.
    """
    if not 0 < threshold < 1:
        raise ValueError(f"the threshold of spans is {threshold}; choose one between 0 and 1")
    price = math.log(threshold / (1 - threshold))
    out, within = 0.0, -math.inf  # the best scores so far, ending outside and inside a span
    back: list[tuple[bool, bool]] = []  # for each word: a span ends before it, one continues over it
    for ends, begins, goes_on in chain_scores(log_probs_N3):
        ended = within + ends > out
        rest = within + ends if ended else out
        fresh, longer = rest + begins - price, within + goes_on
        back.append((ended, longer >= fresh))
        out, within = rest + math.log1p(-math.exp(begins)), max(fresh, longer)
    return _trace_tags(back, within > out)


def chain_scores(log_probs_N3: NDArray[np.floating]) -> Iterator[tuple[float, float, float]]:
    """Yield for each word the log-probabilities that a span ends before it, begins at it, or continues over it.

    That of the beginning is conditional on no span continuing, the others on a span that holds the word before.
    """
    tiny = 1e-9
    before = 0.0
    for outside, begin, inside in np.exp(np.asarray(log_probs_N3, dtype=np.float64)).tolist():
        goes_on = min(max(inside / max(before, tiny), tiny), 1 - tiny) if before else tiny
        begins = min(max(begin / max(begin + outside, tiny), tiny), 1 - tiny)
        yield math.log1p(-goes_on), math.log(begins), math.log(goes_on)
        before = begin + inside


def _trace_tags(back: Sequence[tuple[bool, bool]], is_within: bool) -> list[int]:
    """Trace the best tags back from the last word, at which a span is open if `is_within`; give them in text order."""
    tags: list[int] = []
    for ended, longer in reversed(back):
        tags.append((INSIDE if longer else BEGIN) if is_within else OUTSIDE)
        is_within = True if is_within and longer else ended
    return tags[::-1]


def spans_of(text: str, words: Sequence[Span], tags: Sequence[int]) -> list[Span]:
    """Give the spans that valid tags mark: trimmed, sorted, without overlap, and not of punctuation only."""
    spans: list[Span] = []
    reached = 0
    for first, (word, tag) in enumerate(zip(words, tags, strict=True)):
        if tag != BEGIN:
            continue
        last = first
        while last + 1 < len(tags) and tags[last + 1] == INSIDE:
            last += 1
        span = trim_span(text, max(word[0], reached), words[last][1])
        if span is not None:
            spans.append(span)
            reached = span[1]
    return spans


def trim_span(text: str, start: int, end: int) -> Span | None:
    """Trim blanks and outer punctuation, keeping the last letter's combining marks; give None if nothing is left.

    Punctuation that belongs to the value stays: a sign before a number, a percent sign, a bracket whose partner is
    inside, the last point of initials ("U.S.").
    """
    while start < end < len(text) and unicodedata.category(text[end])[0] == "M":
        end += 1
    while start < end:
        if _is_last_dispensable(text, start, end):
            end -= 1
        elif _is_first_dispensable(text, start, end):
            start += 1
        else:
            break
    said = any(unicodedata.category(character)[0] in "LNS" for character in text[start:end])
    return (start, end) if said else None


def _is_first_dispensable(text: str, start: int, end: int) -> bool:
    first, category = text[start], unicodedata.category(text[start])
    if category[0] in "ZCM" or first.isspace():
        return True
    if category[0] != "P" or first in _BELONGS:
        return False
    if first in "-.":
        return not text[start + 1 : end][:1].isdigit()
    return first not in _CLOSER_OF or _CLOSER_OF[first] not in text[start + 1 : end - 1]


def _is_last_dispensable(text: str, start: int, end: int) -> bool:
    last, category = text[end - 1], unicodedata.category(text[end - 1])
    if category[0] in "ZC" or last.isspace():
        return True
    if category[0] != "P" or last in _BELONGS:
        return False
    if last == ".":
        return not _ENDING_INITIALS.search(text, start, end)
    opener = _OPENER_OF.get(last)
    return opener is None or text.count(opener, start, end) < text.count(last, start, end)


# Stretches of a text that say one thing only as a whole: names, numbers with their units, dates, quoted titles.
#
# Rules and no model; made for English. They overlap ("the song “March 3, 1911”"), and then they are one.

MOST_NAMES = 7  # words of a name; a longer run of capitals is a heading
MOST_QUOTED = 8  # words of a quoted title; a longer quotation is speech, and parts of it are facts

_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|Jan\.?|Feb\.?|Mar\.?|Apr\.?|Jun\.?|Jul\.?|Aug\.?|Sept?\.?|Oct\.?|Nov\.?|Dec\.?)"
)
_ERA = r"(?:\s?(?:BCE|BC|CE|AD|B\.C\.E?\.?|A\.D\.)(?!\w))"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_YEAR = r"\d{3,4}(?!\w)"
_DATE = re.compile(
    rf"(?<!\w)(?:{_DAY}(?:\s?[-–]\s?{_DAY})?\s(?:of\s)?{_MONTH}(?:,?\s(?:of\s)?{_YEAR}{_ERA}?)?(?!\w)"
    rf"|{_MONTH}\s{_DAY}(?:\s?[-–]\s?{_DAY})?(?!\w)(?:,?\s{_YEAR}{_ERA}?)?"
    rf"|{_MONTH},?\s(?:of\s)?{_YEAR}{_ERA}?"
    rf"|(?:AD|CE)\s\d{{1,4}}(?!\w)|\d{{1,5}}{_ERA}"
    rf"|\w+(?:st|nd|rd|th)[\s-]centur(?:y|ies)(?!\w){_ERA}?|\d{{1,2}}(?::\d\d)?\s?[ap]\.?m\.?(?!\w))"
)
_SCALE = r"(?:hundred|thousand|million|billion|trillion|dozen)"
_UNIT = (
    r"(?:percent|per\scent|percentage\spoints?|%|‰|°\s?[CFK]?"
    r"|(?:square|cubic|metric|nautical)\s\w+|sq\.?\s?(?:mi|km|ft|m)\.?"
    r"|(?:milli|centi|kilo|mega|giga|tera|micro|nano)?(?:met(?:er|re)|gram|lit(?:er|re)|watt|volt|hertz|byte|joule|bit)s?"
    r"|tons?|tonnes?|miles?|mi|feet|foot|ft|inch(?:es)?|yards?|yd|acres?|hectares?|ha|pounds?|lbs?|ounces?|oz|gallons?"
    r"|[kcmµn]?m[²³23]?|km[²³]?/?h?|mph|kph|[kmµ]?g|m?l|[kMG]?Hz|[kMGT]?[wW]h?|k?V|[KMGT]i?B|[kM]?J|K|AU"
    r"|seconds?|minutes?|hours?|days?|weeks?|months?|years?|decades?|centuries|degrees?"
    r"|dollars?|euros?|cents?|pence|francs?|yen|rupees?|roubles?|rubles?|marks)(?![\w])"
)
_SPELLED = (
    r"(?i:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty(?:-(?:one|two|three|four|five|six|seven|eight|nine))?)"
)
_DIGITS = r"\d+(?:[.,:]\d+)*"
_NUMBER = re.compile(
    rf"(?:(?<![\w.,])[-−+±](?=\d))?(?:(?:US|A|C|HK|NZ)?[$£€¥₹]\s?)?{_DIGITS}(?:[/⁄-]\d+|\s?[–-]\s?{_DIGITS})*(?:st|nd|rd|th|s)?"
    rf"(?:[\s-]{_SCALE}(?!\w))*(?:[\s-]?{_UNIT})?"
    rf"|(?<!\w){_SPELLED}(?:[\s-]{_SCALE}(?!\w))+(?:[\s-]{_UNIT})?|(?<!\w){_SPELLED}[\s-]{_UNIT}",
)
_YEARS = re.compile(r"\d{4}\s?[-–]\s?\d{4}")
_NUMERAL = re.compile(rf"\d{{1,4}}(?![\w.,:/–%°-]*\d)(?!\w|[\s-]?(?:{_UNIT}|{_SCALE}(?!\w)))")
_QUOTATION = re.compile(r"“([^“”\n]{1,80})”|(?<!\w)\"(?=\S)([^\"\n]{1,80})(?<=\S)\"(?!\w)|«([^«»\n]{1,80})»")
_SUFFIX = (
    r"(?:based|born|led|era|style|speaking|owned|adjusted|nominated|winning)\b"  # "London-based" names London
)
_WORD = re.compile(rf"[^\W_](?:[\w\u0300-\u036f]|[-‐‑'’&](?!{_SUFFIX})(?=[^\W_]))*")
_POSSESSIVE = re.compile(r"['’]s?$")
_INITIALS = re.compile(r"(?:[^\W\d_]\.){2,}")
_BETWEEN = re.compile(r"[ \u00a0]|\.[ \u00a0]?|[ \u00a0]&[ \u00a0]")
_ABBREVIATED = "dr mr mrs ms st jr sr lt gen col sgt capt rev prof no mt ft"
_BEFORE_POINT = frozenset(_ABBREVIATED.split())
_SENTENCE_ENDS = re.compile(r"(?:^|[.!?:;\n•*|])[\s\"“”'‘’»)\]]*$")
# Words that begin a sentence with a capital and are no part of the name that follows.
_OPENING_WORDS = """
    a about above according across after again against all along already also although among an and another any are
    around as at back be because been before behind below beneath beside besides between beyond both but by can close
    could currently despite did do does down due during each earlier eight either eventually even every except few
    finally first five for former formerly four from further given had has have he hence her here his how however i if
    in including indeed initially inside instead into is it its just last later like many may meanwhile more moreover
    most much my near neither nevertheless next nine no nor not now of off often on once one only onto opposite or
    originally other others our out outside over overall part per perhaps previously prior rather recently second seven
    several she should similarly since six so some sometimes soon still subsequently such ten than that the their them
    then there therefore these they third this those though three through throughout thus till to today together
    toward towards two under unless unlike until up upon using was we were what when whenever where whereas whether
    which while who whom whose why will with within without would yet you your
"""
_OPENERS = frozenset(_OPENING_WORDS.split())


class Wholes:
    """The wholes of one text (words, names, numbers, dates, titles) that no span may cut: sorted, without overlap."""

    def __init__(self, text: str) -> None:
        quotations = list(_quotations(text))
        self.spans = _unite_spans([*_words(text), *_numbers(text), *_names(text), *quotations])
        self._starts, self._ends = _starts_and_ends(self.spans)
        self._openings, self._closings = _starts_and_ends([(start - 1, end + 1) for start, end in quotations])

    def span_with_wholes(self, start: int, end: int) -> Span:
        """Widen a span to hold every whole that it cuts, and both quotation marks where it has one."""
        wider = self._widen_to_quotation(*self._widen_to_wholes(start, end))
        while wider != (start, end):
            start, end = wider
            wider = self._widen_to_quotation(*self._widen_to_wholes(start, end))
        return wider

    def whole_at(self, place: int) -> Span:
        """Find the whole that holds the character at `place`; where none does, give that character as a span."""
        n = bisect_right(self._starts, place) - 1
        return self.spans[n] if n >= 0 and place < self._ends[n] else (place, place + 1)

    def _widen_to_wholes(self, start: int, end: int) -> Span:
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end) - 1
        if first < len(self.spans):
            start = min(start, self._starts[first])
        if last >= 0:
            end = max(end, self._ends[last])
        return start, end

    def _widen_to_quotation(self, start: int, end: int) -> Span:
        for n in range(bisect_right(self._closings, start), bisect_left(self._openings, end)):
            opening, closing = self._openings[n], self._closings[n]
            if start <= opening and end < closing:
                end = closing
            elif opening < start and closing <= end:
                start = opening
        return start, end


def _starts_and_ends(spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    return [start for start, _ in spans], [end for _, end in spans]


def _unite_spans(spans: Iterable[Span]) -> list[Span]:
    """Unite spans that overlap into one span each; give the spans in order."""
    united: list[Span] = []
    for start, end in sorted(spans):
        if united and start < united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((start, end))
    return united


def _words(text: str) -> Iterator[Span]:
    """Yield the spans of words, with their hyphens and apostrophes, but without a possessive."""
    for found in _WORD.finditer(text):
        start, end = found.span()
        possessive = _POSSESSIVE.search(text, start, end)
        yield start, possessive.start() if possessive and possessive.start() > start else end


def _numbers(text: str) -> Iterator[Span]:
    """Yield the spans of numbers with currency, scale and unit, dates and initials; "1914-1918" is not one number."""
    for found in _NUMBER.finditer(text):
        if _YEARS.fullmatch(found.group()) is None:
            yield found.span()
    yield from (found.span() for pattern in (_DATE, _INITIALS) for found in pattern.finditer(text))


def _quotations(text: str) -> Iterator[Span]:
    """Yield the spans of titles in quotation marks, without the marks."""
    for found in _QUOTATION.finditer(text):
        start, end = found.span(found.lastindex or 0)
        if _is_title(text[start:end].split()):
            yield start, end


def _is_title(said: Sequence[str]) -> bool:
    """Tell whether quoted words are a title, not speech: at most three, or with most long words capitalised."""
    long = [word[0].isupper() for word in said if len(word) > 4]
    return len(said) <= 3 or (len(said) <= MOST_QUOTED and 2 * sum(long) > len(long))


def _names(text: str) -> Iterator[Span]:
    """Yield the spans of names: runs of capitalised words; a number ends a run and is part of it ("Apollo 11")."""
    run: list[Span] = []
    for start, end in _words(text):
        if run and not _is_name_continued(text, run[-1], (start, end)):
            yield from _name_of_run(run)
            run = []
        if text[start].isupper() and (run or not _is_sentence_opening(text, start, end)):
            run.append((start, end))
            continue
        if run and _NUMERAL.match(text, start) and not _is_opening_word(text, *run[-1]):
            run.append((start, end))
        yield from _name_of_run(run)
        run = []
    yield from _name_of_run(run)


def _name_of_run(run: Sequence[Span]) -> Iterator[Span]:
    if 1 < len(run) <= MOST_NAMES:
        yield run[0][0], run[-1][1]


def _is_name_continued(text: str, before: Span, word: Span) -> bool:
    """Tell whether a name goes on from its word `before` to the following `word`, by the characters between them."""
    between = text[before[1] : word[0]]
    if not _BETWEEN.fullmatch(between):
        return False
    if between[0] != ".":
        return True
    said = text[before[0] : before[1]]
    return (len(said) == 1 and not _is_opening_word(text, *word)) or said.lower() in _BEFORE_POINT


def _is_sentence_opening(text: str, start: int, end: int) -> bool:
    """Tell whether a word is capitalised because it begins a sentence, not because it is part of a name."""
    return (
        _is_opening_word(text, start, end)
        and _SENTENCE_ENDS.search(text, max(0, start - 8), start) is not None
    )


def _is_opening_word(text: str, start: int, end: int) -> bool:
    word = text[start:end].lower()
    return word in _OPENERS or word.endswith("ly")


# Completes spans: none cuts a number, a date, a name or a quoted title, and none ends in words that say
# nothing.

_FIRST = re.compile(r"\s*(and|or|the|an?)\s+(?=\S)", re.IGNORECASE)
_LAST = re.compile(
    r"[\s,;:(]+(a|an|and|as|at|but|by|for|from|in|into|of|on|or|than|the|to|which|who|with)\s*\Z"
)
_BREAK = re.compile(r"\s*\n[ \t\r]*\n\s*")  # between a heading or a paragraph and the next one
_MOST_ROUNDS = 10  # two spans that became one may cut a whole that neither did
_LEFT_ALONE = frozenset(("what", "when", "where", "which", "who", "whom", "whose", "why", "how"))  # "The Who"


def whole_spans(text: str, spans: Sequence[Span], wholes: Wholes | None = None) -> list[Span]:
    """Complete spans to wholes, narrow them, and unite those that then overlap; all are sorted, without overlap.

    Of a span over several paragraphs only the part in one of them stays, the longest. A second call changes nothing.
    `wholes` are those of `text`, if they are already known.
    """
    wholes = wholes or Wholes(text)
    for _ in range(_MOST_ROUNDS):
        before, spans = list(spans), _complete_spans(text, spans, wholes)
        if spans == before:
            break
    return list(spans)


def _complete_spans(text: str, spans: Sequence[Span], wholes: Wholes) -> list[Span]:
    completed: list[Span] = []
    for start, end in spans:
        start, end = wholes.span_with_wholes(*_in_one_paragraph(text, start, end))
        if completed and start < completed[-1][1]:
            completed[-1] = (completed[-1][0], max(end, completed[-1][1]))
        else:
            completed.append((start, end))
    return [narrow_span(text, start, end, wholes) for start, end in completed]


def _in_one_paragraph(text: str, start: int, end: int) -> Span:
    breaks = [found.span() for found in _BREAK.finditer(text, start, end)]
    parts = zip([start, *(last for _, last in breaks)], [*(first for first, _ in breaks), end], strict=True)
    return max(parts, key=lambda part: part[1] - part[0])


def narrow_span(text: str, start: int, end: int, wholes: Wholes) -> Span:
    """Cut blanks, articles, "and" and "or" off a span's beginning, and small words off its end, but never a whole."""
    end = start + len(text[start:end].rstrip())
    while (
        (found := _LAST.search(text, start, end))
        and found.start() > start
        and _is_whole(wholes, *found.span(1))
    ):
        end = found.start()
    while (found := _FIRST.match(text, start, end)) and _is_whole(wholes, *found.span(1)):
        if text[found.end() : end].lower() in _LEFT_ALONE:
            break
        start = found.end()
    return end - len(text[start:end].lstrip()), end


def _is_whole(wholes: Wholes, start: int, end: int) -> bool:
    return wholes.whole_at(start) == (start, end)
