"""Raw files as documents without facts. What is stored is the text that this gives, to the character."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kb.corpus import AnnotatedDocument, Parsed, Refusal
from kb.raw.files import RawFile
from kb.raw.records import read_records
from kb.raw.text import MOST_BYTES, Unreadable, declared_encoding, decode, normal


def read_raw(
    files: Sequence[RawFile], *, encoding: str | None = None, on_bytes: Callable[[int], None] | None = None
) -> Iterator[Parsed]:
    """The documents of these files, in order; a file that is none is one refusal.

    `encoding` is that of files which do not say theirs, by default UTF-8. A document under an id that was there before
    is refused. `on_bytes` hears how many bytes of all the files were read.
    """
    seen: set[str] = set()
    before = 0
    for file in files:
        for parsed in _read(file, encoding, _further(before, on_bytes)):
            document = parsed.document
            if document is not None and document.external_id in seen:
                reason = (
                    "a second document with this id; name a folder above both, or add them to two corpora"
                )
                yield Parsed(None, (Refusal(document.external_id, 0, reason),))
                continue
            if document is not None:
                seen.add(document.external_id)
            yield parsed
        before += file.size
        if on_bytes is not None:
            on_bytes(before)


def _further(before: int, on_bytes: Callable[[int], None] | None) -> Callable[[int], None]:
    return lambda reached: on_bytes(before + reached) if on_bytes is not None else None


def _read(file: RawFile, encoding: str | None, on_bytes: Callable[[int], None]) -> Iterator[Parsed]:
    try:
        if file.kind == "records":
            yield from read_records(file.path, on_bytes)
        else:
            yield Parsed(_document(file, encoding))
    except Unreadable as error:
        yield Parsed(None, (Refusal(file.external_id, 0, str(error)),))
    except OSError as error:
        yield Parsed(None, (Refusal(file.external_id, 0, f"cannot be read: {error.strerror or error}"),))


def _document(file: RawFile, encoding: str | None) -> AnnotatedDocument:
    if file.size > MOST_BYTES:
        raise Unreadable(f"{file.size} bytes, and a document has at most {MOST_BYTES}; split it")
    data = file.path.read_bytes()
    if not data.strip():
        raise Unreadable("the file is empty")
    title, text = _text(file.kind, data, encoding)
    return AnnotatedDocument(
        file.external_id, normal(text), title=title or _named(file), uri=file.path.absolute().as_uri()
    )


def _text(kind: str, data: bytes, encoding: str | None) -> tuple[str | None, str]:
    if kind == "pdf":
        from kb.raw.pdf import read_pdf  # PDFium is a shared library of megabytes

        return read_pdf(data)
    if kind == "html":
        from kb.raw.html import read_html

        return read_html(decode(data, encoding or declared_encoding(data)))
    text = decode(data, encoding)
    if kind == "markdown":
        from kb.raw.markdown import read_markdown

        return read_markdown(text)
    return None, text


def _named(file: RawFile) -> str:
    """A title made of the file's name."""
    return " ".join(file.path.stem.replace("_", " ").replace("-", " ").split()) or file.path.name
