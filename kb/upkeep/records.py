"""What checks find."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FsckReport:
    """Sets compared, not counts: `ok` only where nothing is missing, left over or broken.

    `chain_breaks` are changes of the log that do not fit, and `chain_sealed` those that were acknowledged: they leave
    `chain_ok` and `ok` as they are.

    `mendable` is what a repair clears up though no answer depends on it: snapshots that are refused, files left
    over, keysets that were keyed to the end and not finished. `quoting` is what still says an erased fact.
    """

    ok: bool
    live_facts: int
    live_keys: int
    index_ids: int
    keys_missing_from_index: tuple[int, ...]
    index_ids_without_live_key: tuple[int, ...]
    unkeyed_facts: int
    non_verbatim_facts: tuple[int, ...]
    changes_checked: int
    chain_ok: bool
    chain_first_break: int | None
    chain_breaks: tuple[int, ...] = field(default=())
    chain_sealed: tuple[int, ...] = field(default=())
    problems: tuple[str, ...] = field(default=())
    mendable: tuple[str, ...] = field(default=())
    quoting: tuple[str, ...] = field(default=())
