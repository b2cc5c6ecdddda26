"""A real, tiny Llama with a byte tokenizer and fixed random weights: real parts at test size."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import LlamaConfig, LlamaForCausalLM

from model.config import CheckpointConfig
from model.tokens import ADDED_TOKENS, END_OF_TEXT, FactTokenizer


def byte_tokenizer(*, space_inside: bool = True) -> FactTokenizer:
    """One token a byte, end-of-text, and the three added tokens."""
    vocabulary = {character: i for i, character in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return FactTokenizer(tokenizer, space_inside=space_inside)


def tiny_llama(vocabulary: int, seed: int = 3) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def tiny_base(path: Path, seed: int = 3) -> Path:
    """A base model directory, without the three tokens: what training starts from."""
    tokenizer = byte_tokenizer()
    path.mkdir(parents=True, exist_ok=True)
    tiny_llama(tokenizer.vocabulary_size - len(ADDED_TOKENS), seed).save_pretrained(path)
    plain = Tokenizer.from_str(tokenizer.tokenizer.to_str())
    vocabulary = {t: i for t, i in plain.get_vocab(with_added_tokens=False).items()}
    bare = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    bare.pre_tokenizer = ByteLevel(add_prefix_space=False)
    bare.decoder = ByteLevelDecoder()
    bare.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    bare.save(str(path / "tokenizer.json"))
    return path


def tiny_checkpoint(path: Path, seed: int = 3, *, eagerness: float = 1.0, space_inside: bool = True) -> Path:
    """A full checkpoint directory that `model.checkpoint.load` takes.

    `eagerness` scales the row of ``<FACT>``, and with it how often the model wants to look something up: at 1
    next to never, at 20 nearly every other token.
    """
    tokenizer = byte_tokenizer()
    model = tiny_llama(tokenizer.vocabulary_size, seed)
    with torch.no_grad():
        model.get_input_embeddings().weight[tokenizer.fact] *= eagerness
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tokenizer.save(path / "tokenizer.json")
    CheckpointConfig(
        name=f"tiny-{seed}", kind="full", base=None, dim=64, space_inside=space_inside
    ).save(path)
    return path


TEXTS = (
    "The capital of Peru is Lima, and in the year 1981 the river rose by 12 m. ",
    "In 1911 the explorer came to the old city in the mountains of Peru; it's the best known. ",
    "The explorer's name is known in the city, and the year of the river is 1981. ",
)


def merging_tokenizer(*, space_inside: bool = True) -> FactTokenizer:
    """A byte-level BPE with a few hundred merges, learnt from `TEXTS`: words are tokens, as in a real one."""
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
