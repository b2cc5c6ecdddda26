"""When two texts say the same words, and where."""

from __future__ import annotations

import hmac
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from colmlm.kb.facts import suppression
from colmlm.kb.facts.redaction import MARK, blank_out
from colmlm.kb.texts.wording import (
    ComparedText,
    JoinedFinder,
    Phrases,
    forms_of_text,
    normalise_wording,
    normalised_before,
    words_before,
    words_of_text,
)
from tests.spellings import SPELLINGS

SIGNS = "aAbß 1ſK.-\u0301éÉ\u00ad\u200bﬁ½\n東京ｱﾞＡ█*_`'\u2019\u2011&;#"
SIGNED = (
    "A*",
    "D*",
    "5*",
    "~5",
    "snake_case",
    r"C:\x",
    "f`x",
    "*NSYNC",
    "E*TRADE",
    "Yahoo!",
    "C++",
    "C#",
    ".NET",
)
TEXTS = st.lists(st.sampled_from([*SIGNS, "&nbsp;", "&#39;", "-\n"]), max_size=25).map("".join)


@pytest.mark.parametrize(
    ("text", "needle", "found"),
    [
        ("LIMA, lima", "Lima", ["LIMA", "lima"]),
        ("Limassol in 1981", "Lima", []),
        ("born 1981", "1", []),
        ("New \n York", "new york", ["New \n York"]),
        ("Cafe\u0301 CAFÉ", "café", ["Cafe\u0301", "CAFÉ"]),
        ("Ｌｉｍａ and Li\u00adma", "Lima", ["Ｌｉｍａ", "Li\u00adma"]),
        ("Straße, STRASSE", "strasse", ["Straße", "STRASSE"]),
        ("ΟΔΟΣ οδος", "Οδός".replace("ό", "ο"), ["ΟΔΟΣ", "οδος"]),
        ("C++ and C ++, not C+", "c++", ["C++", "C ++"]),
        ("私は東京にいる", "東京", ["東京"]),
        ("a b a b a b", "a b a", ["a b a"]),
        ("of ﬁre", "fire", ["ﬁre"]),
    ],
)
def test_a_phrase_is_found_as_it_stands_in_the_text(text: str, needle: str, found: list[str]) -> None:
    assert [text[start:end] for start, end in Phrases([needle]).spans(text)] == found


@given(TEXTS)
def test_a_text_says_itself_in_any_form(text: str) -> None:
    for form in (text, text.upper(), unicodedata.normalize("NFD", text), unicodedata.normalize("NFKC", text)):
        if normalise_wording(form) == normalise_wording(text) and normalise_wording(text):
            assert Phrases([form]).spans(text)


@given(TEXTS, TEXTS)
@example("1", "1ﾞ")
def test_what_is_said_alike_is_found_whole_and_digested_alike(one: str, other: str) -> None:
    same = normalise_wording(one) == normalise_wording(other)
    shares = bool(set(forms_of_text(one)) & set(forms_of_text(other)))
    found = Phrases([one]).spans(other)
    whole = [(every[0].start, every[-1].end)] if (every := words_of_text(other)) else []
    if same and whole:
        assert found == whole
    if shares and whole:
        assert found and found[0][0] == whole[0][0]
    # A digit and the mark that combines with it are two words in one place, which is found by either of them.
    if found == whole and whole and len(words_of_text(one)) == len(every) and "-\n" not in one + other:
        assert shares or not set("*_").isdisjoint(one + other)
    digests = suppression.Digests(hmac.new(b"secret", digestmod="sha256"))
    assert bool(set(digests.of_fact(one, "q", None)) & set(digests.of_fact(other, "q", None))) == shares


@given(TEXTS, st.lists(TEXTS, max_size=3))
def test_nothing_that_was_redacted_is_found_again(text: str, needles: list[str]) -> None:
    phrases = JoinedFinder(Phrases(needle for needle in needles if MARK not in needle), Phrases([]))
    redacted = blank_out(text, phrases.spans(text))
    assert len(redacted) == len(text)
    assert all(
        MARK in redacted[start:end] or not phrases.spans(redacted) for start, end in phrases.spans(redacted)
    )


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_value_is_found_in_every_spelling_and_blanked_whole(spelling: str) -> None:
    value, stored = SPELLINGS[spelling]
    text = f"\u00ab{stored}\u00bb it is, &amp; no other."
    known = [(value, text), (stored, f"({value})"), (stored, text)]
    if spelling == "underscore":  # the sign is the value's own, and its text may not do without
        assert not Phrases([known[1][0]]).spans(known.pop(1)[1])
    for erased, said in known:
        phrases = Phrases([erased])
        ((start, end),) = phrases.spans(said)
        assert said[start:end].strip("_*`") == (stored if said == text else value).strip("_*`")
        assert not phrases.spans(blank_out(said, [(start, end)]))


@pytest.mark.parametrize("value", SIGNED)
def test_a_value_with_signs_of_its_own_is_found_with_these_alone(value: str) -> None:
    bare = "".join(c if c.isalnum() else " " for c in value).strip()
    phrases, without = (
        Phrases([value]),
        f"To say {bare}: {bare.replace(' ', '')}, a *b* or {bare}.\n* {bare}\n",
    )
    assert not phrases.spans(without)
    for text in (f"It is {value}. So, ({value}) is", f"**{value}** and `{value}`, {bare}"):
        assert [text[start:end] for start, end in phrases.spans(text)] == [value, value]
    assert not phrases.spans(blank_out(f"**{value}**", phrases.spans(f"**{value}**")))
    assert not set(forms_of_text(value)) & set(forms_of_text(bare))


@pytest.mark.parametrize(
    ("value", "text", "found"),
    [
        ("A*", "*see A* for more*, a *fast* B, a\n* B, A\\*", ["A*", "A\\*"]),
        ("ETRADE", "E*TRADE E**TRA**DE", ["E**TRA**DE"]),
        ("*NSYNC", "* NSYNC, *NSYNC", ["*NSYNC"]),
        ("* Jean", "* jean, Jean", ["jean", "Jean"]),
        ("*", "a * b", ["*"]),
        ("5 *", "5\n* 6, 5 *", ["5 *"]),
        ("*one", "a *fast* one, *one", ["*one"]),
        ("5 3", "5*3, 5~3, **5** _3_", ["5** _3"]),
        ("x y", "x * y, *x* y", ["x* y"]),
        ("*.*", "a. b, *.*", ["*.*"]),
        ("bold italic", "**bold***italic*", ["bold***italic"]),
        ("kept x", "*kept\n\nx*, kept* x, *kept* x", ["kept* x"]),
        (r"C:\x", r"C:x C:\x C:\\x", [r"C:\x", r"C:\\x"]),
    ],
)
def test_marks_are_left_out_where_they_are_markup(value: str, text: str, found: list[str]) -> None:
    assert [text[start:end] for start, end in Phrases([value]).spans(text)][-len(found) :] == found
    assert len(Phrases([value]).spans(text)) == len(found) + (value == "kept x")


MARKED = st.lists(st.sampled_from([*"aAb1 *_~`\\.-\n", "**"]), max_size=10).map("".join)


@given(MARKED, MARKED)
@example("a*", "a* a **a**")
def test_nothing_is_found_that_is_not_the_value(value: str, text: str) -> None:
    for start, end in Phrases([value]).spans(text):
        said = text[start:end]
        assert bare(said).replace("-", "") == bare(value).replace("-", "")
        for mark in "*_~`":
            kept, own = said.count(mark), value.count(mark)
            assert kept <= own or text.count(mark) > 1 or said.strip("_").count("_") == 1
            assert kept >= own or own > 1 or value.lstrip("\\ \n").startswith("* ")


@given(MARKED, MARKED, MARKED)
def test_what_is_found_is_found_by_digests(value: str, before: str, after: str) -> None:
    text = before + value + after
    said, known = ComparedText.of(text), [tuple(form.split(" ")) for form in forms_of_text(value) if form]
    read = {
        taken
        for at in range(len(said.words))
        for size in set(map(len, known))
        for taken, _ in said.read_words_from(at, size)
    }
    assert bool(Phrases([value]).spans(text)) == (not read.isdisjoint(known))


def bare(text: str) -> str:
    """Give the letters, digits and other signs of a text."""
    return "".join(c for c in text.lower() if not (c in "*_~`\\'" or c.isspace()))


def test_a_cut_word_is_found_in_one_piece_and_in_pieces() -> None:
    for text in ("exam-\nple", "ex-\nam-\r\n  ple", "exam\u00ad\nple", "e**xam**ple"):
        assert Phrases(["example"]).spans(text) == [(0, len(text))]
    assert Phrases(["Saint-Denis"]).spans("Saint-\nDenis") == [(0, 12)]
    assert Phrases(["5"]).spans("15*5 is 1990-\n5") == [(3, 4), (14, 15)]
    assert not Phrases(["55"]).spans("5*5, 5-\n5")


@given(TEXTS | st.text(st.sampled_from("1a ～＊＿＼｀︳﹏﹡﹨﹘︱⁻﹣＆\u1fef\u2033\u00a0")))
@example("10～20")
def test_words_of_earlier_releases_are_named_where_they_are_others(text: str) -> None:
    if words_before(text) is None:
        assert [word.said for word in words_of_text(text)] == normalise_wording(text).split()
        assert normalised_before(text) == normalise_wording(text)


@given(TEXTS)
def test_words_stand_in_order_where_they_say_to(text: str) -> None:
    every = words_of_text(text)
    assert all(0 <= word.start < word.end <= len(text) for word in every)
    assert [word.start for word in every] == sorted(word.start for word in every)
    # A backtick is an apostrophe by what is around it, and a soft hyphen a hyphen by what follows.
    told = (word for word in every if word.said not in ("'", "-"))
    assert all(word.said in normalise_wording(text[word.start : word.end]) for word in told)


def test_many_phrases_are_found_as_few_are() -> None:
    many = Phrases([f"word {n}" for n in range(100)])
    assert many.spans("It is Word 7 and word 99, not word 100") == [(6, 12), (17, 24)]
