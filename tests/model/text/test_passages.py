"""Passages: so many words each, found by their words, put before the prompt in the paper's form."""

from __future__ import annotations

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.text.passages import PassageChoice, PassageIndex, passages_of, prompt_with_passages

DOCUMENTS = [
    AnnotatedDocument(
        "peru", "Lima is the capital. " * 30 + "The Amazon rises in the mountains.", title="Peru"
    ),
    AnnotatedDocument("chile", "Santiago lies below the Andes."),
    AnnotatedDocument("none", " "),
]


def test_a_passage_has_a_hundred_words_and_its_title():
    passages = list(passages_of(DOCUMENTS))
    assert [len(passage.split()) for passage in passages] == [101, 27, 5]
    assert passages[1].startswith("Peru: ") and passages[1].endswith("The Amazon rises in the mountains.")
    joined = " ".join(p.removeprefix("Peru: ") for p in passages[:2])
    assert joined == " ".join(DOCUMENTS[0].text.split())


def test_a_passage_may_stand_without_its_title():
    assert next(passages_of(DOCUMENTS, titled=False)) == next(passages_of(DOCUMENTS)).removeprefix("Peru: ")


def test_the_passages_that_share_words_are_found_best_first():
    index = PassageIndex(passages_of(DOCUMENTS, words=10))
    amazon, santiago, nothing, empty = index.search(
        ["Where does the Amazon rise?", "What lies below Santiago and the Andes?", "xyzzy", ""]
    )
    assert len(amazon) <= 4 and "Amazon" in amazon[0]
    assert santiago[0] == "Santiago lies below the Andes."
    assert nothing == [] and empty == []
    assert index.search([]) == []


def test_an_index_of_nothing_finds_nothing():
    assert PassageIndex([]).search(["Who?"]) == [[]]
    assert PassageIndex(["the of and"]).search(["Who?"]) == [[]]


def test_the_prompt_stands_behind_its_passages():
    assert prompt_with_passages("Question: Who?\nAnswer:", ["a b", "c"]) == (
        "Answer the question or complete the prompt based on the given document. The following are given documents: "
        "\n a b\nc \n\n Question: Who?\nAnswer: \n The answer is"
    )
    assert prompt_with_passages("Who?", []) == "Who?"


def test_passages_are_chosen_and_put_as_asked():
    prompt, found, every = "Question: Who?\nAnswer:", ["a", "b", "c", "d"], ["e", "d", "c", "b", "a", "f"]
    papers = PassageChoice().prompt(prompt, found, every)
    assert papers == prompt_with_passages(prompt, found)
    assert PassageChoice(2).prompt(prompt, found, every) == prompt_with_passages(prompt, ["a", "b"])
    assert PassageChoice(2, best_last=True).prompt(prompt, found, every) == prompt_with_passages(
        prompt, ["b", "a"]
    )
    bare = PassageChoice(1, no_instruction=True, no_ending=True)
    assert bare.prompt(prompt, found, every) == f"a\n{prompt}"
    assert (
        PassageChoice(1, no_instruction=True).prompt(prompt, found, every) == f"a\n{prompt} \n The answer is"
    )
    unended = PassageChoice(1, no_ending=True).prompt(prompt, found, every)
    assert f"{unended} \n The answer is" == prompt_with_passages(prompt, ["a"])
    others = PassageChoice(2, at_random=True, no_instruction=True, no_ending=True).prompt(
        prompt, found, every
    )
    assert set(others.removesuffix(prompt).split()) == {"e", "f"}
    alone = PassageChoice(0).prompt(prompt, found, every)
    assert alone.startswith("Answer the question") and alone.endswith(f"{prompt} \n The answer is")
    assert (
        PassageChoice().prompt(prompt, [], every)
        == PassageChoice(0, no_instruction=True, no_ending=True).prompt(prompt, [], every)
        == prompt
    )
