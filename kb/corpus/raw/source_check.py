"""Checks at the source: reads the file or the address of a document again, and says whether it still says a thing.

A statement is the sentence of a fact, or the lines of an answer. Where the document says the same sentence, with other
blanks or in another place, it still says so. Where the words around a value are there with other words between them, it
says something else. Nothing is stored.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.raw.files import FoundFiles, find_files
from colmlm.kb.corpus.raw.read import BY_LINE, BY_ROW
from colmlm.kb.corpus.raw.reading import read_raw
from colmlm.kb.texts.characters import DocumentLimits
from colmlm.kb.texts.sentences import sentence_around, sentence_ends

STILL_SAYS, SAYS_OTHERWISE, GONE, UNREACHABLE = "still_says", "says_otherwise", "gone", "unreachable"
OUTCOMES = (STILL_SAYS, SAYS_OTHERWISE, GONE, UNREACHABLE)
FEWEST_AROUND = 3  # words beside a value by which its sentence is known again
LONGEST_VALUE = 200  # characters of what may stand there in its place
_MISSING = re.compile(r"\b(404|410)\b")  # statuses of pages that are no more


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedStatement:
    """A statement of a document as stored: `value` at ``text[start:end]`` of its stored text.

    `uri` is where the document was read, a file of this machine or a page; None if that is not stored.
    """

    external_id: str
    uri: str | None
    text: str
    start: int
    end: int
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlace:
    """A place in the text of a document as it is read now."""

    uri: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCheck:
    """The result of a check: one of `OUTCOMES`, and the place and text (`says`) of the words found at the source.

    If the source is gone or cannot be read, there is a `cause` only; if the sentence is not found, there is no place.
    """

    outcome: str
    place: SourcePlace | None = None
    says: str | None = None
    cause: str | None = None

    @property
    def still_says(self) -> bool:
        """Tell whether the source still says the statement."""
        return self.outcome == STILL_SAYS


def check_source(
    said: SourcedStatement, *, allow_private: bool = False, limits: DocumentLimits | None = None
) -> SourceCheck:
    """Read the document's file or page again, and look for the statement. An unreadable source is an outcome, no error.

    Pages of private networks are read only with `allow_private`.
    """
    if said.uri is None:
        return SourceCheck(
            outcome=UNREACHABLE, cause="it is not known here from which file or address the document was read"
        )
    with tempfile.TemporaryDirectory(prefix="colmlm-source-") as folder:
        found = _find(said.uri, Path(folder), allow_private)
        if isinstance(found, SourceCheck):
            return found
        return _compare_document(said, said.uri, found, limits)


def _find(uri: str, folder: Path, allow_private: bool) -> FoundFiles | SourceCheck:
    parts = urlsplit(uri)
    if parts.scheme in ("http", "https"):
        from colmlm.kb.corpus.raw.web import Fetcher  # imports the HTTP library

        with Fetcher(folder, allow_private) as fetcher:
            found = fetcher.fetch([uri], lambda done, total: None)
    elif parts.scheme == "file":
        path = Path(unquote(parts.path))
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return SourceCheck(outcome=GONE, cause=f"no file {path}")
        except OSError as error:
            return SourceCheck(outcome=UNREACHABLE, cause=f"{path}: {error.strerror}")
        found = find_files([path])
    else:
        return SourceCheck(outcome=UNREACHABLE, cause=f"{uri} is neither a file nor a page")
    if not found.files:
        cause = found.refusals[0].reason if found.refusals else "it is a file of a kind that is not read"
        return SourceCheck(outcome=GONE if _MISSING.search(cause) else UNREACHABLE, cause=cause)
    return found


def _compare_document(
    said: SourcedStatement, uri: str, found: FoundFiles, limits: DocumentLimits | None
) -> SourceCheck:
    documents: list[AnnotatedDocument] = []
    causes: list[str] = []
    for parsed in read_raw(found.files, limits=limits):
        causes += [refusal.reason for refusal in parsed.refusals]
        if parsed.document is not None:
            documents.append(parsed.document)
    is_one = all(file.kind not in (*BY_LINE, *BY_ROW) for file in found.files)
    document = documents[0] if is_one and documents else _same_document(said, documents)
    if document is not None:
        return find_statement(said, document.text, uri)
    if documents:
        return SourceCheck(outcome=GONE, cause=f"{uri} has no document {said.external_id!r} any more")
    return SourceCheck(outcome=UNREACHABLE, cause=causes[0] if causes else f"{uri} has no text")


def _same_document(
    said: SourcedStatement, documents: Sequence[AnnotatedDocument]
) -> AnnotatedDocument | None:
    """Find the document of the statement among those of a file, by its id; None if no document has that id.

    Two ids are the same where one ends with the other after a slash: a sync names the path from its own folder on.
    """
    for document in documents:
        one, other = document.external_id, said.external_id
        if one == other or other.endswith(f"/{one}") or one.endswith(f"/{other}"):
            return document
    return None


def find_statement(said: SourcedStatement, text: str, uri: str) -> SourceCheck:
    """Find the sentence of a statement in a text, and compare what stands in the place of its value."""
    first, last = sentence_around(sentence_ends(said.text), said.start, said.end)
    before, after = said.text[first : said.start], said.text[said.end : last]
    whole = _nearest(f"{_pattern(before)}(?P<said>{_pattern(said.value)}){_pattern(after)}", text, said.start)
    if whole is not None:
        return _make_check(STILL_SAYS, whole, uri)
    if len(before.split()) + len(after.split()) >= FEWEST_AROUND:
        other = _nearest(
            f"{_pattern(before)}(?P<said>.{{1,{LONGEST_VALUE}}}?){_pattern(after)}", text, said.start
        )
        if other is not None:
            return _make_check(SAYS_OTHERWISE, other, uri)
    return SourceCheck(outcome=SAYS_OTHERWISE, cause="the sentence is not there any more")


def _make_check(outcome: str, found: re.Match[str], uri: str) -> SourceCheck:
    says = found["said"]
    start = found.start("said") + len(says) - len(says.lstrip())
    place = SourcePlace(uri=uri, start=start, end=start + len(says.strip()))
    return SourceCheck(outcome=outcome, place=place, says=" ".join(says.split()))


def _pattern(words: str) -> str:
    """Give a regular expression for these words with any blanks between them; redaction marks fit any words."""
    said = r"\s+".join(re.sub("█+", ".+?", re.escape(word)) for word in words.split())
    left, right = (r"\s*" if words[at : at + 1].isspace() else "" for at in (0, len(words) - 1))
    return f"{left}{said}{right}" if said else left


def _nearest(pattern: str, text: str, start: int) -> re.Match[str] | None:
    found = re.finditer(pattern, text, re.DOTALL)
    return min(found, key=lambda one: abs(one.start("said") - start), default=None)
