"""Dry runs: an edit is done by the code of its dry run alone, so that nothing is changed that was not shown before.

The code is a digest of what was asked for and of the facts as they stood. Where one of them was edited since, or
anything else is asked for, it no longer fits. Since the edit itself changes the facts, it is good for one edit: a call
that is repeated because its answer was lost is refused. It keeps nobody out, which the rights of the caller do; any
process gives the same code, and none has to remember it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from colmlm.api.mcp.citing import facts_of
from colmlm.kb.errors import Conflict
from colmlm.kb.facts.records import Edit, FactRecord

SHOWN = 50  # facts


class DryRunNeeded(Conflict):
    title = "Dry run needed"

    def __init__(self, tool: str) -> None:
        super().__init__(
            f"This code is of no dry run of this edit: a fact was edited since, or something else is asked for now. "
            f"Nothing was done. Call {tool} without `confirm`, show what it says, and pass the code that it gives."
        )


@dataclass(frozen=True, slots=True)
class DryRun:
    """An edit before it is done: the tool with what it was asked for, the facts it is about, and what else to show.

    `beside` are facts that the edit leaves alone, and that decide whether it makes sense.
    """

    tool: str
    asked: Sequence[Any]
    reason: str
    facts: Sequence[FactRecord]
    would: str
    beside: Sequence[FactRecord] = ()

    @property
    def code(self) -> str:
        standing = [_standing(self.facts), _standing(self.beside)]
        asked = msgspec.json.encode((self.tool, self.asked, self.reason, standing))
        return hashlib.sha256(asked).hexdigest()[:8]

    def or_done(self, confirm: str, edit: Callable[[], Edit], **more: Any) -> dict[str, Any]:
        """Shows the edit; where `confirm` is its code, does it. Raises `DryRunNeeded` where it is another."""
        if not confirm:
            return self._shown(more)
        if confirm != self.code:
            raise DryRunNeeded(self.tool)
        done = edit()
        told = {"dry_run": False, "change": done.seq, "kind": done.kind, "fact_ids": list(done.fact_ids)}
        said = {"also_said_by": list(done.also_said_by)} if done.also_said_by else {}
        unkeyed = {} if done.keyed else {"unkeyed": "Lookups find it after the next `colmlm rekey`."}
        return {**told, **said, **unkeyed, "reason": self.reason}

    def _shown(self, more: dict[str, Any]) -> dict[str, Any]:
        return {
            "dry_run": True,
            "would": self.would,
            "facts": facts_of(self.facts[:SHOWN]),
            "num_facts": len(self.facts),
            **more,
            "reason": self.reason,
            "confirm": self.code,
            "next": f"Nothing was done. To do it, call {self.tool} again with the same arguments and this `confirm`.",
        }


def _standing(facts: Iterable[FactRecord]) -> list[tuple[int, int, int | None, str]]:
    return [(fact.fact_id, fact.version, fact.deleted_seq, fact.review) for fact in facts]
