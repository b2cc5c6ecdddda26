"""What a sync has to do, what it reads, and what it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from colmlm.cli.output import plain
from colmlm.kb.facts.standing import Standing

if TYPE_CHECKING:
    from colmlm.cli.composition.adding import Adding
    from colmlm.kb.corpus.format import Parsed, Refusal
    from colmlm.kb.facts.records import Edit, IngestReport
    from colmlm.kb.facts.synced import SyncedFile
    from colmlm.kb.keys.records import KeysetRecord


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What a sync has to do, by the paths of files. `known` has those of the last sync, `digests` those to be read."""

    known: Mapping[str, SyncedFile]
    new: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    gone: tuple[str, ...]
    digests: Mapping[str, str]

    @property
    def to_read(self) -> frozenset[str]:
        return frozenset((*self.new, *self.changed))

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(getattr(self, name)) for name in ("new", "changed", "unchanged", "gone")}


@dataclass(slots=True)
class FilesRead:
    """The documents of each file that was read, and the files of which something was refused.

    `in_order` has the documents with their files as they were read; `noted` of them are noted.
    """

    documents: dict[str, list[str]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    in_order: list[tuple[str, str]] = field(default_factory=list)
    noted: int = 0

    def take(self, path: str, parsed: Parsed) -> None:
        if parsed.document is not None:
            self.documents[path].append(parsed.document.external_id)
            self.in_order.append((path, parsed.document.external_id))
        if parsed.refusals:
            self.refused.add(path)

    def to_note(self) -> dict[str, list[str]]:
        """Gives the documents that were read since this was last asked, by the paths of their files."""
        further: dict[str, list[str]] = {}
        for path, name in self.in_order[self.noted :]:
            further.setdefault(path, []).append(name)
            self.noted += 1
        return further


@dataclass(frozen=True, slots=True)
class Synced:
    """What a sync did, or would do: its plan, what it added, and the removal of the `num_gone` documents."""

    plan: SyncPlan
    adding: Adding
    num_gone: int
    report: IngestReport | None = None
    removed: Edit | None = None
    keyset: KeysetRecord | None = None
    threshold: str | None = None

    @property
    def refusals(self) -> list[Refusal]:
        return [*self.adding.tally.refusals, *(self.report.refusals if self.report else ())]

    def told(self) -> dict[str, Any]:
        """Gives it as JSON, without names of files and documents, and without why something was refused."""
        report, removed, standings = self.report, self.removed, self.adding.tally.standings
        told = {
            "corpus": self.adding.corpus, "files": self.plan.counts,
            "documents": {
                "new": standings[Standing.new], "changed": standings[Standing.changed], "gone": self.num_gone
            },
            "facts": report.facts if report else 0,
            "deleted_facts": len(removed.fact_ids) if removed else 0,
            "seq": report.seq if report else None,
            "removed_seq": removed.seq if removed else None,
            "still_deleted": report.still_deleted if report else 0,
            "suppressed": report.suppressed if report else 0,
            "contradictions": report.contradictions if report else 0,
            "duplicates": report.duplicates if report else 0,
            "rejected": dict(self.adding.tally.rejected),
            "refused": len(self.refusals), "passed_over": dict(self.adding.found.passed_over),
            "keyset": self.keyset, "citable": self.keyset is not None and self.keyset.state == "active",
            "threshold": self.threshold,
        }  # fmt: skip
        said: dict[str, Any] = plain(told)
        return said
