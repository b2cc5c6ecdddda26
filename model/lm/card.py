"""The model card of an exported checkpoint: what it is, what it was made of, and how its lookups are asked."""

from __future__ import annotations

from colmlm.model.lm.base_models import WHEEL_BASE, WHEEL_HUB_ID
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.config import CheckpointConfig
from colmlm.model.lm.families import family_of
from colmlm.model.text.markup import CO_LMLM

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
