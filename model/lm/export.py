"""The plain form of a checkpoint, for other programs: what transformers, llama.cpp and the hub take as it is.

It is a model of its family with the rows of the added tokens at the end of its vocabulary; the paper's checkpoints are
released in that form, too. It ends its texts by itself, and reads a conversation in the form that this program's
server does; looking facts up is what the program around it has to do (docs/models/runtimes.md).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType, LlamaFileType
from httpx2 import HTTPError
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from colmlm.kb.corpus.training_record import RECORD_FILE
from colmlm.model.lm.checkpoint import WHEEL_BASE, WHEEL_HUB_ID, Checkpoint, config_of
from colmlm.model.lm.config import CONFIG_FILE, CheckpointConfig, CheckpointError, copy_record
from colmlm.model.lm.language_model import family_of, model_of
from colmlm.model.text.markup import CO_LMLM

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
MODE = 0o644  # what is exported is there to be read by others
# The form in which the server's chats are read, see `colmlm.api.openai.fields`; a test compares the two.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}Question: {{ message['content'] }}\nAnswer:"
    "{% elif message['role'] == 'assistant' %} {{ message['content'] }}\n\n"
    "{% else %}{{ message['content'] }}\n\n{% endif %}{% endfor %}"
)


def export_plain(checkpoint: Checkpoint, target: Path, *, dtype: str | None = None) -> None:
    """Write a checkpoint's plain form, with model card and licence. `checkpoint.load` reads it back with the same keys.

    `dtype` is one of `DTYPES`; None is the one in which the checkpoint is loaded.
    """
    target.mkdir(parents=True, exist_ok=True)
    model = _plain_model(checkpoint, dtype)
    model.save_pretrained(target)
    plain_tokenizer(checkpoint).save_pretrained(target)
    write_card(checkpoint, target)
    if checkpoint.path is not None:
        copy_record(checkpoint.path, target, checkpoint.config.digests)
    config = checkpoint.config
    CheckpointConfig(
        name=config.name, kind="full", base=config.base, dim=config.dim, space_inside=config.space_inside,
        method=config.method, training=config.training, decoding=config.decoding,
    ).save(target)  # fmt: skip
    for file in target.iterdir():
        file.chmod(MODE)


def write_card(checkpoint: Checkpoint, target: Path) -> None:
    """Write the model card, and the licence where it is this program's."""
    (target / "README.md").write_text(card(checkpoint))
    if is_of_ours(checkpoint.config):
        (target / "LICENSE").write_text(_licence())


def plain_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerFast:
    """Give the checkpoint's tokenizer as one of transformers. It begins each text as documents begin."""
    ours = checkpoint.tokenizer
    tokenizer = Tokenizer.from_str(ours.tokenizer.to_str())
    tokenizer.encode_special_tokens = False
    begin, end = (str(tokenizer.id_to_token(i)) for i in (ours.begin, ours.end_of_text))
    tokenizer.post_processor = TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, ours.begin)])
    plain = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=end,
        pad_token=end,
        model_max_length=checkpoint.lm.causal.config.max_position_embeddings,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    plain.chat_template = CHAT_TEMPLATE
    return plain


def _licence() -> str:
    """Give the licence of this program, under which its weights are released, too."""
    try:
        text = distribution("colmlm").read_text("licenses/LICENSE")
    except PackageNotFoundError:  # run from its sources
        text = None
    return text or (Path(__file__).resolve().parents[2] / "LICENSE").read_text()


def _plain_model(checkpoint: Checkpoint, dtype: str | None) -> PreTrainedModel:
    """Copy the model into a plain transformers model whose configuration names the tokens that end a text."""
    causal = checkpoint.lm.causal
    wanted = causal.dtype if dtype is None else DTYPES[dtype]
    plain = model_of(type(causal.config).from_dict(causal.config.to_dict())).to(wanted)
    plain.load_state_dict({name: tensor.to(wanted) for name, tensor in causal.state_dict().items()})
    ids = {
        "bos_token_id": checkpoint.tokenizer.begin,
        "eos_token_id": checkpoint.end_tokens,
        "pad_token_id": checkpoint.tokenizer.end_of_text,
    }
    for name, value in ids.items():
        setattr(plain.config, name, value)
    plain.generation_config = GenerationConfig(**ids)
    return plain


# The model card of an exported checkpoint: what it is, what it was made of, and how its lookups are asked.

CARD = """---
license: {licence}
library_name: transformers
pipeline_tag: text-generation
language: en
tags: [limited-memory, knowledge-base, retrieval]
---
# {name}
A language model ({family}), {base}, that looks facts up instead of remembering them (Co-LMLM).
It is a base model: it goes on with a text, and ends it.

| | |
|---|---|
| checkpoint | `{checkpoint_id}` |
| method | `{method}` |
| parameters | {parameters:,} |
| context | {context:,} tokens |
{training}
## By itself
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForCausalLM.from_pretrained("{name}")
prompt = tokenizer("Question: What is the capital of Peru?\\nAnswer:", return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=40)[0]))
```
So nothing is looked up: what it writes after `{opens}` is a guess. Its chat template writes a conversation as
questions and answers.

## With a knowledge base
{asking}
```sh
pip install 'colmlm[cpu]'
colmlm corpus add handbook/ --corpus handbook
colmlm generate "Question: When did the canteen open? Answer:" --checkpoint {name}
```
"""
BY_STATE = """At `{opens}` the state after the last norm, of length one, is the query; the nearest key of a knowledge
base names a fact, whose value is put between `{opens}` and `{closes}`. A question that ends in `{key}` has a state
there that is near the keys of its answers."""
BY_WORDS = """It writes its query in words between `{opens}` and `{asks}`; the value that was found is put before
`{closes}`."""
NEVER = "It never asks: it is the baseline that was trained without lookups."


def card(checkpoint: Checkpoint) -> str:
    """Give a checkpoint's model card as Markdown, with the front matter that model hubs read."""
    config, markup = checkpoint.config, checkpoint.tokenizer.markup
    asking = NEVER if markup.opens is None else BY_STATE if markup.key == CO_LMLM.key else BY_WORDS
    named = {"opens": markup.opens, "closes": markup.closes, "asks": markup.asks, "key": markup.key}
    return CARD.format(
        name=config.name,
        licence=licence(config),
        family=family_of(checkpoint.lm.causal.config).name,
        base=f"over {config.base}" if config.base else "trained from random weights",
        checkpoint_id=checkpoint.checkpoint_id,
        method=config.method,
        parameters=checkpoint.lm.causal.num_parameters(),
        context=checkpoint.lm.causal.config.max_position_embeddings,
        training=_training(checkpoint),
        opens=markup.opens or "the prompt",
        asking=asking.format(**named),
    )


def is_of_ours(config: CheckpointConfig) -> bool:
    """Tell whether the weights have this program's licence: they are its own, or lie over the base that it brings."""
    return config.base in (None, WHEEL_BASE, WHEEL_HUB_ID)


def licence(config: CheckpointConfig) -> str:
    """Give the licence as hubs name it; over other bases it is that of the base, which is not known here."""
    return "apache-2.0" if is_of_ours(config) else "other"


def _training(checkpoint: Checkpoint) -> str:
    """Give the rows of the card's table: one for each text or number in the record of the training run."""
    record = checkpoint.config.training
    rows = {name: value for name, value in record.items() if isinstance(value, str | int | float)}
    return "".join(f"| {name.replace('_', ' ')} | {value} |\n" for name, value in sorted(rows.items()))


# One GGUF file, as llama.cpp and what is built on it read it.
#
# Queries and keys of attention are stored in that library's order of rotary pairs, norms in fp32. The tokenizer, the
# tokens that end a text and the chat template are in the file. Only what was checked is written: a Llama with unscaled
# rotations and a tokenizer like that of GPT-2 or SmolLM2.

ARCHITECTURE = gguf.MODEL_ARCH.LLAMA
GGUF_TYPES = {
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "fp16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "fp32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
}
Tensor = tuple[str, np.ndarray]


def export_gguf(checkpoint: Checkpoint, target: Path, *, dtype: str | None = None) -> Path:
    """Write a checkpoint as one GGUF file into `target`, with the card and the licence, and give the file's path.

    `dtype` is one of `GGUF_TYPES`; None is the one in which the checkpoint is loaded. Raises `CheckpointError` for
    models that are not written as GGUF here.
    """
    _require_known(checkpoint)
    target.mkdir(parents=True, exist_ok=True)
    loaded = {dtype: name for name, dtype in DTYPES.items()}[checkpoint.lm.causal.dtype]
    dtype = dtype or loaded
    file = target / f"{checkpoint.config.name}-{dtype}.gguf"
    if checkpoint.path is not None:
        copy_record(checkpoint.path, target, checkpoint.config.digests)
    _write_gguf(checkpoint, file, *GGUF_TYPES[dtype])
    write_card(checkpoint, target)
    for written in target.iterdir():
        written.chmod(MODE)
    return file


def _require_known(checkpoint: Checkpoint) -> None:
    config, record = checkpoint.lm.causal.config, json.loads(checkpoint.tokenizer.tokenizer.to_str())
    reason = None
    if config.model_type != "llama":
        reason = f"a model of {family_of(config).name}"
    elif config.rope_parameters["rope_type"] != "default":
        reason = f"rotations of kind {config.rope_parameters['rope_type']}"
    elif not _step_kinds(record["pre_tokenizer"]) <= {"ByteLevel", "Digits"}:
        reason = f"a tokenizer that cuts words by {', '.join(sorted(_step_kinds(record['pre_tokenizer'])))}"
    if reason is not None:
        raise CheckpointError(
            f"{checkpoint.config.name}: {reason} is not written as GGUF here; export it for transformers, "
            "and convert that by the program that comes with llama.cpp"
        )


def _step_kinds(pre_tokenizer: dict[str, Any] | None) -> set[str]:
    """Give the kinds of the steps by which a tokenizer cuts a text into words."""
    steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer or {"type": "nothing"}])
    return {step["type"] for step in steps}


def _write_gguf(
    checkpoint: Checkpoint, file: Path, stored: GGMLQuantizationType, kind: LlamaFileType
) -> None:
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[ARCHITECTURE])
    _describe_model(writer, checkpoint, kind)
    _describe_tokens(writer, checkpoint)
    for name, values in gguf_tensors(checkpoint.lm.causal):
        as_type = GGMLQuantizationType.F32 if values.ndim == 1 else stored
        writer.add_tensor(name, gguf.quants.quantize(values, as_type), raw_dtype=as_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(model: LlamaForCausalLM) -> Iterator[Tensor]:
    """Yield the GGUF name and the values in fp32 of each weight. An output layer tied to the embeddings is left out."""
    config = model.config
    names = gguf.get_tensor_name_map(ARCHITECTURE, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().cpu().numpy()
        if name.endswith("q_proj.weight"):
            values = _in_pairs(values, config.num_attention_heads)
        elif name.endswith("k_proj.weight"):
            values = _in_pairs(values, config.num_key_value_heads)
        yield str(names.get_name(name, try_suffixes=(".weight",))), values


def _in_pairs(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorder each head's rows so that the two of a rotary pair are adjacent; here they are half a head apart."""
    rows, width = values.shape
    return values.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def _describe_model(writer: gguf.GGUFWriter, checkpoint: Checkpoint, kind: LlamaFileType) -> None:
    config = checkpoint.lm.causal.config
    writer.add_name(checkpoint.config.name)
    writer.add_license(licence(checkpoint.config))
    writer.add_file_type(kind)
    if RECORD_FILE in checkpoint.config.digests:
        writer.add_string("colmlm.trained_on.sha256", checkpoint.config.digests[RECORD_FILE])
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _describe_tokens(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    ours = checkpoint.tokenizer
    ids = range(ours.vocabulary_size)
    record = json.loads(ours.tokenizer.to_str())
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in record["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if "Digits" in json.dumps(record["pre_tokenizer"]) else "gpt-2")
    writer.add_token_list([str(ours.tokenizer.id_to_token(i)) for i in ids])
    writer.add_token_types(
        [gguf.TokenType.CONTROL if i in ours.special else gguf.TokenType.NORMAL for i in ids]
    )
    writer.add_token_merges(merges)
    writer.add_bos_token_id(ours.begin)
    writer.add_eos_token_id(ours.end_of_text)
    writer.add_pad_token_id(ours.end_of_text)
    for other in checkpoint.end_tokens:
        if other != ours.end_of_text:
            writer.add_eot_token_id(other)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)


# Checkpoints on the Hugging Face hub: exported ones go there, and come back checked.
#
# The address and the token are those of the hub's own programs (``HF_ENDPOINT``, ``HF_TOKEN`` or ``hf auth login``).

# What an export has; nothing else is fetched, above all no pickle and no code.
FETCHED = ("*.json", "*.safetensors", "*.jinja", "README.md", "LICENSE")
MOST_ERROR_CHARACTERS = 200  # characters
_FAILURES = (HTTPError, HFValidationError, LocalEntryNotFoundError, ConnectionError)


@dataclass(frozen=True, slots=True)
class HubCommit:
    """A commit that was pushed: its address and its id."""

    url: str
    commit: str


def push_checkpoint(folder: Path, repo: str, *, private: bool) -> HubCommit:
    """Push an exported checkpoint as one commit, and make the repository where there is none.

    Raises `CheckpointError` where the hub refuses, or is not reached.
    """
    hub = HfApi()
    try:
        hub.create_repo(repo, private=private, exist_ok=True)
        done = hub.upload_folder(
            repo_id=repo, folder_path=folder, commit_message=f"{config_of(folder).name}, exported by colmlm"
        )
    except _FAILURES as error:
        remedy = _hub_remedy(error, "give a token that may write, from HF_TOKEN or `hf auth login`")
        raise CheckpointError(f"{repo}: the hub did not take it ({_error_line(error)}); {remedy}") from error
    return HubCommit(done.commit_url, done.oid)


def pull_checkpoint(repo: str, target: Path, *, revision: str | None = None) -> None:
    """Fetch a checkpoint into a new folder, and check its files against their digests.

    Raises `CheckpointError` where it cannot be fetched or is no checkpoint; then nothing is left in the folder.
    """
    try:
        snapshot_download(repo, revision=revision, local_dir=target, allow_patterns=list(FETCHED))
        shutil.rmtree(target / ".cache", ignore_errors=True)  # the hub's own notes
        _require_checkpoint(repo, target)
    except _FAILURES as error:
        shutil.rmtree(target, ignore_errors=True)
        token = "a private one takes a token, from HF_TOKEN or `hf auth login`"
        remedy = _hub_remedy(error, f"check the name, and --revision; {token}")
        raise CheckpointError(f"{repo}: cannot be fetched ({_error_line(error)}); {remedy}") from error
    except (CheckpointError, OSError):
        shutil.rmtree(target, ignore_errors=True)
        raise


def _require_checkpoint(repo: str, target: Path) -> None:
    if (target / CONFIG_FILE).is_file():
        config_of(target)
    elif not (target / "config.json").is_file():
        raise CheckpointError(
            f"{repo}: neither {CONFIG_FILE} nor config.json is there, so it is no checkpoint; name another repository"
        )


def _hub_remedy(error: Exception, refused: str) -> str:
    """Give the remedy for an error of the hub. `refused` is the remedy for the statuses 401, 403 and 404."""
    if isinstance(error, HFValidationError):
        return "name a repository as OWNER/NAME, such as me/mine"
    if not isinstance(error, HfHubHTTPError):
        return "check the network, and HF_ENDPOINT if you set it, then try again"
    if (status := error.response.status_code) in (401, 403, 404):
        return refused
    return "try again later" if status >= 500 or status == 429 else "correct what it names"


def _error_line(error: Exception) -> str:
    """Give an error's text in one line, cut to `MOST_ERROR_CHARACTERS`."""
    return " ".join(str(error).split())[:MOST_ERROR_CHARACTERS]
