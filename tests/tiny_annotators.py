"""Real but tiny annotators with random weights: BERTs that tag letters, and Llamas that write bytes."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import BertConfig, BertForTokenClassification, BertModel, LlamaForCausalLM

from colmlm.model.annotate.bio import TAGS
from colmlm.model.annotate.checkpoint import AnnotatorConfig
from colmlm.model.text.tokens import END_OF_TEXT
from tests.tiny import bare_tokenizer, tiny_llama

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
ANSWER = "\nAnswer:"


def letter_tokenizer() -> Tokenizer:
    """Makes a tokenizer with one token per letter, digit or ASCII sign, so that a word is several tokens."""
    signs = string.ascii_lowercase + string.digits + string.punctuation
    vocabulary = [*SPECIAL, *signs, *(f"##{sign}" for sign in signs)]
    tokenizer = Tokenizer(WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def _bert_config(vocabulary: int, spread: float) -> BertConfig:
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=256,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=spread,
        num_labels=len(TAGS),
    )


def tiny_encoder(path: Path, seed: int = 3) -> Path:
    """Writes the directory of a base encoder, from which training of a span annotator starts."""
    tokenizer = letter_tokenizer()
    torch.manual_seed(seed)
    path.mkdir(parents=True, exist_ok=True)
    BertModel(_bert_config(tokenizer.get_vocab_size(), 0.02)).save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def tiny_span_annotator(path: Path, seed: int = 3, *, window: int = 24, overlap: int = 8) -> Path:
    """Writes a span annotator that `SpanAnnotator.load` can load; it marks about a third of the words, at random."""
    tokenizer = letter_tokenizer()
    torch.manual_seed(seed)
    path.mkdir(parents=True, exist_ok=True)
    BertForTokenClassification(_bert_config(tokenizer.get_vocab_size(), 0.2)).save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    AnnotatorConfig(
        name="tiny", role="spans", kind="full", base="none",
        reading={"window": window, "overlap": overlap, "threshold": 0.5},
    ).save(path)  # fmt: skip
    return path


def tiny_question_generator(
    path: Path, seed: int = 3, *, window: int = 256, max_new_tokens: int = 12
) -> Path:
    """Writes a question generator that `QuestionGenerator.load` can load. Its bytes are random, rarely a question."""
    tokenizer = bare_tokenizer()
    model = tiny_llama(tokenizer.get_vocab_size(), seed, tied=False, spread=0.2)
    return _saved(path, model, tokenizer, window, max_new_tokens)


def tiny_line_writer(path: Path, seed: int = 22, *, window: int = 256, max_new_tokens: int = 40) -> Path:
    """Writes a question generator that writes random letters as a question and as its answer, and then ends.

    One token begins an answer, and it is likely everywhere. So lines have all lengths.
    """
    tokenizer = bare_tokenizer()
    tokenizer.add_tokens([AddedToken(ANSWER, normalized=False)])
    model = tiny_llama(tokenizer.get_vocab_size(), seed, tied=False, spread=0.2)
    eagerness = torch.zeros(tokenizer.get_vocab_size(), 1)
    eagerness[[tokenizer.token_to_id(letter) for letter in string.ascii_lowercase]] = 1.0
    eagerness[tokenizer.token_to_id(ANSWER)], eagerness[tokenizer.token_to_id(END_OF_TEXT)] = 2.0, 0.8
    with torch.no_grad():
        model.lm_head.weight *= eagerness
    return _saved(path, model, tokenizer, window, max_new_tokens)


def _saved(
    path: Path, model: LlamaForCausalLM, tokenizer: Tokenizer, window: int, max_new_tokens: int
) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    AnnotatorConfig(
        name="tiny", role="questions", kind="full", base="none",
        reading={"window": window, "max_new_tokens": max_new_tokens},
    ).save(path)  # fmt: skip
    return path
