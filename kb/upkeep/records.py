"""Records of checks."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FsckReport:
    """The differences that `fsck` found. It is `ok` only where nothing is missing, left over or broken.

    `chain_breaks` are breaks of the log; `chain_sealed` are those that were acknowledged, and do not affect `chain_ok`
    and `ok`.

    `mendable` is what a repair clears up although no answer depends on it: snapshots that were refused, files left
    over, keysets that have all keys and were not marked ready. `quoting` is what still says an erased fact.
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
