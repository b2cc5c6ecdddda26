"""Facts and their sources as tools show them: every value with the place that says it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from colmlm.kb.facts.records import FactRecord, SamplePlace, Source

DOCUMENTS, FACTS = "colmlm://documents", "colmlm://facts"


def plain(record: Any) -> Any:
    """Gives a record as what JSON holds, without what it does not say (None, and empty lists)."""
    told = msgspec.to_builtins(
        {field.name: getattr(record, field.name) for field in fields(record)}
        if is_dataclass(record)
        else record
    )
    return (
        {name: value for name, value in told.items() if value not in (None, [])}
        if isinstance(told, dict)
        else told
    )


def cited(source: Source | None, sample: SamplePlace | None = None) -> dict[str, Any]:
    """Gives where a document says something: in words, as `citation`, and the resource to read it in."""
    if sample is not None:
        place = f"{sample.corpus}, sample {sample.sample_id}, fact {sample.fact_idx} (a release: its text is not here)"
        return {"citation": place}
    if source is None:
        return {"citation": "a fact that no document says"}
    where = f"{source.corpus}/{source.external_id}, characters {source.start} to {source.end}"
    about = ", ".join(part for part in (source.title, source.uri, source.licence) if part)
    return {
        "citation": f"{where} ({about})" if about else where,
        "document": f"{DOCUMENTS}/{source.document_id}",
        "start": source.start,
        "end": source.end,
    }


def fact_of(fact: FactRecord) -> dict[str, Any]:
    """Gives a fact with its state and its citation."""
    told = {
        "fact_id": fact.fact_id,
        "value": fact.value,
        "question": fact.question,
        "version": fact.version,
        "state": state_of(fact),
        "review": fact.review,
        **cited(fact.source, fact.sample),
    }
    return {**told, "withheld": True} if fact.withheld else told


def facts_of(facts: Iterable[FactRecord]) -> list[dict[str, Any]]:
    return [fact_of(fact) for fact in facts]


def state_of(fact: FactRecord) -> str:
    """Gives "live", or by which change it was deleted or erased."""
    if fact.erased_seq is not None:
        return f"erased by change {fact.erased_seq}"
    return "live" if fact.deleted_seq is None else f"deleted by change {fact.deleted_seq}"
