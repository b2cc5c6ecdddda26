"""How a checkpoint is trained; saved with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """One training run. The defaults are the small preset for two CPU cores, LoRA on SmolLM2-135M.

    `temperature`, `contrastive_weight` and `max_question_length` are the paper's (appendix A).
    A step takes `batch_documents` documents in blocks of `block` neighbours from the corpus, so that
    facts of one article are each other's hard negatives. `qa_fraction` of the pairs are queried as
    ``Question: ... Answer: <FACT>`` instead of at ``<FACT-q>``, since that is how the decoder will ask.
    `ntp_fraction` of the unmasked positions carry the next-token loss (the head is 20 % of a step).
    The rate warms up, stays, and falls linearly over the last `cooldown` share of the run, which ends at
    `steps` or after `max_seconds`, whichever is first.
    """

    base: str = "smollm2-135m"
    steps: int = 600
    max_seconds: float | None = None
    batch_documents: int = 16
    block: int = 4
    max_length: int = 512
    max_question_length: int = 128
    temperature: float = 0.07
    contrastive_weight: float = 0.25
    qa_fraction: float = 0.4
    title_fraction: float = 0.5
    ntp_fraction: float = 0.3
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0
    warmup_steps: int = 20
    cooldown: float = 0.3
    lora_rank: int = 16
    lora_alpha: int = 32
    seed: int = 17
    precision: str = "auto"

    def __post_init__(self) -> None:
        if self.batch_documents % self.block:
            raise ValueError(f"batch_documents {self.batch_documents} is no multiple of block {self.block}")
        if self.steps < 1 or not 0 <= self.cooldown <= 1 or self.temperature <= 0:
            raise ValueError("steps and temperature must be positive and cooldown within [0, 1]")
        if self.precision not in ("auto", "fp32", "bf16"):
            raise ValueError(f"precision {self.precision!r} is not auto, fp32 or bf16")
