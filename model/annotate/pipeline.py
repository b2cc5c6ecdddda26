"""Annotate raw documents with the two light annotators (section 3.3): spans, then a question for each."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, check_spans, to_record
from colmlm.kb.texts.sentences import sentence_ends
from colmlm.model.annotate.checks import (
    Fault,
    RejectedAnnotation,
    Review,
    ReviewedDocument,
    review,
    spans_of,
)
from colmlm.model.annotate.config import ResultsUnusable
from colmlm.model.annotate.spans import SpannedText, Wholes, narrow_span
from colmlm.model.lm.chat_endpoint import (
    MOST_REFUSED,
    TOKEN_PIECE,
    Chat,
    ConversationRefused,
    EndpointUnusable,
    EndpointUsage,
    Message,
    Reply,
    converse_each,
    repair_messages,
    rough_tokens,
    without_fence,
)

BATCH = 8  # the number of documents that are worked on together

Offsets = tuple[int, int]


class QuestionAndAnswer(Protocol):
    """A question about a span, and the answer as a snippet."""

    @property
    def question(self) -> str: ...

    @property
    def answer(self) -> str: ...


class SpanFinder(Protocol):
    """Whatever finds the fact spans of texts as offsets in code points, sorted and without overlap."""

    def spans(self, texts: Sequence[str]) -> Sequence[Sequence[Offsets]]: ...


class QuestionWriter(Protocol):
    """Whatever writes a question and an answer for each span of each text, or None (`model.annotate.annotators`)."""

    def annotate(self, passages: Sequence[SpannedText]) -> Sequence[Sequence[QuestionAndAnswer | None]]: ...


class QuestionVerifier(Protocol):
    """Whatever gives for each span a fault if its question leads to another place, or None (`model.reader.reader`)."""

    def verify(
        self, asked: Sequence[tuple[AnnotatedDocument, Sequence[FactSpan]]]
    ) -> Sequence[Sequence[Fault | None]]: ...


@dataclass(frozen=True, slots=True)
class Annotator:
    """Both annotators as one that annotates documents; without a question generator their facts have no questions.

    Every question goes through `model.annotate.checks.Review`, and where there is a `verifier` must lead it back to its
    span. `drop_unquestioned` drops the facts whose question was rejected or not written; without it they stay, and are
    found by their context. `batch` documents are worked on together.
    """

    span_annotator: SpanFinder
    question_generator: QuestionWriter | None = None
    drop_unquestioned: bool = False
    verifier: QuestionVerifier | None = None
    batch: int = BATCH

    def annotate(
        self, documents: Iterable[AnnotatedDocument], skip: Callable[[AnnotatedDocument], bool] | None = None
    ) -> Iterator[ReviewedDocument]:
        """Yield the documents with their facts, in order; facts that they had before are discarded.

        Documents for which `skip` is true are left out. The spans of a batch are found together, and batches are made
        of all documents, so that a document gets the same facts whichever of its neighbours were done before.
        """
        remaining = iter(documents)
        while batch := list(islice(remaining, self.batch)):
            wanted = [n for n, document in enumerate(batch) if skip is None or not skip(document)]
            if wanted:
                found = self.span_annotator.spans([document.text for document in batch])
                yield from self._review([(batch[n], found[n]) for n in wanted])

    def _review(
        self, found: Sequence[tuple[AnnotatedDocument, Sequence[Offsets]]]
    ) -> Iterator[ReviewedDocument]:
        """Write questions for the found spans; yield each document with the annotations that pass the checks."""
        sound = [_with_spans(document, spans) for document, spans in found]
        reviews = [Review(document) for document in self._with_questions([one for one, _ in sound])]
        faults: Sequence[Sequence[Fault | None]] = [()] * len(reviews)
        if self.verifier is not None:
            faults = self.verifier.verify([(one.document, one.asked) for one in reviews])
        drops = self.drop_unquestioned and self.question_generator is not None
        for one, (_, refused), others in zip(reviews, sound, faults, strict=True):
            reviewed = one.finish(drop_unquestioned=drops, faults=others)
            yield ReviewedDocument(reviewed.document, refused + reviewed.rejected)

    def _with_questions(self, documents: Sequence[AnnotatedDocument]) -> list[AnnotatedDocument]:
        """Give the documents with the question and answer that the generator wrote for each span, if it wrote them."""
        if self.question_generator is None or not any(document.facts for document in documents):
            return list(documents)
        passages = [
            SpannedText(one.text, [(span.start, span.end) for span in one.facts], one.title)
            for one in documents
        ]
        written = self.question_generator.annotate(passages)
        return [
            replace(document, facts=tuple(map(_with_question, document.facts, asked)))
            for document, asked in zip(documents, written, strict=True)
        ]


def _with_spans(
    document: AnnotatedDocument, found: Sequence[Offsets]
) -> tuple[AnnotatedDocument, tuple[RejectedAnnotation, ...]]:
    """Give the document with those found spans that a corpus accepts, and the others as rejects."""
    spans = [FactSpan(start, end, document.text[start:end]) for start, end in found]
    sound, refusals = check_spans(document.external_id, document.text, spans)
    rejected = tuple(
        RejectedAnnotation(r.document, r.offset, r.offset, "span", f"The span is refused: {r.reason}.")
        for r in refusals
    )
    return replace(document, facts=tuple(sound)), rejected


def _with_question(span: FactSpan, written: QuestionAndAnswer | None) -> FactSpan:
    if written is None:
        return span
    return replace(span, question=written.question.strip() or None, answer=written.answer.strip() or None)


# An annotated corpus that grows by whole documents, with a file of rejects beside it.
#
# A run that was interrupted, even by a kill, continues where it was: an incomplete last line is cut off,
# documents that are in the file are skipped, and rejects of a document that is not in it yet are dropped, as
# it is annotated again.


def rejects_beside(path: Path) -> Path:
    """Give the path of the rejects beside a file of results: ``mine.jsonl`` has ``mine.rejects.jsonl``."""
    return path.with_name(f"{path.name.removesuffix('.jsonl')}.rejects.jsonl")


class Results:
    """An annotated corpus and its file of rejects, open to append by one process at a time. A context manager.

    `num_done` counts the documents in the corpus. Raises `ResultsUnusable` if the file is no annotated corpus, or
    another process writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.rejects_path = path, rejects_beside(path)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._texts = dict(self._whole_lines())
        except BlockingIOError:
            self._file.close()
            raise ResultsUnusable(
                f"{path}: another process writes it. Wait for it, or name another."
            ) from None
        except BaseException:  # also where it is interrupted: the open file holds the lock
            self._file.close()
            raise
        self._rejects = self._open_rejects()

    @property
    def num_done(self) -> int:
        return len(self._texts)

    def has(self, document: AnnotatedDocument) -> bool:
        """Tell whether the document is in the file. Raises `ResultsUnusable` if it is there with another text."""
        known = self._texts.get(document.external_id)
        if known is not None and known != _digest(document.text):
            raise ResultsUnusable(
                f"{self.path}: it has {document.external_id!r} with another text, which has changed since. "
                "Name another file, or remove this one to annotate everything anew."
            )
        return known is not None

    def append(self, reviewed: ReviewedDocument) -> None:
        """Add a document. Its rejects are written first, so that a document in the file has all its rejects."""
        self.reject(*reviewed.rejected)
        document = reviewed.document
        self._file.write(json.dumps(to_record(document), ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        self._texts[document.external_id] = _digest(document.text)

    def reject(self, *rejected: RejectedAnnotation) -> None:
        """Add rejects alone: a document that could not be annotated is tried again by the next run."""
        for one in rejected:
            self._rejects.write(json.dumps(asdict(one), ensure_ascii=False).encode() + b"\n")
        self._rejects.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._file, self._rejects:  # both are closed, also where there is no space for the rest of one
            for file in (self._rejects, self._file):
                os.fsync(file.fileno())

    def _whole_lines(self) -> Iterator[tuple[str, str]]:
        """Yield each document's id and its text's digest; at last cut off the file what follows its last line end."""
        self._file.seek(0)
        reached = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            reached += len(line)
            record = _record(line)
            if not isinstance(record.get("id"), str) or not isinstance(record.get("text"), str):
                raise ResultsUnusable(
                    f"{self.path}: line {number} is no annotated document. Name another file."
                )
            yield record["id"], _digest(record["text"])
        self._file.truncate(reached)

    def _open_rejects(self) -> Any:
        """Open the file of rejects to append, without the rejects of documents that are not in the corpus."""
        if self.rejects_path.exists():
            lines = self.rejects_path.read_bytes().splitlines(keepends=True)
            kept = [line for line in lines if _record(line).get("document") in self._texts]
            if kept != lines:
                scratch = self.rejects_path.with_suffix(".tmp")
                scratch.write_bytes(b"".join(kept))
                os.replace(scratch, self.rejects_path)
        return self.rejects_path.open("ab")


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# The seed annotator: a large model behind a chat endpoint marks the facts of documents (section 3.3, appendix).
#
# Each document is one conversation. The specification is the system prompt; the messages are the chunks of the
# document and the annotated chunks that came back, since a model marks a long text worse and worse if it gets it at
# once. No reply is trusted: without its tags it must equal the chunk, to the character, and every question and answer
# goes through `model.annotate.checks`.

# A document cut into chunks of so many tokens, as the seed annotator reads it (appendix, annotation prompt).

CHUNK_TOKENS = 512


def text_chunks(text: str, size: int = CHUNK_TOKENS) -> Iterator[tuple[int, int]]:
    """Yield the offsets of chunks of at most `size` tokens, in order, without the blanks between them.

    A chunk ends where a sentence ends. Only a sentence that is too long by itself is cut, at a blank if there is one.
    """
    start = reached = tokens = 0
    for end in sentence_ends(text):
        here = rough_tokens(text[reached:end])
        if tokens and tokens + here > size:
            yield from _strip_chunk(text, start, reached)
            start, tokens = reached, 0
        while here > size:
            cut = _find_cut(text, start, end, size)
            yield from _strip_chunk(text, start, cut)
            start, here = cut, rough_tokens(text[cut:end])
        tokens += here
        reached = end
    yield from _strip_chunk(text, start, reached)


def _strip_chunk(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    piece = text[start:end]
    if piece.strip():
        yield start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())


def _find_cut(text: str, start: int, end: int, size: int) -> int:
    """Find where to cut a sentence that is too long: after `size` tokens, at the blank before that if there is one."""
    pieces = TOKEN_PIECE.finditer(text, start, end)
    limit = next(found.end() for number, found in enumerate(pieces, start=1) if number == size)
    blank = max(text.rfind(" ", start, limit), text.rfind("\n", start, limit))
    return blank + 1 if blank > start else limit


PROMPT = Path(__file__).with_name("seed_prompt.md")
_TAG = re.compile(r"</?FACT\b")


def system_prompt(title: str | None) -> str:
    """Give the system prompt of a document's conversation: the specification, and the document's title if any."""
    specification = PROMPT.read_text(encoding="utf-8")
    return f"{specification}\n## The document\n\nIts title: {title}\n" if title else specification


def annotate_document(
    chat: Chat,
    document: AnnotatedDocument,
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    drop_unquestioned: bool = False,
) -> tuple[ReviewedDocument, EndpointUsage]:
    """Have the model annotate a document; give it with the facts that pass the checks and the rejects, and the usage.

    A chunk with an unusable reply is asked for once more; if that fails too, it has no facts, and the reply is
    rejected. Raises what `Chat.reply` raises, and `ConversationRefused` for a text that holds FACT tags itself.
    """
    if _TAG.search(document.text):
        raise ConversationRefused(
            "the text itself holds FACT tags, so nobody could tell them from the annotator's; remove them"
        )
    conversation = _Conversation(chat, [{"role": "system", "content": system_prompt(document.title)}])
    spans: list[FactSpan] = []
    rejected: list[RejectedAnnotation] = []
    wholes = Wholes(document.text)
    for start, end in text_chunks(document.text, chunk_tokens):
        found, reply = conversation.annotate_chunk(document.text[start:end])
        if isinstance(found, Fault):
            rejected.append(
                RejectedAnnotation(
                    document.external_id, start, end, found.code, f"Chunk given up. {found.reason}", reply
                )
            )
            continue
        spans += (_place_span(document.text, span, start, wholes) for span in found)
    rejected += (
        RejectedAnnotation(document.external_id, s.start, s.end, "form", "The tag has no question.", s.value)
        for s in spans
        if s.question is None
    )
    reviewed = review(replace(document, facts=tuple(spans)), drop_unquestioned=drop_unquestioned)
    return ReviewedDocument(reviewed.document, (*rejected, *reviewed.rejected)), conversation.usage


def _place_span(text: str, span: FactSpan, offset: int, wholes: Wholes) -> FactSpan:
    """Move the span of a chunk to its place in the document, without blanks at its ends."""
    start, end = narrow_span(text, span.start + offset, span.end + offset, wholes)
    return replace(span, start=start, end=end, value=text[start:end])


class _Conversation:
    """The conversation with the model about one document; unusable replies do not stay in its messages."""

    def __init__(self, chat: Chat, messages: list[Message]) -> None:
        self.chat, self.messages, self.usage = chat, messages, EndpointUsage()

    def annotate_chunk(self, chunk: str) -> tuple[tuple[FactSpan, ...] | Fault, str]:
        """Have the model annotate a chunk; give its spans (or the fault of the second reply too) and the last reply."""
        self.messages.append({"role": "user", "content": chunk})
        reply = self._ask(self.messages)
        found = _read_spans(chunk, reply)
        if isinstance(found, Fault):
            self.usage.repairs += 1
            reply = self._ask([*self.messages, *repair_messages(reply.text, _repair_words(found))])
            found = _read_spans(chunk, reply)
        # After two unusable replies the bare chunk is kept: a broken example would lead the model to break the next.
        said = chunk if isinstance(found, Fault) else _take_out_of_fence(chunk, reply.text)
        self.messages.append({"role": "assistant", "content": said})
        return found, reply.text

    def _ask(self, messages: list[Message]) -> Reply:
        reply = self.chat.reply(messages)
        self.usage.add(EndpointUsage(1, 0, reply.tokens_in, reply.tokens_out))
        return reply


def _read_spans(chunk: str, reply: Reply) -> tuple[FactSpan, ...] | Fault:
    if not reply.finished:
        return Fault("malformed", "The reply was cut off at the endpoint's limit of tokens.")
    return spans_of(chunk, _take_out_of_fence(chunk, reply.text))


def _take_out_of_fence(chunk: str, reply: str) -> str:
    """Strip the code fence around a reply, unless the chunk itself begins with a fence."""
    return reply.strip() if chunk.startswith("```") else without_fence(reply)


def _repair_words(fault: Fault) -> str:
    return (
        f"That cannot be used. {fault.reason} Answer with the passage once more: copy it exactly, "
        "character by character, and put the tags in. If you are not sure of a tag, leave it out."
    )


@dataclass(slots=True)
class SeedRun:
    """A run in which a large model annotates documents, `concurrency` at a time; each is kept once it is done."""

    chat: Chat
    results: Results
    concurrency: int = 1
    chunk_tokens: int = CHUNK_TOKENS
    drop_unquestioned: bool = False
    on_document: Callable[[ReviewedDocument], None] | None = None
    usage: EndpointUsage = field(init=False)
    refused: int = field(init=False)  # in a row

    def run(self, documents: Iterable[AnnotatedDocument]) -> EndpointUsage:
        """Annotate the documents that are not in the results. If one fails, those in progress are finished and kept.

        A document that the endpoint refuses is a reject, and the next run tries it again; after three refusals in a row
        `EndpointUnusable` is raised.
        """
        self.usage, self.refused = EndpointUsage(), 0
        converse_each(
            (document for document in documents if not self.results.has(document)),
            self._annotate_one,
            self._keep_result,
            concurrency=self.concurrency,
            stop=self.chat.stop,
        )
        return self.usage

    def _annotate_one(self, document: AnnotatedDocument) -> tuple[ReviewedDocument, EndpointUsage]:
        return annotate_document(
            self.chat, document, chunk_tokens=self.chunk_tokens, drop_unquestioned=self.drop_unquestioned
        )

    def _keep_result(
        self, document: AnnotatedDocument, future: Future[tuple[ReviewedDocument, EndpointUsage]]
    ) -> None:
        """Keep the result of a document. Raises `EndpointUnusable` where too many in a row were refused."""
        try:
            reviewed, used = future.result()
        except ConversationRefused as error:
            self.results.reject(
                RejectedAnnotation(
                    document.external_id, 0, len(document.text), "refused", f"Not annotated: {error}."
                )
            )
            self.refused += 1
            if self.refused >= MOST_REFUSED:
                raise EndpointUnusable(
                    self.chat.url, f"it refused {self.refused} documents one after the other",
                    f"See {self.results.rejects_path}; check --model.",
                ) from error  # fmt: skip
            return
        self.refused = 0
        self.usage.add(used)
        self.results.append(reviewed)
        if self.on_document is not None:
            self.on_document(reviewed)


# The estimated cost of a seed annotation, given before the first request is sent.

# A reply has the chunk's own tokens and, with a fact for every 25 of them, some 32 for each tag with its two texts.
GROWTH = 2.3


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated cost, with one request per chunk; repairs and failed attempts come on top. Tokens are estimates."""

    documents: int
    characters: int
    chunks: int
    tokens_in: int
    tokens_out: int

    def price(self, per_million_in: float, per_million_out: float) -> float:
        """Give the price, in the currency of the two prices per million tokens."""
        return (self.tokens_in * per_million_in + self.tokens_out * per_million_out) / 1_000_000


def estimate_cost(documents: Iterable[AnnotatedDocument], *, chunk_tokens: int = CHUNK_TOKENS) -> Estimate:
    """Estimate the cost of annotating documents; requests repeat the conversation, so a long document costs most."""
    num_documents = characters = num_chunks = tokens_in = tokens_out = 0
    for document in documents:
        num_documents += 1
        characters += len(document.text)
        conversation = rough_tokens(system_prompt(document.title))
        for start, end in text_chunks(document.text, chunk_tokens):
            asked = rough_tokens(document.text[start:end])
            answered = round(asked * GROWTH)
            num_chunks += 1
            tokens_in += conversation + asked
            tokens_out += answered
            conversation += asked + answered
    return Estimate(num_documents, characters, num_chunks, tokens_in, tokens_out)
