"""Real but tiny annotators: BERTs that tag words, and Llamas that write bytes, with random weights or chosen ones."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import BertConfig, BertForTokenClassification, BertModel, PreTrainedModel

from colmlm.model.annotate.checkpoint import AnnotatorConfig
from colmlm.model.annotate.spans import BEGIN, INSIDE, OUTSIDE, TAGS
from colmlm.model.text.tokens import END_OF_TEXT
from tests.tiny import bare_tokenizer, tiny_llama

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
ANSWER = "\nAnswer:"
YEARS = tuple(map(str, range(1000, 3000)))


def letter_tokenizer(whole: Sequence[str] = ()) -> Tokenizer:
    """Makes a tokenizer with one token per letter, digit or ASCII sign, so that a word is several tokens.

    The words of `whole` are one token each.
    """
    signs = string.ascii_lowercase + string.digits + string.punctuation
    vocabulary = [*SPECIAL, *signs, *(f"##{sign}" for sign in signs), *whole]
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
    model = BertForTokenClassification(_bert_config(tokenizer.get_vocab_size(), 0.2))
    return _saved(path, model, tokenizer, "spans", {"window": window, "overlap": overlap, "threshold": 0.5})


def tiny_reader(path: Path, seed: int = 3, *, window: int = 64) -> Path:
    """Writes a reader that `ExtractiveReader.load` can load; its answers are random."""
    tokenizer = letter_tokenizer()
    torch.manual_seed(seed)
    config = _bert_config(tokenizer.get_vocab_size(), 0.2)
    config.num_labels = 2
    return _saved(path, BertForTokenClassification(config), tokenizer, "answers", {"window": window})


def tiny_year_finder(path: Path) -> Path:
    """Writes a span annotator to which every year is a fact: its weights are chosen, and nothing else counts."""
    tokenizer = letter_tokenizer(whole=YEARS)
    model = BertForTokenClassification(_bert_config(tokenizer.get_vocab_size(), 0.2))
    years = torch.tensor([tokenizer.token_to_id(year) for year in YEARS])
    mark = torch.tensor([1.0, -1.0]).repeat(16)  # of a year; any other token has its opposite
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "LayerNorm" not in name:
                weights.zero_()
        model.bert.embeddings.word_embeddings.weight[:] = -mark
        model.bert.embeddings.word_embeddings.weight[years] = mark
        model.classifier.weight[BEGIN], model.classifier.weight[OUTSIDE] = mark, -mark
        model.classifier.bias[INSIDE] = -100.0
    return _saved(path, model, tokenizer, "spans", {"window": 256, "overlap": 64, "threshold": 0.5})


def tiny_asker(path: Path, question: str) -> Path:
    """Writes a question generator that asks this of every span, and answers that it is so."""
    written = f" {question}{ANSWER} so"
    tokenizer = bare_tokenizer()
    tokenizer.add_tokens([AddedToken(written, normalized=False)])
    model = tiny_llama(tokenizer.get_vocab_size(), tied=False)
    follows = {":": written, written: END_OF_TEXT}  # a token decides the next one alone
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "norm" not in name:
                weights.zero_()
        for place, (token, following) in enumerate(follows.items()):
            model.model.embed_tokens.weight[tokenizer.token_to_id(token), place] = 1.0
            model.lm_head.weight[tokenizer.token_to_id(following), place] = 1.0
    return _saved(path, model, tokenizer, "questions", {"window": 256, "max_new_tokens": 4})


def tiny_question_generator(
    path: Path, seed: int = 3, *, window: int = 256, max_new_tokens: int = 12
) -> Path:
    """Writes a question generator that `QuestionGenerator.load` can load. Its bytes are random, rarely a question."""
    tokenizer = bare_tokenizer()
    model = tiny_llama(tokenizer.get_vocab_size(), seed, tied=False, spread=0.2)
    return _saved(path, model, tokenizer, "questions", {"window": window, "max_new_tokens": max_new_tokens})


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
    return _saved(path, model, tokenizer, "questions", {"window": window, "max_new_tokens": max_new_tokens})


def _saved(
    path: Path, model: PreTrainedModel, tokenizer: Tokenizer, role: str, reading: dict[str, float]
) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    AnnotatorConfig(name="tiny", role=role, kind="full", base="none", reading=reading).save(path)
    return path
