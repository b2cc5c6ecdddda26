"""Predicts a keyset's keys from another's, for commands and jobs, and says what that did."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from colmlm.cli.composition.keying import calibrated
from colmlm.kb.progress import Telling

if TYPE_CHECKING:
    from colmlm.kb.keys.records import AdaptedKeys, Adapting
    from colmlm.kb.keys.rekey import Encoder
    from colmlm.kb.service import KnowledgeBase


def adapt(
    kb: KnowledgeBase, encoder: Encoder, telling: Telling, corpus: str | None, how: Adapting
) -> dict[str, Any]:
    """Fill the keyset of the encoder's checkpoint with predicted keys and calibrates it.

    Gives a member `pairs`, with what was done for each kind of key, and the `keyset`.
    """
    with telling.progress("Adapting keys") as advance:
        keyset, adapted = kb.keysets.adapt(encoder, corpus=corpus, on_facts=advance, **how)
    keyset = calibrated(kb, encoder, keyset, telling)
    keyset_id = keyset.keyset_id
    telling.note(
        f"{keyset.num_predicted} of {keyset.num_keys} keys of keyset {keyset_id} are predicted. To let it answer: "
        f"colmlm keysets check {keyset_id}, then: colmlm keysets activate {keyset_id}. "
        f"To make its keys true, those that are asked for first: colmlm keysets fill {keyset_id}"
    )
    return {"pairs": [pair(one) for one in adapted], "keyset": asdict(keyset)}


def pair(adapted: AdaptedKeys) -> dict[str, Any]:
    """Give what was done for a kind of key, in one flat object."""
    prediction = asdict(adapted.prediction)
    figures = {name: value for name, value in prediction.items() if name.startswith("recall")}
    return {
        "from": adapted.from_checkpoint,
        "to": adapted.to_checkpoint,
        "kind": prediction["kind"],
        "facts": adapted.facts,
        "predicted": adapted.predicted,
        "sample": prediction["sample"],
        "method": prediction["method"],
        **figures,
        "seconds": adapted.seconds,
        "seconds_true": adapted.seconds_true,
    }
