"""Dry runs: an edit is done by the code of its dry run alone, so that nothing is changed that was not shown before.

The code is a keyed digest (HMAC) of who asks, what was asked for, and the facts as they stood. The key is a secret of
the process, so that nobody can compute a code and skip the dry run. Where a fact was edited since, or anything else is
asked for, the code no longer fits. Since the edit itself changes the facts, it is good for one edit: a call that is
repeated because its answer was lost is refused. The process has to remember no code.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from colmlm.api.mcp.caller import Caller
from colmlm.api.mcp.citing import facts_of
from colmlm.kb.errors import Conflict
from colmlm.kb.facts.records import Edit, FactRecord

SHOWN = 50  # facts


class DryRunNeeded(Conflict):
    title = "Dry run needed"

    def __init__(self, tool: str) -> None:
        super().__init__(
            "This code is of no dry run that you made of this edit: a fact was edited since, something else is asked "
            "for now, or this process was started anew. "
            f"Nothing was done. Call {tool} without `confirm`, show what it says, and pass the code that it gives."
        )


@dataclass(frozen=True, slots=True)
class DryRun:
    """An edit before it is done: who asks which tool for what, the facts it is about, and what else to show.

    `beside` are facts that the edit leaves alone, and that decide whether it makes sense.
    """

    caller: Caller
    tool: str
    asked: Sequence[Any]
    reason: str
    facts: Sequence[FactRecord]
    would: str
    beside: Sequence[FactRecord] = ()

    @property
    def code(self) -> str:
        standing = [_standing(self.facts), _standing(self.beside)]
        who = str(self.caller.principal or self.caller.actor)
        asked = msgspec.json.encode((who, self.tool, self.asked, self.reason, standing))
        return hmac.digest(self.caller.secret, asked, "sha256").hex()[:16]

    def or_done(self, confirm: str, edit: Callable[[], Edit], **more: Any) -> dict[str, Any]:
        """Shows the edit; where `confirm` is its code, does it. Raises `DryRunNeeded` where it is another."""
        if not confirm:
            return self._shown(more)
        if not hmac.compare_digest(confirm.encode(), self.code.encode()):
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
