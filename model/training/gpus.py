"""Graphics processors that a plan knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peak of dense bf16 arithmetic in FLOP/s, and memory in bytes, as the vendor states them."""

    peak: float
    memory: int


GPUS = {
    "a100": Gpu(312e12, 80 * 10**9),
    "h100": Gpu(989e12, 80 * 10**9),
    "h200": Gpu(989e12, 141 * 10**9),
    "b200": Gpu(2250e12, 180 * 10**9),
}
