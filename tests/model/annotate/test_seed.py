"""The seed annotator over an HTTP endpoint that answers well and badly."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, read_annotated
from colmlm.model.annotate.checks import review, spans_of
from colmlm.model.annotate.config import ResultsUnusable
from colmlm.model.annotate.pipeline import PROMPT, Results, SeedRun, annotate_document, estimate_cost
from colmlm.model.lm.chat_endpoint import Chat, ConversationRefused, Endpoint, EndpointUnusable
from tests.model.annotate.chat_server import ChatServer, chat_server
from tests.places import ROOT

KEY = "sk-secret-of-the-test"
WORDS = 45  # tokens of a chunk in these tests


@pytest.fixture
def chats() -> Iterator[ChatServer]:
    with chat_server() as running:
        yield running


@pytest.fixture
def chat(chats: ChatServer) -> Iterator[Chat]:
    endpoint = Endpoint(base_url=chats.url, model="m", api_key=KEY, attempts=5, first_wait=0.001)
    with Chat(endpoint) as opened:
        yield opened


def document(name: str = "Lundvik", sentences: int = 1) -> AnnotatedDocument:
    """Makes a document with a year in every sentence; the last sentence names Zora."""
    lines = [f"The {n}th hall of {name} 🏛 opened in {1900 + n} & closed.\n" for n in range(sentences)]
    return AnnotatedDocument(name.lower(), f"  \n{''.join(lines)}\nZora came late.  ", title=name)


def saved(path: Path) -> list[AnnotatedDocument]:
    return [parsed.document for parsed in read_annotated(path) if parsed.document is not None]


def rejects(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# Each point of the paper's prompt (appendix B), and the words of ours that make it.
POINTS = {
    "someone would search for it": "whether anyone would type that search",
    "a question, a snippet, and the verbatim span": "stand the words of the passage, character by character",
    "the narrowest self-contained words": "Take the narrowest words",
    "from the bare token to the fewest words more": "Imagine it alone on a card",
    "no under-specified question": "**Too little is said.**",
    "no over-specified question": "**Too much is said.**",
    "the test of a question": "Cover the tagged words and read the question alone",
    "names in the middle of sentences": "**Names in passing**",
    "short numbers and times": "**Short figures and times**",
    "what a named thing does": "**What a named thing does**",
    "each sentence is swept, roles of importance stay": "go through who, what, when, where and how many",
    "rule 1": "**Nothing from later.**",
    "rule 2": "**Whole tuples.**",
    "rule 3": "**Questions for strangers.**",
    "rule 4": "**Definitions of names alone.**",
    "rule 5": "**One fact, one tag.**",
    "rule 6": "**Nothing that can be concluded.**",
    "rule 7": "**Nothing that goes without saying.**",
    "rule 8": "**Nothing of this document alone.**",
    "rule 9": "**Only what weighs something.**",
    "paraphrase 1": "It holds the answer to the question.",
    "paraphrase 2": "It is no sentence and no clause",
    "paraphrase 3": "It does not look copied",
    "paraphrase 4": "about as long as the tagged words",
    "paraphrase 5": "Names, numbers and dates keep their content",
    "paraphrase 6": "Items of a list change their order",
    "paraphrase 7": "Where there is no sensible other form",
    "paraphrase 8": "8. Vary.",
}


def test_the_prompt_makes_each_point_of_the_papers_in_words_of_its_own() -> None:
    prompt = PROMPT.read_text(encoding="utf-8")
    assert [point for point, words in POINTS.items() if words not in prompt] == []
    paper = ROOT.parent / "shared" / "paper" / "co-lmlm.tex"
    if paper.is_file():
        theirs = paper.read_text(encoding="utf-8").partition("Golden Dataset")[2].split()
        runs = {tuple(theirs[n : n + 8]) for n in range(len(theirs))}
        ours = prompt.split()
        assert [ours[n : n + 8] for n in range(len(ours)) if tuple(ours[n : n + 8]) in runs] == []


def test_a_long_document_is_one_conversation_and_its_spans_stand_in_the_document(
    chats: ChatServer, chat: Chat
) -> None:
    source = document(sentences=12)
    reviewed, usage = annotate_document(chat, source, chunk_tokens=WORDS)
    assert reviewed.document.text == source.text and reviewed.rejected == ()
    assert [fact.value for fact in reviewed.document.facts] == [str(1900 + n) for n in range(12)]
    assert all(source.text[fact.start : fact.end] == fact.value for fact in reviewed.document.facts)
    assert {fact.question for fact in reviewed.document.facts} == {"When did Lundvik open?"}
    assert usage.requests == len(chats.requests) > 3 and usage.repairs == 0
    last = chats.requests[-1]
    assert [message["role"] for message in last] == ["system"] + ["user", "assistant"] * (
        usage.requests - 1
    ) + ["user"]
    assert " ".join(m["content"] for m in last if m["role"] == "user").split() == source.text.split()
    assert all("<FACT" in m["content"] for m in last if m["role"] == "assistant")
    assert usage.tokens_in > 0 and set(chats.keys) == {f"Bearer {KEY}"}


def test_what_passes_by_itself_is_waited_for(chats: ChatServer, chat: Chat) -> None:
    chats.commands += ["429", "503", "cut", "html"]
    reviewed, usage = annotate_document(chat, document())
    assert len(chats.requests) == 5 and usage.requests == 1
    assert [fact.value for fact in reviewed.document.facts] == ["1900"]


def test_what_does_not_pass_ends_with_cause_and_remedy_and_never_with_the_key(
    chats: ChatServer, chat: Chat
) -> None:
    chats.commands += ["500"] * 5
    with pytest.raises(EndpointUnusable, match=r"status 500.*tried 5 times.*later"):
        annotate_document(chat, document())
    for status, remedy in (("401", "COLMLM_ANNOTATOR_API_KEY"), ("404", "--model"), ("302", "--url")):
        chats.commands.append(status)
        with pytest.raises(EndpointUnusable, match=remedy) as raised:
            annotate_document(chat, document())
        assert KEY not in str(raised.value) and "***" in str(raised.value)
    assert KEY not in repr(chat.endpoint)


def test_nobody_at_the_other_end_is_said_so(chat: Chat) -> None:
    with (
        Chat(Endpoint(base_url="http://127.0.0.1:9/v1", model="m", attempts=2, first_wait=0.001)) as deaf,
        pytest.raises(EndpointUnusable, match="refused"),
    ):
        deaf.reply([])


@pytest.mark.parametrize("command", ["altered", "unclosed", "length", "quoted"])
def test_a_broken_chunk_is_asked_for_once_more(chats: ChatServer, chat: Chat, command: str) -> None:
    chats.commands.append(command)
    reviewed, usage = annotate_document(chat, document())
    assert usage.repairs == 1 and len(reviewed.document.facts) == 1 and reviewed.rejected == ()
    assert "cannot be used" in chats.requests[1][-1]["content"]


def test_a_code_fence_is_taken_off(chats: ChatServer, chat: Chat) -> None:
    chats.commands.append("fenced")
    reviewed, usage = annotate_document(chat, document())
    assert usage.repairs == 0 and len(reviewed.document.facts) == 1


def test_a_chunk_that_stays_broken_is_given_up_and_the_rest_goes_on(chats: ChatServer, chat: Chat) -> None:
    chats.commands += ["behave", "altered", "unclosed"]
    source = document(sentences=12)
    reviewed, _ = annotate_document(chat, source, chunk_tokens=WORDS)
    (given_up,) = reviewed.rejected
    assert given_up.code == "malformed" and given_up.reason.startswith("Chunk given up.")
    assert "opened in" in source.text[given_up.start : given_up.end] and "<FACT" in given_up.value
    missing = {str(1900 + n) for n in range(12)} - {fact.value for fact in reviewed.document.facts}
    assert missing == set(re.findall(r"\d{4}", source.text[given_up.start : given_up.end]))
    assert source.text[given_up.start : given_up.end] == chats.requests[-1][4]["content"]  # no broken example


def test_forward_references_are_rejected_and_their_facts_stay(chats: ChatServer, chat: Chat) -> None:
    chats.commands.append("forward")
    reviewed, _ = annotate_document(chat, document())
    (rejected,) = reviewed.rejected
    assert rejected.code == "forward" and "'Zora'" in rejected.reason
    assert [(fact.value, fact.question) for fact in reviewed.document.facts] == [("1900", None)]


def test_a_text_with_tags_of_its_own_is_sent_to_nobody(chats: ChatServer, chat: Chat) -> None:
    with pytest.raises(ConversationRefused):
        annotate_document(chat, AnnotatedDocument("x", "a <FACT>b</FACT>"))
    assert chats.requests == []


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_run_that_was_ended_goes_on_and_asks_for_nothing_twice(
    chats: ChatServer, chat: Chat, tmp_path: Path, concurrency: int
) -> None:
    documents = [document(name) for name in ("Ask", "Bo", "Cy", "Da", "Eja", "Flo")]
    path = tmp_path / "seed.jsonl"
    chats.commands += ["behave", "behave", "altered", "altered", "401"]
    with Results(path) as results, pytest.raises(EndpointUnusable):
        SeedRun(chat, results, concurrency).run(documents)
    before, asked = saved(path), len(chats.requests)
    assert 0 < len(before) < len(documents)
    with path.open("ab") as file:
        file.write(b'{"id": "torn')
    with path.with_name("seed.rejects.jsonl").open("a", encoding="utf-8") as file_of_rejects:
        file_of_rejects.write('{"document": "unfinished", "code": "span"}\n{"doc')
    with Results(path) as results, Chat(chat.endpoint) as another:
        assert results.num_done == len(before)
        usage = SeedRun(another, results, concurrency).run(documents)
    assert saved(path)[: len(before)] == before
    assert sorted(d.external_id for d in saved(path)) == ["ask", "bo", "cy", "da", "eja", "flo"]
    assert usage.requests == len(chats.requests) - asked == len(documents) - len(before)
    kept = rejects(path.with_name("seed.rejects.jsonl"))
    assert {one["code"] for one in kept} <= {"altered"} and len(kept) <= 1, kept


def test_a_document_that_the_endpoint_refuses_is_a_reject_and_tried_again_next_time(
    chats: ChatServer, chat: Chat, tmp_path: Path
) -> None:
    documents = [document(name) for name in ("Ask", "Bo", "Cy")]
    path = tmp_path / "seed.jsonl"
    chats.commands += ["behave", "413"]
    with Results(path) as results:
        SeedRun(chat, results).run(documents)
    assert [d.external_id for d in saved(path)] == ["ask", "cy"]
    (refused,) = rejects(path.with_name("seed.rejects.jsonl"))
    assert (refused["document"], refused["code"]) == ("bo", "refused")
    assert "413" in str(refused["reason"]) and "or name another --model" in str(refused["reason"])
    with Results(path) as results:
        SeedRun(chat, results).run(documents)
    assert len(saved(path)) == 3 and rejects(path.with_name("seed.rejects.jsonl")) == []
    chats.commands += ["400"] * 3
    with (
        Results(tmp_path / "b.jsonl") as results,
        pytest.raises(EndpointUnusable, match="refused 3 documents"),
    ):
        SeedRun(chat, results).run(documents)


def test_results_belong_to_one_run_and_to_one_text(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with Results(path) as results:
        results.append(review(document()))
        assert results.has(document())
        with pytest.raises(ResultsUnusable, match="another process"):
            Results(path)
        with pytest.raises(ResultsUnusable, match="another text"):
            results.has(document(sentences=2))
    path.write_text('{"some": "thing"}\n')
    with pytest.raises(ResultsUnusable, match="line 1"):
        Results(path)
    assert path.read_text() == '{"some": "thing"}\n'


def test_the_estimate_is_what_is_asked(chats: ChatServer, chat: Chat) -> None:
    _, used = annotate_document(chat, document())
    short = estimate_cost([document()])
    assert (short.chunks, short.tokens_in) == (1, used.tokens_in)
    _, used = annotate_document(chat, document(sentences=30), chunk_tokens=WORDS)
    long = estimate_cost([document(sentences=30)], chunk_tokens=WORDS)
    assert long.chunks == used.requests and 0.5 < long.tokens_in / used.tokens_in < 2
    assert long.price(1e6, 0) == long.tokens_in


def test_the_examples_that_the_model_is_shown_pass_the_checks() -> None:
    blocks = re.findall(
        r"^(Passage|Answer):\n\n((?:    .*\n)+)", PROMPT.read_text(encoding="utf-8"), re.MULTILINE
    )
    pairs = [
        (passage.replace("    ", ""), answer.replace("    ", ""))
        for (_, passage), (_, answer) in zip(blocks[::2], blocks[1::2], strict=True)
    ]
    assert len(pairs) == 3
    for passage, answer in pairs:
        spans = spans_of(passage, answer)
        assert isinstance(spans, tuple), spans
        assert review(AnnotatedDocument("example", passage, spans)).rejected == ()
