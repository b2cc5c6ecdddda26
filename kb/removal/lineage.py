"""Lineage: which weights were trained on a text, as the records beside them say (`kb.corpus.training_record`).

The base knows the checkpoints that keysets were made with, and all weights in its home. A registered checkpoint is held
to the record that it was registered with. Where there is no record to rely on, the answer is "unknown".

A text that was redacted before is not the one that was trained on, so the log says what was found then. Nothing here
commits, and nothing keeps a digest of a text: who has the text and the record can compare them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.corpus.training_record import (
    RECORDED,
    FoundRecord,
    description_file,
    find_record,
    harden_digests,
)
from colmlm.kb.facts.redaction import FormerText
from colmlm.kb.removal.records import LineageFinding
from colmlm.kb.tables import ChangeRow, CheckpointRow

PART = "lineage"  # of the payload of an erasure
UNCHANGED = "weights are not changed by an erasure"
_REDACTED = "a text was redacted before, and is not compared any more"
_NOT_WEIGHTS = ("backups", "index", "models", "postgres", "uploads")  # folders of a home


@dataclass(frozen=True, slots=True)
class KnownWeights:
    """Weights that the base knows, with the record of their training.

    `checkpoint` is the id of a registered checkpoint; of others the digest of the file that describes them.
    """

    checkpoint: str
    name: str
    found: FoundRecord


def known_weights(session: Session, home: Path | None) -> list[KnownWeights]:
    """Give the registered checkpoints, the first registered first, and then other weights in the home, by name."""
    nearby = {} if home is None else dict(_weights_in(home))
    by_record = {found.sha256: found for found in nearby.values()}
    known = []
    rows = select(CheckpointRow).order_by(CheckpointRow.registered_at, CheckpointRow.id)
    for row in session.scalars(rows):
        place = Path(row.path) if row.path else None
        here = None if place is None else nearby.pop(place, None) or find_record(place)
        known.append(KnownWeights(row.id, row.name, _as_registered(row.trained_on, here, by_record)))
    told = {one.found.sha256 for one in known} - {None}
    for place, found in nearby.items():
        if found.sha256 not in told:
            known.append(KnownWeights(_description_digest(place), found.name or place.name, found))
    return known


def _as_registered(
    trained_on: str | None, here: FoundRecord | None, by_record: Mapping[str | None, FoundRecord]
) -> FoundRecord:
    """Give `here` or its copy in the home, if a checkpoint was registered with it; else one whose `fault` says why."""
    said = trained_on or ""
    registered = said.removeprefix(RECORDED) if said.startswith(RECORDED) else None
    copy = None if registered is None else by_record.get(registered)
    if here is None or (here.record is None and copy is not None):
        here = copy or FoundRecord(None, None, fault="its files are not here")
    if here.record is not None and here.sha256 != registered:
        return replace(here, record=None, sha256=None, fault="it was registered with another record, or none")
    return here


def _weights_in(home: Path) -> Iterator[tuple[Path, FoundRecord]]:
    """Yield the folders with weights in a home, or in one of its folders, each with its training record."""
    try:
        folders = sorted(one for one in home.iterdir() if one.is_dir() and one.name not in _NOT_WEIGHTS)
        below = [one for folder in folders for one in sorted(folder.iterdir()) if one.is_dir()]
        for folder in (*folders, *below):
            if description_file(folder) is not None:
                yield folder, find_record(folder)
    except OSError:
        return


def _description_digest(folder: Path) -> str:
    file = description_file(folder)
    return hashlib.sha256(b"" if file is None else file.read_bytes()).hexdigest()[:16]


def find_lineage(
    session: Session, home: Path | None, texts: Mapping[int, FormerText]
) -> tuple[LineageFinding, ...]:
    """Give a finding for each of the known weights: whether they were trained on these former texts, by document id."""
    if not texts:
        return ()
    before = _found_before(session, {number for number, text in texts.items() if text.is_marked})
    known = known_weights(session, home)
    records = [one.found.record for one in known if one.found.record is not None]
    hardened = {
        salted: harden_digests(*salted, {text.digest for text in texts.values()})
        for salted in {(record.salt, record.cost) for record in records}
    }
    return tuple(_compare(one, texts, hardened, before) for one in known)


def _compare(
    weights: KnownWeights,
    texts: Mapping[int, FormerText],
    hardened: Mapping[tuple[bytes, int], Mapping[bytes, bytes]],
    before: Mapping[int, Sequence[Sequence[LineageFinding]]],
) -> LineageFinding:
    record, fault = weights.found.record, weights.found.fault
    listed, uncertain = [], []
    for number, text in sorted(texts.items()):
        earlier = [_same_weights(weights, findings) for findings in before.get(number, ())]
        is_here = record is not None and record.has_digest(hardened[record.salt, record.cost][text.digest])
        if is_here or any(one is not None and number in one.documents for one in earlier):
            listed.append(number)
        elif fault or (text.is_marked and not _is_settled(number, weights, earlier)):
            uncertain.append(number)
    return LineageFinding(
        checkpoint=weights.checkpoint,
        name=weights.name,
        says="listed" if listed else "unknown" if uncertain else "not-listed",
        documents=tuple(listed),
        uncertain=tuple(uncertain),
        why=(fault or _REDACTED) if uncertain else "",
        record=weights.found.sha256,
        bases=() if record is None else record.bases,
    )


def _same_weights(weights: KnownWeights, findings: Iterable[LineageFinding]) -> LineageFinding | None:
    return next((one for one in findings if one.checkpoint == weights.checkpoint), None)


def _is_settled(number: int, weights: KnownWeights, earlier: Sequence[LineageFinding | None]) -> bool:
    """Tell whether earlier erasures touched document `number`, and each found out if this training record lists it."""
    asked = [
        one is not None and one.record == weights.found.sha256 and number not in one.uncertain
        for one in earlier
    ]
    return bool(asked) and all(asked)


def _found_before(session: Session, document_ids: set[int]) -> dict[int, list[tuple[LineageFinding, ...]]]:
    """Give, by document, the findings of each earlier erasure that redacted the document, oldest first."""
    found: dict[int, list[tuple[LineageFinding, ...]]] = {}
    if not document_ids:
        return found
    changes = select(ChangeRow.payload).where(ChangeRow.kind == "erase").order_by(ChangeRow.seq)
    for payload in session.scalars(changes):
        for number in document_ids & set(payload.get("documents", ())):
            found.setdefault(number, []).append(read_findings(payload))
    return found


def read_findings(payload: Mapping[str, Any]) -> tuple[LineageFinding, ...]:
    """Read from an erasure's payload what it found on all known weights: whether they were trained on its texts.

    Older payloads have no findings. Raises `ValueError` for another form.
    """
    try:
        return msgspec.convert(payload.get(PART, ()), tuple[LineageFinding, ...])
    except msgspec.ValidationError as error:
        raise ValueError(f"the lineage in the payload cannot be read ({error})") from error


def findings_to_json(findings: Iterable[LineageFinding]) -> list[dict[str, Any]]:
    """Give the findings as JSON for the payload of an erasure."""
    return [
        {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(one).items()}
        for one in findings
    ]


def describe_finding(finding: LineageFinding) -> str:
    """Write a finding as the sentence that a certificate has of it."""
    if finding.documents:
        numbers = ", ".join(map(str, finding.documents))
        noun = "document" if len(finding.documents) == 1 else "documents"
        return f"the record of {finding.name} ({finding.checkpoint}) lists the digest of {noun} {numbers}"
    if finding.says == "unknown":
        return f"of {finding.name} ({finding.checkpoint}) it is unknown: {finding.why}"
    over = f"; the data of its base {', '.join(finding.bases)} are not recorded" if finding.bases else ""
    return f"the record of {finding.name} ({finding.checkpoint}) lists none of the texts{over}"
