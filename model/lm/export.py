"""The plain form of a checkpoint, for other programs: what transformers, other runtimes and the hub take as it is.

It is a model of its family with the rows of the added tokens at the end of its vocabulary; the paper's checkpoints are
released in that form, too. It ends its texts by itself, and reads a conversation in the form that this program's
server does; looking facts up is what the program around it has to do (docs/runtimes.md).
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from colmlm.model.lm.base_models import WHEEL_BASE, WHEEL_HUB_ID
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.config import CheckpointConfig
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


def export(checkpoint: Checkpoint, target: Path, *, dtype: str | None = None) -> None:
    """Writes the plain form, with a model card and the licence; `load` reads it back with the same keys.

    `dtype` is one of `DTYPES`; None is the one in which the checkpoint is loaded.
    """
    target.mkdir(parents=True, exist_ok=True)
    model = _plain(checkpoint, dtype)
    model.save_pretrained(target)
    plain_tokenizer(checkpoint).save_pretrained(target)
    describe(checkpoint, target)
    config = checkpoint.config
    CheckpointConfig(
        name=config.name, kind="full", base=config.base, dim=config.dim, space_inside=config.space_inside,
        method=config.method, training=config.training, decoding=config.decoding,
    ).save(target)  # fmt: skip
    for file in target.iterdir():
        file.chmod(MODE)


def describe(checkpoint: Checkpoint, target: Path) -> None:
    """Writes the model card, and the licence where it is this program's."""
    (target / "README.md").write_text(card(checkpoint))
    if is_of_ours(checkpoint.config):
        (target / "LICENSE").write_text(_licence())


def plain_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerFast:
    """Gives the tokenizer as transformers has it. It begins each text as documents begin."""
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
    """Gives the licence of this program, under which its weights are released, too."""
    try:
        text = distribution("colmlm").read_text("licenses/LICENSE")
    except PackageNotFoundError:  # run from its sources
        text = None
    return text or (Path(__file__).resolve().parents[2] / "LICENSE").read_text()


def _plain(checkpoint: Checkpoint, dtype: str | None) -> PreTrainedModel:
    """Gives a copy of the model that says by which tokens a text ends."""
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
    """Gives the card as Markdown with the front matter that model hubs read. All of it is of the checkpoint itself."""
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
    """Tells whether the weights have this program's licence: they are its own, or lie over the base that it brings."""
    return config.base in (None, WHEEL_BASE, WHEEL_HUB_ID)


def licence(config: CheckpointConfig) -> str:
    """Gives the licence as hubs name it; over other bases it is that of the base, which is not known here."""
    return "apache-2.0" if is_of_ours(config) else "other"


def _training(checkpoint: Checkpoint) -> str:
    """Gives a row for each plain value of the record of the training run."""
    record = checkpoint.config.training
    rows = {name: value for name, value in record.items() if isinstance(value, str | int | float)}
    return "".join(f"| {name.replace('_', ' ')} | {value} |\n" for name, value in sorted(rows.items()))
