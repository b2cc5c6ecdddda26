"""Facts and corpora of this machine's knowledge base, with the models that key and annotate them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.output import count_of, plain
from colmlm.kb.facts.corpora import DocumentStanding
from colmlm.kb.facts.facts import Facts
from colmlm.kb.facts.records import (
    Edit,
    Editing,
    EditingOne,
    FactEdit,
    FactPage,
    FactSearch,
    MarkedAddition,
    Marking,
    Moving,
    Proposing,
)
from colmlm.kb.lookup.options import EVERY_FACT, NEAREST

if TYPE_CHECKING:
    from colmlm.cli.composition.adding import Adding
    from colmlm.kb.corpus.format import AnnotatedDocument, Parsed
    from colmlm.kb.corpus.raw.blocks import RawAddition
    from colmlm.kb.corpus.raw.files import FoundFiles
    from colmlm.kb.facts.records import CorpusStats, Edit, Ingesting, IngestReport
    from colmlm.kb.keys.records import KeysetRecord
    from colmlm.kb.keys.rekey import Encoder
    from colmlm.kb.log.records import OnRecord
    from colmlm.kb.service import KnowledgeBase
    from colmlm.kb.texts.characters import DocumentLimits


MOST_TO_KEY_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class LocalFacts(Facts):
    """The verbs of facts. An edit with `keyed` also makes the keys that its facts lack."""

    runtime: Runtime
    alone: bool

    def search(
        self,
        *,
        near: str | None = None,
        nearest: Sequence[int] | None = None,
        past: bool = True,
        **sought: Unpack[FactSearch],
    ) -> FactPage:
        if near is not None:
            kb = self.runtime.kb
            kb.keysets.active()  # fails for a base without keys, before a model is loaded for seconds
            with self._encoder() as encoder:
                queries_BD = encoder.encode_questions([near])
            (ranking,) = kb.lookups.nearest(
                queries_BD,
                checkpoint_id=encoder.checkpoint.checkpoint_id,
                k=NEAREST,
                fact_filter=EVERY_FACT,
            )
            nearest = [hit.fact_id for hit in ranking.hits]
        return self.runtime.kb.facts.search(nearest=nearest, past=past, **sought)

    def add(self, question: str, value: str, *, keyed: bool = True, **how: Unpack[Proposing]) -> Edit:
        edit = self.runtime.kb.facts.add(question, value, **how)
        return self._key_edited_facts(replace(edit, keyed=False), keyed)

    def add_to(
        self, document_id: int, span: Marking, *, keyed: bool = True, **how: Unpack[MarkedAddition]
    ) -> Edit:
        return self._key_edited_facts(self.runtime.kb.facts.add_to(document_id, span, **how), keyed)

    def edit(
        self,
        fact_id: int,
        value: str | None = None,
        *,
        keyed: bool = True,
        **how: Unpack[EditingOne],
    ) -> Edit:
        return self._key_edited_facts(self.runtime.kb.facts.edit(fact_id, value, **how), keyed)

    def edit_many(
        self, fact_edits: Sequence[FactEdit], *, keyed: bool = True, **how: Unpack[Editing]
    ) -> Edit:
        return self._key_edited_facts(self.runtime.kb.facts.edit_many(fact_edits, **how), keyed)

    def move(self, fact_id: int, span: Marking, *, keyed: bool = True, **how: Unpack[Moving]) -> Edit:
        return self._key_edited_facts(self.runtime.kb.facts.move(fact_id, span, **how), keyed)

    def undo(self, seq: int, *, keyed: bool = True, actor: str, reason: str) -> Edit:
        return self._key_edited_facts(self.runtime.kb.facts.undo(seq, actor=actor, reason=reason), keyed)

    def _key_edited_facts(self, edit: Edit, wanted: bool) -> Edit:
        """Make the keys that the edit's facts lack if `wanted`; give the edit, with `keyed` as it is then."""
        if edit.keyed or not wanted:
            return edit
        try:
            return replace(edit, keyed=self._key_at_once(edit.fact_ids))
        except Exception:  # whatever it is, the change is made already, and whoever made it has to know
            self.runtime.telling.note(f"Change {edit.seq} was made, but its facts could not be keyed.")
            raise

    def _encoder(self) -> AbstractContextManager[Encoder]:
        """Give an encoder that asks this home's server if it makes the same keys, else that of this process."""
        if self.alone:
            return nullcontext(self.runtime.encoder)
        from colmlm.cli.bases.nearby import near_encoder

        return near_encoder(self.runtime)

    def _key_at_once(self, fact_ids: Sequence[int]) -> bool:
        """Make the keys that these facts lack and give True; False if more than `MOST_TO_KEY_AT_ONCE` lack one."""
        kb, telling = self.runtime.kb, self.runtime.telling
        with self._encoder() as encoder, telling.progress("Keying") as advance:
            keyed = kb.keysets.key_facts(encoder, fact_ids, most=MOST_TO_KEY_AT_ONCE, on_facts=advance)
        if not keyed:
            telling.note(f"More than {MOST_TO_KEY_AT_ONCE} facts wait for keys; this is not done at once.")
        return keyed


@dataclass(frozen=True, slots=True)
class LocalCorpora:
    """The verbs of whole corpora. `documents` are the external ids of some of a corpus (None: all)."""

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
            except BaseException:  # also where it is interrupted: what is stored by then stays
                if committed and not how.get("dry_run"):
                    done = committed[-1].documents + committed[-1].unchanged
                    self.runtime.telling.note(
                        f"{count_of(done, 'document', 'are')} in {corpus!r}. "
                        "Run the same command again to go on from there."
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
            adding.count_work()
            return _addition_report(adding, None, None, True) | {"threshold": None}

        report = adding.ingest(
            annotators.annotator_loader(self.runtime, how), **who, allow_erased=how.allow_erased
        )
        keyset = adding.key(changed=report is not None)
        calibrated = adding.recalibrate_answers(self.kb, changed=report is not None, **who)
        return _addition_report(adding, report, keyset, False) | {"threshold": calibrated}


def _addition_report(
    adding: Adding, report: IngestReport | None, keyset: KeysetRecord | None, dry_run: bool
) -> dict[str, Any]:
    from colmlm.cli.composition.adding import facts_ingested

    tally = adding.tally
    is_citable = keyset is not None and keyset.state == "active" and not dry_run
    refusals = [*tally.refusals, *(report.refusals if report else ())]
    told = {
        "dry_run": dry_run, "corpus": adding.corpus, "documents": sum(tally.standings.values()),
        **{standing.value: tally.standings[standing] for standing in DocumentStanding},
        "characters": tally.characters,
        **facts_ingested(report), "added": tally.added,
        "rejected": dict(tally.rejected), "refused": len(refusals), "refusals": refusals,
        "passed_over": dict(adding.found.passed_over), "keyset": keyset,
        "citable": is_citable, "suggested": adding.suggested_fact(keyset),
    }  # fmt: skip
    said: dict[str, Any] = plain(told)
    return said


def _read(
    file: Path, format_: str, limits: DocumentLimits, on_bytes: Callable[[int], None]
) -> Iterator[Parsed]:
    if format_ == "rel-lmlm":
        from colmlm.model.text.markup import read_triplets

        return read_triplets(file)
    from colmlm.kb.corpus.raw.reading import (
        read_corpus,
    )  # here, as the readers of all formats take time to import

    return read_corpus(file, format_, limits=limits, on_bytes=on_bytes)
