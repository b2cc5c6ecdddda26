"""A real but tiny Llama with a byte tokenizer and fixed random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from colmlm.model.lm.config import CheckpointConfig
from colmlm.model.lm.language_model import FactLM
from colmlm.model.text.markup import CO_LMLM, Markup
from colmlm.model.text.tokens import END_OF_TEXT, EncodedText, FactTokenizer


def bare_tokenizer() -> Tokenizer:
    """Makes a tokenizer with one token per byte, and end-of-text."""
    vocabulary = {character: i for i, character in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return tokenizer


def byte_tokenizer(*, space_inside: bool = True) -> FactTokenizer:
    """Makes a tokenizer with one token per byte, end-of-text, and the three added tokens."""
    return FactTokenizer(bare_tokenizer(), space_inside=space_inside)


def tiny_llama(
    vocabulary: int,
    seed: int = 3,
    *,
    tied: bool = True,
    spread: float = 0.02,
    ends: Sequence[int] = (256,),
) -> LlamaForCausalLM:
    """Makes a Llama. `spread` is the weights' standard deviation: the larger, the more a state depends on context.

    The tokens that end a text are `ends`, by default the byte tokenizer's own.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=ends[0] if len(ends) == 1 else list(ends),
        pad_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def tiny_base(path: Path, seed: int = 3) -> Path:
    """Writes the directory of a base model without the three tokens, from which training starts."""
    tokenizer = bare_tokenizer()
    path.mkdir(parents=True, exist_ok=True)
    tiny_llama(tokenizer.get_vocab_size(), seed).save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def tiny_sentence_model(path: Path, seed: int = 3) -> Path:
    """Writes the directory of a BERT-like encoder with one token per byte, which a sentence encoder can load."""
    torch.manual_seed(seed)
    tokenizer = bare_tokenizer()
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=300,
        initializer_range=0.5,
    )
    path.mkdir(parents=True, exist_ok=True)
    BertModel(config).eval().save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def tiny_checkpoint(
    path: Path,
    seed: int = 3,
    *,
    eagerness: float = 0.0,
    space_inside: bool = True,
    markup: Markup = CO_LMLM,
    ends: Sequence[int] = (256,),
) -> Path:
    """Writes a full checkpoint directory, which `model.lm.checkpoint.load` can load.

    `eagerness` is how likely the model is to open a lookup: at 0 almost never, from 5 on at about every fourth token,
    with queries in many directions (its weights are then other random ones with a larger spread).
    """
    tokenizer = FactTokenizer(bare_tokenizer(), markup=markup, space_inside=space_inside)
    model = tiny_llama(tokenizer.vocabulary_size, seed, ends=ends)
    if eagerness:
        model = tiny_llama(tokenizer.vocabulary_size, seed, tied=False, spread=0.2, ends=ends)
        with torch.no_grad():
            model.lm_head.weight[tokenizer.fact] *= eagerness
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tokenizer.save(path / "tokenizer.json")
    CheckpointConfig(
        name=f"tiny-{seed}",
        kind="full",
        base=None,
        dim=64,
        method=markup.method,
        space_inside=space_inside,
    ).save(path)
    return path


TEXTS = (
    "The capital of Peru is Lima, and in the year 1981 the river rose by 12 m. ",
    "In 1911 the explorer came to the old city in the mountains of Peru; it's the best known. ",
    "The explorer's name is known in the city, and the year of the river is 1981. ",
)


def merging_tokenizer(*, space_inside: bool = True) -> FactTokenizer:
    """Makes a byte-level BPE with a few hundred merges, learnt from `TEXTS`: words are tokens, as in a real one."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=600,
        min_frequency=1,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return FactTokenizer(tokenizer, space_inside=space_inside)


def states_of(
    lm: FactLM,
    sequences: Sequence[EncodedText],
    *,
    max_tokens: int | None = None,
    keep: Sequence[Sequence[int]] | None = None,
) -> list[torch.Tensor]:
    """Give the states of each sequence, in order: [T_i, D], or only those at the positions in `keep`."""
    if not sequences:
        return []
    wanted = [range(len(one)) for one in sequences] if keep is None else keep
    states_MD = lm.states_at(sequences, wanted, max_tokens=max_tokens)
    return list(states_MD.split([len(one) for one in wanted]))
