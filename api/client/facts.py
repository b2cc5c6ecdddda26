"""Facts, their documents, comparisons and review, and corpora of a remote knowledge base."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from colmlm.api.client.api import (
    Resource,
    edit_verb,
    get_verb,
    list_verb,
    on_behalf,
    options,
    quote_part,
    refuse,
)
from colmlm.api.client.connection import ServerUnreachable
from colmlm.api.client.operating import RemoteJobs
from colmlm.api.wire import (
    MAX_FACTS_PER_EDIT,
    CountedPage,
    Deleted,
    DocumentText,
    EditResult,
    ErasureAnswer,
    InboxPage,
    PlanView,
    RunView,
    VerdictResult,
)
from colmlm.kb.errors import InvalidValue, NotHeeded, count_of, refusals
from colmlm.kb.facts.records import (
    FACTS_LISTED,
    AlsoSaid,
    ComparedCounts,
    ComparedPart,
    CorpusStats,
    DocumentRecord,
    Edit,
    Editing,
    EditingOne,
    FactEdit,
    FactFound,
    FactPage,
    FactPair,
    FactRecord,
    FactSearch,
    FactsSought,
    Ingesting,
    IngestReport,
    Kind,
    MarkedAddition,
    Marking,
    Moving,
    PairPage,
    PairsSought,
    PersonFindings,
    Proposing,
    ReviewResult,
    ReviewVerdict,
    StaleFact,
    StalePage,
)
from colmlm.kb.jobs.kinds import Documents, Ingest, work_of
from colmlm.kb.log.records import ChangeRecord, OnRecord
from colmlm.kb.removal.records import (
    SAMPLE,
    CertificateCheck,
    Drift,
    Erased,
    EraseOptions,
    Erasing,
    ErasureReport,
    ErasureRequest,
    ForgetPlan,
    HeldSelection,
    Hold,
    Planning,
    Rates,
    RetentionPlan,
    RetentionRule,
    RetentionTerms,
    RunRecord,
    SaidSurvivor,
    Verification,
)
from colmlm.kb.review.records import IN_INBOX, Inbox, InboxSought

if TYPE_CHECKING:
    from datetime import datetime

    from colmlm.kb.corpus.format import AnnotatedDocument
    from colmlm.kb.corpus.raw.blocks import RawAddition
    from colmlm.kb.corpus.raw.files import FoundFiles, RawFile
    from colmlm.kb.removal.selector import Selector


_STATES = {False: "live", True: "deleted", None: "all"}
_FORMATS = ("annotated", "parquet", "squad")
MOST_FILES = 100  # per job


def edit_of(done: EditResult) -> Edit:
    """Convert the response to an edit into the knowledge base's own record."""
    return Edit(done.seq, done.kind, tuple(done.fact_ids), done.keyed, tuple(done.also_said_by))


def batches(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split ids into batches, each as large as one request may be."""
    return (ids[at : at + MAX_FACTS_PER_EDIT] for at in range(0, len(ids), MAX_FACTS_PER_EDIT))


class RemoteFacts(Resource):
    """The verbs of `kb.facts.facts.Facts`, where the server makes the keys that an edit leaves out."""

    show = get_verb("/facts/{fact_id}", FactRecord)
    delete = edit_verb(
        "/facts", EditResult, "fact_ids", "*", "actor", "reason", "abstain?", method="DELETE", to=edit_of
    )
    restore = edit_verb("/facts/restore", EditResult, "fact_ids", "*", "actor", "reason", to=edit_of)

    def find(self, **sought: Unpack[FactsSought]) -> list[FactRecord]:
        said = {"limit": FACTS_LISTED, **options(FactsSought, sought)}
        state = _STATES[said.pop("deleted", False)]
        return self.api.read_list(
            "/facts", FactRecord, "facts", state=state, literally=True, sort="id", **said
        )

    def search(self, *, near: str | None = None, **sought: Unpack[FactSearch]) -> FactPage:
        said = options(FactSearch, sought)
        part = {"limit": said.pop("limit", FACTS_LISTED), "after": said.pop("after", 0)}
        said = {**said, "near": near, "sort": said.pop("sort", "best")}
        for name in ("since", "until"):
            said[name] = said[name].isoformat() if said.get(name) else None
        facts, page, after = self.api.read_list_part(
            "/facts", CountedPage[FactFound], "facts", **part, **said
        )
        return FactPage(tuple(facts), page.total, page.is_exact, after)

    def show_many(self, fact_ids: Sequence[int]) -> list[FactRecord]:
        asked = (
            self.api.ask("/facts/read", list[FactRecord], {"fact_ids": ids}) for ids in batches(fact_ids)
        )
        return [fact for facts in asked for fact in facts]

    def add(self, question: str, value: str, *, keyed: bool = True, **how: Unpack[Proposing]) -> Edit:
        body = {"question": question, "value": value, **options(Proposing, how)}
        return self._edit("/facts", body, keyed)

    def add_to(
        self, document_id: int, span: Marking, *, keyed: bool = True, **how: Unpack[MarkedAddition]
    ) -> Edit:
        return self._edit(f"/documents/{document_id}/facts", {**span, **options(MarkedAddition, how)}, keyed)

    def edit(
        self, fact_id: int, value: str | None = None, *, keyed: bool = True, **how: Unpack[EditingOne]
    ) -> Edit:
        return self._edit(f"/facts/{fact_id}", {"value": value, **options(EditingOne, how)}, keyed, "PATCH")

    def edit_many(
        self, fact_edits: Sequence[FactEdit], *, keyed: bool = True, **how: Unpack[Editing]
    ) -> Edit:
        if len(fact_edits) > MAX_FACTS_PER_EDIT:
            many = f"it holds {count_of(len(fact_edits), 'fact')}, but one change edits at most {MAX_FACTS_PER_EDIT}"
            raise InvalidValue("batch", many)
        body = {"facts": list(map(asdict, fact_edits)), **options(Editing, how)}
        return self._edit("/facts/batch", body, keyed, "PATCH")

    def move(self, fact_id: int, span: Marking, *, keyed: bool = True, **how: Unpack[Moving]) -> Edit:
        return self._edit(f"/facts/{fact_id}/move", {**span, **options(Moving, how)}, keyed)

    def undo(self, seq: int, *, keyed: bool = True, actor: str, reason: str) -> Edit:
        return self._edit(f"/changes/{seq}/undo", {"actor": actor, "reason": reason}, keyed)

    def _edit(self, path: str, said: dict[str, Any], keyed: bool, method: str = "POST") -> Edit:
        """Send an edit, for which the server always makes missing keys. Raises `NotHeeded` unless `keyed`."""
        refuse(no_key=not keyed)
        return edit_of(self.api.edit(path, EditResult, on_behalf(said), method=method))


class RemoteComparisons(Resource):
    """The verbs of `kb.facts.comparisons.Comparisons`: contradictions, duplicates and stale facts."""

    counts = get_verb("/facts/compared", ComparedCounts)

    def pairs(self, kind: Kind, **sought: Unpack[PairsSought]) -> PairPage:
        pairs, page, after = self._list_part(kind, CountedPage[FactPair], options(PairsSought, sought))
        return PairPage(tuple(pairs), page.total, page.is_exact, after)

    def stale(self, **part: Unpack[ComparedPart]) -> StalePage:
        facts, page, after = self._list_part("stale", CountedPage[StaleFact], options(ComparedPart, part))
        return StalePage(tuple(facts), page.total, page.is_exact, after)

    def _list_part(self, of: str, kind: Any, said: dict[str, Any]) -> tuple[list[Any], Any, int | None]:
        part = {"limit": said.pop("limit", FACTS_LISTED), "after": said.pop("after", 0)}
        return self.api.read_list_part(f"/facts/{of}", kind, of, **part, **said)

    def also_said(self, fact_ids: Sequence[int]) -> list[AlsoSaid]:
        asked = (
            self.api.ask("/facts/also-said", list[AlsoSaid], {"fact_ids": ids}) for ids in batches(fact_ids)
        )
        return [said for found in asked for said in found]

    def note_both_right(
        self, fact_id: int, other_id: int, *, both_right: bool = True, **who: Unpack[OnRecord]
    ) -> Edit:
        body = {"fact_ids": [fact_id, other_id], "both_right": both_right, **options(OnRecord, who)}
        return edit_of(self.api.edit("/facts/contradictions", EditResult, on_behalf(body)))


class RemoteReview(Resource):
    """The verbs of `kb.review.review.FactReview`."""

    limit = edit_verb(
        "/review/limits",
        EditResult,
        "*",
        "accepted_only",
        "corpus?",
        "keyset_id?",
        shape=OnRecord,
        to=edit_of,
    )

    def inbox(self, **sought: Unpack[InboxSought]) -> Inbox:
        said = options(InboxSought, sought)
        part = {"limit": said.pop("limit", IN_INBOX), "after": said.pop("after", 0)}
        items, page, after = self.api.read_list_part("/review", InboxPage, "review", **part, **said)
        return Inbox(tuple(items), page.total, page.is_exact, after, page.progress)

    def settle(self, judged: Sequence[ReviewVerdict], *, actor: str, reason: str) -> ReviewResult:
        """Settle verdicts, in several requests if they are more than one may hold, and give the results as one."""
        done = ReviewResult((), (), ())
        for at in range(0, max(1, len(judged)), MAX_FACTS_PER_EDIT):
            verdicts = [asdict(one) for one in judged[at : at + MAX_FACTS_PER_EDIT]]
            body = on_behalf({"verdicts": verdicts, "actor": actor, "reason": reason})
            told = self.api.edit("/review/verdicts", VerdictResult, body)
            done = ReviewResult(
                (*done.seqs, *told.seqs), (*done.fact_ids, *told.fact_ids), (*done.before, *told.before)
            )
        return done


class RemoteDocuments(Resource):
    """The verbs of `kb.facts.corpora.StoredDocuments`."""

    find = list_verb(
        "/documents", DocumentRecord, "documents", "*", "corpus?", "replaced?", "after?", "limit=50"
    )

    def read(self, document_id: int) -> tuple[DocumentRecord, str]:
        found = self.api.get(f"/documents/{document_id}", DocumentText)
        return found.document, found.text

    def place(self, document_id: int) -> str | None:
        """Give the address of a document, None without one. A server does not tell the paths of its files."""
        return self.read(document_id)[0].uri


class RemoteCorpora(Resource):
    """The verbs of whole corpora. Ingests and annotation upload their files and run there as jobs."""

    all = list_verb("/corpora", CorpusStats, "corpora")

    def count(self, corpus: str, documents: Sequence[str] | None) -> tuple[int, int]:
        refuse(document=documents)
        counted = self._delete(corpus, {"reason": "counted", "dry_run": True})
        return counted.documents, counted.facts

    def delete(self, corpus: str, documents: Sequence[str] | None, *, actor: str, reason: str) -> Edit:
        refuse(document=documents)
        done = self._delete(corpus, on_behalf({"reason": reason, "actor": actor}))
        if done.seq is None:
            return Edit(0, "delete", ())
        (change,) = self.api.read_list("/changes", ChangeRecord, "changes", after=done.seq - 1, limit=1)
        return Edit(done.seq, change.kind, change.fact_ids)

    def _delete(self, corpus: str, body: dict[str, Any]) -> Deleted:
        return self.api.edit(f"/corpora/{quote_part(corpus)}", Deleted, body, method="DELETE")

    def export(self, corpus: str, *, live_only: bool) -> Iterator[AnnotatedDocument]:
        lines = self.api.lines(f"/corpora/{quote_part(corpus)}/export", live_only=live_only or None)
        first = next(lines, None)  # read now, so that a refusal is raised here and not by the caller's loop
        return self._documents(lines if first is None else chain([first], lines))

    def _documents(self, lines: Iterator[str]) -> Iterator[AnnotatedDocument]:
        from colmlm.kb.corpus.format import parse_line

        for number, line in enumerate(lines, start=1):
            parsed = parse_line(line, where=f"line {number}")
            if parsed.document is None or parsed.refusals:
                raise ServerUnreachable(
                    self.api.connection.url, f"line {number} of its export is no document"
                )
            yield parsed.document

    def ingest(
        self, file: Path, format_: str, corpus: str, **how: Unpack[Ingesting]
    ) -> tuple[IngestReport, int]:
        about = options(Ingesting, how)
        refuse(**{name: about.pop(name, None) for name in ("actor", "dry_run", "allow_erased")})
        if format_ not in _FORMATS:
            raise NotHeeded("format_", f"a server does not read {format_}. Use one of {', '.join(_FORMATS)}.")
        about |= {"corpus": corpus, "format": format_, "upload_id": self.api.upload(file)}
        result = RemoteJobs(self.api).run_to_end(work_of(Ingest.kind, about))
        return msgspec.convert(result, IngestReport), result["refused"]

    def add(
        self, found: FoundFiles, corpus: str, how: RawAddition, **who: Unpack[OnRecord]
    ) -> dict[str, Any]:
        refuse(actor=who["actor"], dry_run=how.dry_run, again=how.again, allow_erased=how.allow_erased)
        refuse(span_annotator=how.span_annotator, question_generator=how.question_generator)
        result: dict[str, Any] = {}
        if found.files:
            _check_files(found.files)
        if ids := list(self._upload_files(found)):
            about = {
                "corpus": corpus,
                "reason": who["reason"],
                "encoding": how.encoding,
                "questions": how.questions,
                "verify": how.verify,
                **{f"{part}_field": name for part, name in asdict(how.fields).items()},
            }
            work = {"upload_ids": ids, "span_threshold": how.span_threshold, **about}
            result = RemoteJobs(self.api).run_to_end(work_of(Documents.kind, work))
        return _addition_report(found, corpus, result)

    def _upload_files(self, found: FoundFiles) -> Iterator[str]:
        """Upload the files and yield the ids of the uploads. A file that cannot be opened joins `found.refusals`."""
        from colmlm.kb.corpus.raw.files import opened_file, refuse_unreadable

        for file in found.files:
            try:
                with opened_file(file.path, file.origin) as place:
                    yield self.api.upload(place, file.path.name)
            except OSError as error:
                found.refusals.append(refuse_unreadable(file.external_id, error))


def _addition_report(found: FoundFiles, corpus: str, result: dict[str, Any]) -> dict[str, Any]:
    """Give the job's result with the fields of a local `colmlm corpus add`, and add the files refused before upload."""
    from colmlm.kb.facts.corpora import DocumentStanding

    standings = {standing.value: result.get(standing.value, 0) for standing in DocumentStanding}
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


def _check_files(files: Sequence[RawFile]) -> None:
    """Refuse too many files, and two of one name, since a server identifies a document by its file name alone."""
    names = Counter(file.path.name for file in files)
    name, number = max(names.items(), key=lambda item: item[1])
    if number > 1:
        raise NotHeeded(
            "found",
            f"{count_of(number, 'file', 'are')} named {name}, but a server knows documents by name alone. Nothing "
            "was sent. Rename one, or add them to different corpora (--corpus).",
        )
    if len(files) > MOST_FILES:
        raise NotHeeded(
            "found", f"these are {count_of(len(files), 'file')}. Send at most {MOST_FILES} at once."
        )


# Forgetting and erasing: with the server's model, and not in the server's files.

_LISTS = ("equivalents", "conflicting", "successors", "survivors")


class RemoteForgetting(Resource):
    """The verbs of `cli.bases.local_removal.LocalForgetting`.

    The API gives all facts of a plan, and the first hundred entries of its other lists.
    """

    runs = list_verb("/forget-runs", RunRecord, "forget runs", "after?", "limit?")
    drift = get_verb("/forget-runs/{run_id}/drift", Drift)
    apply = edit_verb("/forget-runs/{run_id}/apply", EditResult, "*", "actor", "reason", to=edit_of)
    restore = edit_verb("/forget-runs/{run_id}/restore", EditResult, "*", "actor", "reason", to=edit_of)
    verify = edit_verb(
        "/forget-runs/{run_id}/verify", Verification, "questions?", "*", "model?", "sample?", is_edit=False
    )
    survivors = list_verb("/forget-runs/{run_id}/survivors", SaidSurvivor, "survivors", "after?", "limit?")

    def plan(
        self, selector: Selector, *, model: bool = True, sample: int = SAMPLE, **how: Unpack[Planning]
    ) -> ForgetPlan:
        body = {"selector": selector.to_json(), "model": model, "sample": sample, **options(Planning, how)}
        return self._plan(self.api.edit("/forget-runs", RunView, on_behalf(body)))

    def record(self, run_id: int) -> RunRecord:
        return self._view(run_id).run

    def run(self, run_id: int) -> tuple[RunRecord, ForgetPlan, Verification | None]:
        view = self._view(run_id)
        return view.run, self._plan(view), view.verification

    def before(self, run_id: int) -> Mapping[str, Rates]:
        return self._view(run_id).plan.before

    def facts(self, fact_ids: Sequence[int]) -> dict[int, FactRecord]:
        wanted = sorted({fact_id for fact_id in fact_ids if fact_id})
        return {fact.fact_id: fact for fact in RemoteFacts(self.api).show_many(wanted)}

    def certificate(self, run_id: int) -> str:
        return self.api.text(f"/forget-runs/{run_id}/certificate")

    def check_certificate(self, text: bytes, *, key: str | None, public_key: str | None) -> CertificateCheck:
        said = {"text": text.decode("utf-8", "replace"), "key": key, "public_key": public_key}
        return self.api.ask("/certificates/check", CertificateCheck, said)

    def _view(self, run_id: int) -> RunView:
        return self.api.get(f"/forget-runs/{run_id}", RunView)

    def _plan(self, view: RunView) -> ForgetPlan:
        run, plan = view.run, view.plan
        facts = self.api.read_list(f"/forget-runs/{run.run_id}/facts", FactRecord, "facts of a run")
        self._note_cut(plan)
        told = {name: getattr(plan, name) for name in ForgetPlan.__dataclass_fields__ if hasattr(plan, name)}
        told |= {name: tuple(told[name]) for name in _LISTS}
        return ForgetPlan(
            run_id=run.run_id,
            policy=run.policy,
            fact_ids=tuple(fact.fact_id for fact in facts),
            planned_seq=run.planned_seq,
            selector_digest="",  # not in the API's responses; the certificate has it
            **told,
        )

    def _note_cut(self, plan: PlanView) -> None:
        """Note for the user which lists of a plan the API gives only in part."""
        numbers = (plan.num_equivalents, plan.num_conflicting, plan.previewed, plan.num_survivors)
        for name, number in zip(_LISTS, numbers, strict=True):
            if number > (told := len(getattr(plan, name))):
                self.api.telling.note(f"The server tells the first {told} of {number} {name}.")


class RemoteHolds(Resource):
    """The verbs of `cli.bases.local_removal.LocalHolds`. The token is the one that asks, approves and releases."""

    all = list_verb(
        "/holds", Hold, "holds", "*", "standing?", "fact_id?", "document_id?", "after?", "limit=50"
    )
    read = get_verb("/holds/{hold_id}", Hold)
    place = edit_verb("/holds", Hold, shape=HeldSelection)
    approve = edit_verb("/holds/{hold_id}/approve", Hold)
    release = edit_verb("/holds/{hold_id}/release", Hold, "*", "actor", "reason")
    withdraw = edit_verb("/holds/{hold_id}/withdraw", Hold)


class RemoteRetention(Resource):
    """The verbs of `kb.removal.holds.Retention`. A server's worker carries rules out."""

    rules = list_verb("/retention-rules", RetentionRule, "retention rules")
    set_rule = edit_verb(
        "/corpora/{corpus}/retention",
        RetentionRule,
        "*",
        "actor",
        "reason",
        shape=RetentionTerms,
        method="PUT",
    )
    end_rule = edit_verb(
        "/corpora/{corpus}/retention", RetentionRule, "*", "actor", "reason", method="DELETE"
    )

    def plan(
        self,
        corpus: str,
        *,
        now: datetime | None = None,
        terms: RetentionTerms | None = None,
        limit: int = 50,
    ) -> RetentionPlan:
        path, at = f"/corpora/{quote_part(corpus)}/retention", None if now is None else now.isoformat()
        tried: dict[str, Any] = {} if terms is None else {**terms}
        return self.api.get(path, RetentionPlan, now=at, limit=limit, **tried)


class RemoteErasures(Resource):
    """The verbs of `cli.bases.local_removal.LocalErasures`, but for files. A second token may have to approve."""

    find_person = edit_verb("/persons/find", PersonFindings, "name", "*", "also?", "decide?", is_edit=False)
    preview = edit_verb("/erasures/preview", Erased, "fact_ids", "*", "mentions", "plan?", is_edit=False)
    withdraw = edit_verb("/erasures/{request_id}/withdraw", ErasureRequest)

    def erase(self, fact_ids: Sequence[int], **how: Unpack[EraseOptions]) -> Erasing:
        body = {"fact_ids": fact_ids, **options(EraseOptions, how)}
        refuse(**{name: body.pop(name, None) for name in ("now", "scan", "traces_out")})
        told = self.api.edit("/erasures", ErasureAnswer, on_behalf(body))
        return Erasing(told.report, told.request)

    def requests(self, *, waiting: bool) -> list[ErasureRequest]:
        found = self.api.read_list("/erasures", ErasureRequest, "erasures")
        return [asked for asked in found if not waiting or asked.state == "waiting"]

    def read(self, request_id: int) -> ErasureRequest:
        for asked in self.requests(waiting=False):
            if asked.erasure_request_id == request_id:
                return asked
        raise refusals.erasure_request_not_found(request_id)

    def approve(self, request_id: int, *, now: bool) -> tuple[ErasureRequest, ErasureReport]:
        refuse(now=now)
        told = self.api.edit(f"/erasures/{request_id}/approve", ErasureAnswer)
        assert told.request is not None and told.report is not None, "an approved erasure has both"
        return told.request, told.report

    def certificate(self, seq: int) -> str:
        return self.api.text(f"/changes/{seq}/certificate")
