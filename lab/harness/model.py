"""Registers the model class that lm_eval knows as `colmlm`, when it is imported. Needs the extra `harness`."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from lm_eval.api.model import LM
from lm_eval.api.registry import model_registry

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.output import progress
from colmlm.lab.methods.methods import Method, answerer
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.evaluate.continuations import HarnessRequest, HarnessResponder


class ColmlmLM(LM):  # type: ignore[misc]  # lm_eval need not be installed where types are checked
    """A checkpoint as lm_eval's model: in mode off without lookups, in mode auto with the environment's base."""

    def __init__(
        self,
        checkpoint: str | None = None,
        mode: str = "off",
        threshold: float | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,  # lm_eval passes it to every model; batches here have a fixed size
        device: str | None = None,
    ) -> None:
        super().__init__()
        runtime = Runtime.from_environment(checkpoint=_folder(checkpoint))
        atexit.register(runtime.__exit__)
        self.info: dict[str, Any] = {"mode": mode, "threshold": threshold}
        if mode == "off":
            decoder = Decoder(runtime.checkpoint, None)
        else:
            runtime.open()
            who = answerer(runtime, Method.co_lmlm, runtime.user.checkpoint, mode, ())
            decoder = who.decoder
            self.info |= who.run | {"seq": runtime.kb.log.head_seq()}
        self.info |= {
            "checkpoint": decoder.checkpoint.config.name,
            "checkpoint_id": decoder.checkpoint.checkpoint_id,
        }
        size = int(text) if (text := str(batch_size)).isdecimal() else 16  # lm_eval may also pass "auto"
        self.harness = HarnessResponder(decoder, mode, max(1, size), threshold)

    def get_model_info(self) -> dict[str, Any]:
        """Give what lm_eval writes beside the results."""
        return self.info

    @property
    def tokenizer_name(self) -> str:
        return str(self.info["checkpoint_id"])

    def loglikelihood(self, requests: Sequence[HarnessRequest]) -> list[tuple[float, bool]]:
        with progress("Scoring") as self.harness.advance:
            return self.harness.loglikelihood(requests)

    def loglikelihood_rolling(self, requests: Sequence[HarnessRequest]) -> list[float]:
        with progress("Scoring") as self.harness.advance:
            return self.harness.loglikelihood_rolling(requests)

    def generate_until(self, requests: Sequence[HarnessRequest]) -> list[str]:
        with progress("Generating") as self.harness.advance:
            return self.harness.generate_until(requests)


def _folder(checkpoint: str | None) -> Path | None:
    if checkpoint is None:
        return None
    if not Path(checkpoint).is_dir():
        raise typer.BadParameter(
            f"{checkpoint} is no folder; name one with a checkpoint.", param_hint="checkpoint"
        )
    return Path(checkpoint)


model_registry.register("colmlm")(ColmlmLM)
