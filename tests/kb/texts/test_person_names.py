"""Names of people are found in other spellings, and kept apart from those of others."""

from __future__ import annotations

import pytest

from colmlm.kb.texts.names import PersonFinder

MARIA = PersonFinder.of("Maria Keller", ["Mia Keller"])
JUERGEN = PersonFinder.of("Jürgen Müller-Lüdenscheidt")
ANNA = PersonFinder.of("Anna Lena van der Berg")
SURE = {
    MARIA: (
        "Where does [Maria Keller] live?",
        "by [Keller, Maria].",
        "[Maria L. Keller] said",
        "[Maria Luise Keller]",
        "Dr. [Maria Keller]'s house",
        "([MARIA KELLER])",
        "KELLER: [KELLER, MARIA]",
        "[maria.keller]@example.org",
        "[maria_keller].txt",
        "@[mariakeller]",
        "[Maria\n  Keller]",
        "Maria  and [Maria   Keller]",
        "[Maria Kel-\nler]",
        "[Mia Keller]",
        "[Keller Maria]",
        "https://example.org/[Maria%20Keller]",
        "**[Maria** Keller]",
        "[Maria&nbsp;Keller]",
        "[Máría Keller]",
        "where does [maria keller] live",
    ),
    JUERGEN: (
        "[Juergen Mueller-Luedenscheidt]",
        "[JURGEN MULLER LUDENSCHEIDT]",
        "[Jürgen Müllerlüdenscheidt]",
        "[Müller-Lüdenscheidt, Jürgen]",
        "[ju\u0308rgen mu\u0308ller-lu\u0308denscheidt]",
    ),
    ANNA: ("[Anna-Lena van der Berg]", "[Annalena van der Berg]", "[van der Berg, Anna Lena]"),
}
UNSURE = {
    "[M. Keller]": "initials",
    "m.k. or [mkeller]@example.org": "initials",
    "[Keller, M.]": "initials",
    "Frau [Keller] kam.": "surname",
    "[Maria] spoke.": "first-name",
    "[Marie Keller]": "spelling",
    "[Maria Kellers] Haus": "spelling",
    "[Maria Keller]-Brandt": "longer",
    "[Maria Keller] Street": "longer",
    "Anna [Maria Keller]": "longer",
    "Anna-[Maria Keller]": "longer",
    "Mark [Keller, Maria] Schmidt": "order",
    "[Maria\n\nKeller]": "apart",
}
OTHERS = (
    "Mark Keller",
    "A. Keller",
    "Keller Street",
    "Kellerstraße",
    "Keller-Brandt",
    "Maria Schmidt",
    "Kellermann",
)


def marked(text: str) -> str:
    return text.replace("[", "").replace("]", "")


def found(finder: PersonFinder, text: str) -> list[tuple[str, str | None]]:
    return [(text[span.start : span.end], span.doubt) for span in finder.spans(text)]


@pytest.mark.parametrize(
    ("finder", "text"), [(finder, text) for finder, texts in SURE.items() for text in texts]
)
def test_a_name_is_found_in_other_spellings(finder: PersonFinder, text: str) -> None:
    surely = [words for words, doubt in found(finder, marked(text)) if doubt is None]
    assert surely == [text[text.index("[") + 1 : text.index("]")]]


@pytest.mark.parametrize(("text", "doubt"), UNSURE.items())
def test_what_is_not_sure_has_its_doubt(text: str, doubt: str) -> None:
    assert found(MARIA, marked(text)) == [(text[text.index("[") + 1 : text.index("]")], doubt)]


@pytest.mark.parametrize("text", OTHERS)
def test_others_are_not_found(text: str) -> None:
    assert found(MARIA, f"Then {text} was there.") == []
