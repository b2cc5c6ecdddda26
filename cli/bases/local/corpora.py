"""Whole corpora of this machine's knowledge base."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.output import plain
from colmlm.kb.corpus.raw.reading import read_corpus
from colmlm.kb.facts.standing import Standing

if TYPE_CHECKING:
    from colmlm.api.nouns.contents import RawAddition
    from colmlm.cli.composition.adding import Adding
    from colmlm.kb.corpus.format import AnnotatedDocument, Parsed
    from colmlm.kb.corpus.raw.files import FoundFiles
    from colmlm.kb.corpus.raw.wire import Limits
    from colmlm.kb.facts.records import CorpusStats, Edit, Ingesting, IngestReport
    from colmlm.kb.keys.records import KeysetRecord
    from colmlm.kb.log.records import OnRecord
    from colmlm.kb.service import KnowledgeBase


@dataclass(frozen=True, slots=True)
class LocalCorpora:
    """Implements `api.nouns.contents.CorpusVerbs` on this machine's knowledge base."""

    runtime: Runtime

    @property
    def kb(self) -> KnowledgeBase:
        return self.runtime.kb

    def all(self) -> list[CorpusStats]:
        return self.kb.corpora.all()

    def count(self, corpus: str, documents: Sequence[str] | None) -> tuple[int, int]:
        return self.kb.corpora.count(corpus, documents)

    def delete(self, corpus: str, documents: Sequence[str] | None, *, actor: str, reason: str) -> Edit:
        return self.kb.corpora.delete(corpus, documents, actor=actor, reason=reason)

    def export(self, corpus: str, *, live_only: bool) -> Iterator[AnnotatedDocument]:
        return self.kb.corpora.export(corpus, live_only=live_only)

    def ingest(
        self, file: Path, format_: str, corpus: str, **how: Unpack[Ingesting]
    ) -> tuple[IngestReport, int]:
        committed: list[IngestReport] = []
        total = file.stat().st_size
        with self.runtime.telling.progress("Ingesting (KB)") as advance:

            def on_bytes(reached: int) -> None:
                advance(reached // 1000, total // 1000)

            try:
                parsed = _read(file, format_, self.kb.settings.document, on_bytes)
                report = self.kb.corpora.ingest(parsed, corpus, on_piece=committed.append, **how)
            except BaseException:
                if committed and not how.get("dry_run"):
                    done = committed[-1].documents + committed[-1].unchanged
                    self.runtime.telling.note(
                        f"{done} documents are in {corpus!r}. Run the same command again to go on from there."
                    )
                raise
        return report, len(report.refusals)

    def add(
        self, found: FoundFiles, corpus: str, how: RawAddition, **who: Unpack[OnRecord]
    ) -> dict[str, Any]:
        from colmlm.cli.composition import annotators
        from colmlm.cli.composition.adding import Adding

        self.runtime.open()
        adding = Adding(
            self.runtime,
            corpus,
            found,
            how.encoding,
            how.fields,
            again=how.again,
            asks=how.questions,
            verifies=how.verify,
            telling=self.runtime.telling,
        )
        if how.dry_run:
            adding.look()
            return _told(adding, None, None, True) | {"threshold": None}

        report = adding.ingest(annotators.ready(self.runtime, how), **who, allow_erased=how.allow_erased)
        keyset = adding.key(changed=report is not None)
        calibrated = adding.recalibrated(self.kb, changed=report is not None, **who)
        return _told(adding, report, keyset, False) | {"threshold": calibrated}


def _told(
    adding: Adding, report: IngestReport | None, keyset: KeysetRecord | None, dry_run: bool
) -> dict[str, Any]:
    tally = adding.tally
    is_citable = keyset is not None and keyset.state == "active" and not dry_run
    refusals = [*tally.refusals, *(report.refusals if report else ())]
    told = {
        "dry_run": dry_run, "corpus": adding.corpus, "documents": sum(tally.standings.values()),
        **{standing.value: tally.standings[standing] for standing in Standing},
        "characters": tally.characters,
        "facts": report.facts if report else 0,
        "seq": report.seq if report else None, "still_deleted": report.still_deleted if report else 0,
        "suppressed": report.suppressed if report else 0,
        "contradictions": report.contradictions if report else 0,
        "duplicates": report.duplicates if report else 0, "added": tally.added,
        "rejected": dict(tally.rejected), "refused": len(refusals), "refusals": refusals,
        "passed_over": dict(adding.found.passed_over), "keyset": keyset,
        "citable": is_citable, "suggested": adding.to_suggest(keyset),
    }  # fmt: skip
    said: dict[str, Any] = plain(told)
    return said


def _read(file: Path, format_: str, limits: Limits, on_bytes: Callable[[int], None]) -> Iterator[Parsed]:
    if format_ == "rel-lmlm":
        from colmlm.model.text.markup import read_triplets

        return read_triplets(file)
    return read_corpus(file, format_, limits=limits, on_bytes=on_bytes)
