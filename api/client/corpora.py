"""Corpora of a remote knowledge base. Ingests and annotation upload their files and run there as jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

import msgspec

from colmlm.api.client.api import Api
from colmlm.api.client.errors import ServerUnreachable
from colmlm.api.client.jobs import RemoteJobs
from colmlm.api.client.log import RemoteLog
from colmlm.api.client.only_there import options, refuse
from colmlm.api.client.uploads import upload
from colmlm.api.wire.answers import Deleted
from colmlm.kb.corpus.format import AnnotatedDocument, parse_line
from colmlm.kb.corpus.raw.files import FoundFiles, RawFile, held, unreadable
from colmlm.kb.errors import NotHeeded
from colmlm.kb.facts.records import CorpusStats, Edit, Ingesting, IngestReport
from colmlm.kb.facts.standing import Standing
from colmlm.kb.jobs.kinds import Documents, Ingest, work_of
from colmlm.kb.log.records import OnRecord

if TYPE_CHECKING:
    from colmlm.api.nouns.contents import RawAddition

_FORMATS = ("annotated", "parquet", "squad")
MOST_FILES = 100  # per job


@dataclass(frozen=True, slots=True)
class RemoteCorpora:
    """The verbs of `api.nouns.contents.CorpusVerbs` over the API."""

    api: Api

    def all(self) -> list[CorpusStats]:
        return self.api.listed("/corpora", CorpusStats, "corpora")

    def count(self, corpus: str, documents: Sequence[str] | None) -> tuple[int, int]:
        refuse(document=documents)
        body = {"reason": "counted", "dry_run": True}
        counted = self.api.edit(_path(corpus), Deleted, body, method="DELETE")
        return counted.documents, counted.facts

    def delete(self, corpus: str, documents: Sequence[str] | None, *, actor: str, reason: str) -> Edit:
        refuse(document=documents)
        body = {"reason": reason, "on_behalf_of": actor or None}
        done = self.api.edit(_path(corpus), Deleted, body, method="DELETE")
        if done.seq is None:
            return Edit(0, "delete", ())
        (change,) = RemoteLog(self.api).changes(done.seq - 1, 1)
        return Edit(done.seq, change.kind, change.fact_ids)

    def export(self, corpus: str, *, live_only: bool) -> Iterator[AnnotatedDocument]:
        lines = self.api.lines(f"{_path(corpus)}/export", live_only=live_only or None)
        first = next(lines, None)  # read now, so that a refusal is raised here and not by the caller's loop
        return self._documents(lines if first is None else chain([first], lines))

    def _documents(self, lines: Iterator[str]) -> Iterator[AnnotatedDocument]:
        for number, line in enumerate(lines, start=1):
            parsed = parse_line(line, where=f"line {number}")
            if parsed.document is None or parsed.refusals:
                raise ServerUnreachable(self.api.connection.url, f"line {number} is no document")
            yield parsed.document

    def ingest(
        self, file: Path, format_: str, corpus: str, **how: Unpack[Ingesting]
    ) -> tuple[IngestReport, int]:
        about = options(Ingesting, how)
        refuse(**{name: about.pop(name, None) for name in ("actor", "dry_run", "allow_erased")})
        if format_ not in _FORMATS:
            raise NotHeeded("format_", f"a server takes {', '.join(_FORMATS)}.")
        sent = upload(self.api, file)
        about |= {"corpus": corpus, "format": format_, "upload_id": sent.upload_id}
        result = self._jobs.done(work_of(Ingest.kind, about))
        return msgspec.convert(result, IngestReport), result["refused"]

    def add(
        self, found: FoundFiles, corpus: str, how: RawAddition, **who: Unpack[OnRecord]
    ) -> dict[str, Any]:
        refuse(actor=who["actor"], dry_run=how.dry_run, again=how.again, allow_erased=how.allow_erased)
        refuse(span_annotator=how.span_annotator, question_generator=how.question_generator)
        result: dict[str, Any] = {}
        if found.files:
            _check_files(found.files)
        if ids := list(self._uploaded(found)):
            about = {
                "corpus": corpus,
                "reason": who["reason"],
                "encoding": how.encoding,
                "questions": how.questions,
                "verify": how.verify,
                **{f"{part}_field": name for part, name in asdict(how.fields).items()},
            }
            work = {"upload_ids": ids, "span_threshold": how.span_threshold, **about}
            result = self._jobs.done(work_of(Documents.kind, work))
        return _told(found, corpus, result)

    def _uploaded(self, found: FoundFiles) -> Iterator[str]:
        """Upload the files, and refuse those that cannot be opened any more, or are others by now."""
        for file in found.files:
            try:
                with held(file.path, file.origin) as place:
                    yield upload(self.api, place, file.path.name).upload_id
            except OSError as error:
                found.refusals.append(unreadable(file.external_id, error))

    @property
    def _jobs(self) -> RemoteJobs:
        return RemoteJobs(self.api)


def _told(found: FoundFiles, corpus: str, result: dict[str, Any]) -> dict[str, Any]:
    """Gives the job's result with the field names of a local `colmlm corpus add`, and adds the files refused before
    upload.
    """
    standings = {standing.value: result.get(standing.value, 0) for standing in Standing}
    numbers = {
        name: result.get(name, 0)
        for name in ("facts", "still_deleted", "suppressed", "contradictions", "duplicates")
    }
    refusals = [*(asdict(one) for one in found.refusals), *result.get("refusals", ())]
    return {
        "dry_run": False, "corpus": corpus, "documents": sum(standings.values()), **standings,
        "characters": None, **numbers, "seq": result.get("seq"), "added": [],
        "rejected": result.get("rejected", {}), "refused": len(found.refusals) + result.get("refused", 0),
        "refusals": refusals, "passed_over": dict(found.passed_over), "keyset": result.get("keyset"),
        "citable": result.get("citable", False), "suggested": result.get("suggested"),
        "threshold": result.get("threshold"),
    }  # fmt: skip


def _path(corpus: str) -> str:
    return f"/corpora/{quote(corpus, safe='', errors='surrogatepass')}"


def _check_files(files: Sequence[RawFile]) -> None:
    """Refuses too many files, and two of one name, since a server identifies a document by its file name alone."""
    names = Counter(file.path.name for file in files)
    name, number = max(names.items(), key=lambda item: item[1])
    if number > 1:
        raise NotHeeded(
            "found",
            f"{number} files are named {name}, and a server knows documents by that alone; rename one, or add "
            "them to corpora of their own.",
        )
    if len(files) > MOST_FILES:
        raise NotHeeded("found", f"these are {len(files)} files; a server takes {MOST_FILES} at once.")
