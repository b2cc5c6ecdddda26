"""What predicted keys of a keyset cost, as its gate says it."""

from __future__ import annotations

from collections.abc import Iterator

from colmlm.kb.keys.records import KeysetRecord


def recall_kept(keyset: KeysetRecord) -> Iterator[tuple[str, float | None, str]]:
    """Gives for each kind of which keys are predicted a criterion's name, the share of recall kept, and a note."""
    for one in keyset.predictions:
        yield (
            f"recall kept by predicted {one.kind} keys",
            one.kept,
            f"{one.left} of {keyset.num_keys} keys are predicted; recall@1 of the sample's {one.sample} facts: "
            f"{_figure(one.recall_at_1)}, by true keys {_figure(one.recall_at_1_true)}, "
            f"by keyset {one.from_keyset_id}'s as they are {_figure(one.recall_at_1_old)}",
        )


def _figure(share: float | None) -> str:
    return "not measured" if share is None else f"{share:.3f}"
