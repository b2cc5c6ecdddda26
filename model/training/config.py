"""The settings that a checkpoint is trained with; they are saved with it."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from colmlm.model.lm.config import require_fields
from colmlm.model.text.markup import CO_LMLM, MARKUPS, Markup
from colmlm.model.text.passages import keywords_of, statement_of

RANDOM = "random"
ADAPT, PRECISION = ("full", "lora"), ("auto", "fp32", "bf16")
_FORMER = ("layout",)  # settings of earlier releases that changed nothing but the time


class TrainingRefused(ValueError):
    """A run cannot start as it is asked for: its data, its directory or its settings; the message says why."""


class TrainingBroken(RuntimeError):
    """A run cannot go on: a gradient is not finite, or another rank has ended. The last save is from before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A decoder of the Llama family without its vocabulary, which the tokenizer and the method determine.

    `context` is the longest sequence it may read. `spread` is the standard deviation of its random initial weights.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    rope_theta: float = 100_000.0
    context: int = 4096
    tied: bool = True
    norm_epsilon: float = 1e-5
    spread: float = 0.02

    def __post_init__(self) -> None:
        sizes = ("layers", "width", "heads", "kv_heads", "ffn", "context")
        require_fields(self, "positive", lambda value: value >= 1, *sizes)
        require_fields(
            self, f"a multiple of heads, {self.heads}", lambda width: not width % self.heads, "width"
        )
        multiple = f"a multiple of kv_heads, {self.kv_heads}"
        require_fields(self, multiple, lambda heads: not heads % self.kv_heads, "heads")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """One training run. The defaults are the preset `small`: LoRA on SmolLM2-135M-Instruct for two CPU cores.

    Start: `init` is "random" (weights of `architecture`, vocabulary of `tokenizer`), a base model, or the directory of
    a checkpoint to continue from. `adapt` is "full" (all weights) or "lora" on the top `lora_layers` layers (None:
    all).

    Data: a step takes `batch_documents` documents, or as many as fill `batch_rows` rows of `max_length` tokens; a
    document longer than `max_length` counts as several. They come in blocks of `block` neighbours from the corpus, so
    that facts of one article are each other's hard negatives. With `hard_negatives` each document also brings that many
    documents that the model confuses with it, which are searched every `mine_every` steps. A micro-batch takes
    `micro_documents` documents, or, where a batch is counted in rows, as many as fill `micro_rows` (None: all that a
    process has). Its sequences are packed. With `forward_tokens` a micro-batch is one forward of that fixed length, or
    of a quarter of it. None is the device's default (`model.training.forward`): a fixed length on a GPU, and only the
    tokens of the sequences on a CPU. `compile` compiles the layers, which takes minutes at first. `mix` weighs the
    corpora in the order they are given (empty: one corpus of them all), `cooldown_mix` likewise in the cooldown (empty:
    as `mix`). `title_fraction` of the documents begin with their title. `qa_fraction` of the pairs are queried at a
    ``<FACT>`` after the question, in one of the forms that `asking` names (`model.training.config`), instead of at
    ``<FACT-q>``, since the decoder will ask in such forms. In a share `paraphrase_fraction` of the spans that have an
    answer, the answer stands in place of the value, since a value that is looked up seldom has the words of the text
    around it (section 3.3 c).

    Loss: `temperature`, `contrastive_weight` and `max_question_length` are the paper's (appendix A). With
    `equal_negatives` every other pair is a negative, as in the paper's formula. Without it, pairs of equal questions
    are no negatives of each other. `memory` is the number of earlier pairs used as further negatives. `ntp_fraction` of
    the unmasked positions carry the next-token loss (the head is 20 % of a small step).

    Rate: it warms up, stays constant, and falls to `final_learning_rate` over the last `cooldown_steps` steps, or,
    where those are None, over the last `cooldown` share of the run. The run ends at `steps` or after `max_seconds`,
    whichever is first. It is saved every `save_seconds` of training.
    """

    preset: str = "small"
    method: str = "co-lmlm"

    init: str = "smollm2-135m"
    architecture: Architecture | None = None
    tokenizer: str = "smollm2-135m"
    adapt: str = "lora"
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_layers: int | None = None

    steps: int = 600
    max_seconds: float | None = None
    save_seconds: float = 300.0
    warmup_steps: int = 20
    cooldown_steps: int | None = None
    cooldown: float = 0.3
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    clip_norm: float = 1.0
    weight_decay: float = 0.0
    precision: str = "auto"
    checkpointing: bool = False
    seed: int = 17

    batch_documents: int = 16
    batch_rows: int | None = None
    micro_documents: int | None = None
    micro_rows: int | None = None
    block: int = 4
    forward_tokens: int | None = None
    compile: bool = False
    max_length: int = 512
    max_question_length: int = 128
    title_fraction: float = 0.5
    qa_fraction: float = 0.4
    asking: str = "questions"
    paraphrase_fraction: float = 0.0
    mix: tuple[float, ...] = ()
    cooldown_mix: tuple[float, ...] = ()
    hard_negatives: int = 0
    mine_every: int = 50

    temperature: float = 0.07
    contrastive_weight: float = 0.25
    equal_negatives: bool = False
    memory: int = 0
    ntp_fraction: float = 0.3

    def __post_init__(self) -> None:
        self._check_start()
        self._check_batches()
        self._check_rates()

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TrainConfig:
        """Read the config from a checkpoint's record; a field that the record lacks gets its default.

        Raises ValueError where the record has a setting that this program does not know.
        """
        kept = {name: value for name, value in record.items() if name not in _FORMER}
        values = {("init" if name == "base" else name): value for name, value in kept.items()}
        if unknown := sorted(values.keys() - {field.name for field in fields(cls)}):
            raise ValueError(f"its settings {', '.join(unknown)} are unknown; install a newer release")
        if values.get("architecture"):
            values["architecture"] = Architecture(**values["architecture"])
        return cls(**values | {name: tuple(values.get(name, ())) for name in ("mix", "cooldown_mix")})

    @property
    def markup(self) -> Markup:
        """Give the markup in which the run's method writes a lookup."""
        return MARKUPS[self.method]

    @property
    def cooldown_share(self) -> float:
        """Give the share of the run, by steps or by time, over which the learning rate falls."""
        return self.cooldown if self.cooldown_steps is None else self.cooldown_steps / self.steps

    @property
    def cooldown_start(self) -> int:
        """Give the number of the cooldown's first step in a run limited by steps; from it on `cooldown_mix` applies."""
        length = round(self.cooldown * self.steps) if self.cooldown_steps is None else self.cooldown_steps
        return self.steps - length

    def _check_start(self) -> None:
        _require_one_of("method", self.method, tuple(MARKUPS))
        _require_one_of("adapt", self.adapt, ADAPT)
        _require_one_of("precision", self.precision, PRECISION)
        if self.init == RANDOM and self.architecture is None:
            raise ValueError("random weights need an architecture; name a --preset of the paper's runs")
        if self.init != RANDOM and self.architecture is not None:
            raise ValueError(f"the weights of {self.init} have an architecture; leave that setting out")
        if self.init == RANDOM and self.adapt != "full":
            raise ValueError("an adapter over random weights learns next to nothing; pass --set adapt=full")
        self._require_positive("lora_rank", "lora_alpha", "lora_layers")
        context = self.max_length if self.architecture is None else self.architecture.context
        if context < self.max_length:
            raise ValueError(f"max_length {self.max_length} exceeds the context; pass --max-length {context}")

    def _check_batches(self) -> None:
        self._require_positive(
            "batch_documents", "batch_rows", "micro_documents", "micro_rows", "block", "mine_every",
            "forward_tokens",
        )  # fmt: skip
        if self.forward_tokens is not None and self.forward_tokens < self.max_length:
            raise ValueError(
                f"forward_tokens is {self.forward_tokens}; raise it to max_length, {self.max_length}"
            )
        size, block = self.batch_documents, self.block
        if self.batch_rows is None and (more := -size % block):
            raise ValueError(f"batch_documents {size} is no multiple of block {block}; take {size + more}")
        require_fields(self, "at least 4", lambda value: value >= 4, "max_length", "max_question_length")
        require_fields(self, "0 or more", lambda value: value >= 0, "hard_negatives", "memory")
        _require_one_of("asking", self.asking, tuple(ASKING))
        fractions = ("title_fraction", "qa_fraction", "paraphrase_fraction", "ntp_fraction")
        require_fields(self, "within [0, 1]", lambda value: 0 <= value <= 1, *fractions)
        weights = "weights of 0 or more, of which one is positive"
        require_fields(
            self, weights, lambda mix: not mix or (min(mix) >= 0 < sum(mix)), "mix", "cooldown_mix"
        )
        if self.mix and self.cooldown_mix and len(self.mix) != len(self.cooldown_mix):
            raise ValueError("mix and cooldown_mix must weigh the same corpora; give both as many weights")

    def _check_rates(self) -> None:
        positive = ("temperature", "learning_rate", "epsilon", "clip_norm")
        require_fields(self, "positive", lambda value: value > 0, *positive)
        self._require_positive("steps")
        require_fields(self, "within [0, 1]", lambda value: 0 <= value <= 1, "cooldown")
        require_fields(self, "within [0, 1)", lambda value: 0 <= value < 1, "beta1", "beta2")
        steps, peak = self.steps, self.learning_rate
        most, rates = f"from 0 to {steps} (steps)", f"from 0 to {peak} (learning_rate)"
        require_fields(self, most, lambda value: 0 <= value <= steps, "cooldown_steps")
        require_fields(self, rates, lambda value: 0 <= value <= peak, "final_learning_rate")
        least = ("warmup_steps", "weight_decay", "contrastive_weight", "save_seconds")
        require_fields(self, "0 or more", lambda value: value >= 0, *least)

    def _require_positive(self, *names: str) -> None:
        require_fields(self, "positive", lambda value: value >= 1, *names)


def _require_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"there is no {name} {value!r}; choose one of {', '.join(known)}")


# The forms in which a decoder is asked for a fact: what stands before the ``<FACT>`` of a query.
#
# `questions` are five ways to put a question. `many` are thirty ways, one of which is drawn for every pair:
# as a question, in keywords, in a chat, in a list of questions, and in running text. Keywords and running
# text are made of the question by rule (`model.annotate.config`); where the rules make nothing of it, it is put
# as a question.

QA_FORMS = (
    "Question: {question}\nAnswer: ",
    "Question: {question} Answer: ",
    "Q: {question}\nA: ",
    "{question}\n",
    "{question} ",
)
_QUESTION_FORMS = (
    *QA_FORMS,
    "{question}\n\n",
    "{question}\nAnswer: ",
    "{question} The answer is ",
    "Question: {question}\n",
    "Question: {question}\nShort answer: ",
    "Answer the question.\n{question}\nAnswer: ",
    "I have a question: {question} ",
    "Do you know this? {question} ",
    "FAQ\n\n{question}\n",
)
_CHAT_FORMS = (
    "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\nThe answer is ",
    "<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
    "<|im_start|>assistant\n",
    "User: {question}\nAssistant: ",
    "Human: {question}\nAI: ",
    "- {question}\n- ",
)
_KEYWORD_FORMS = (
    "{keywords}: ",
    "{keywords}\n",
    "{keywords} ",
    "Search: {keywords}\nResult: ",
    "Query: {keywords}\nAnswer: ",
)
_STATEMENT_FORMS = (
    "{statement} ",
    "In short: {statement} ",
    "Here is what I found. {statement} ",
    "Note: {statement} ",
    "Complete the sentence: {statement} ",
)
_KINDS = (_QUESTION_FORMS, _CHAT_FORMS, _KEYWORD_FORMS, _STATEMENT_FORMS)
_SHARES = (0.4, 0.2, 0.2, 0.2)


def _sentence(question: str) -> str | None:
    said = statement_of(question)
    return said and said[0].upper() + said[1:]


_RULES: Mapping[str, Callable[[str], str | None]] = {"keywords": keywords_of, "statement": _sentence}


def one_of_questions(question: str, rng: random.Random) -> str:
    """Write the question as a prompt in one of the five forms `QA_FORMS`, drawn at random."""
    return rng.choice(QA_FORMS).format(question=question)


def one_of_many(question: str, rng: random.Random) -> str:
    """Write the question as a prompt in one of thirty forms: 40 % as a question, 20 % for each other kind of form."""
    (kind,) = rng.choices(_KINDS, _SHARES)
    return _fill_form(rng.choice(kind), question) or rng.choice(_QUESTION_FORMS).format(question=question)


ASKING: Mapping[str, Callable[[str, random.Random], str]] = {
    "questions": one_of_questions,
    "many": one_of_many,
}


def list_question_forms() -> Sequence[str]:
    """List the thirty templates of prompts that `asking` "many" draws from, with ``{question}`` or the like in it."""
    return [form for kind in _KINDS for form in kind]


def _fill_form(form: str, question: str) -> str | None:
    for name, rule in _RULES.items():
        if f"{{{name}}}" in form:
            said = rule(question)
            return said and form.format(**{name: said})
    return form.format(question=question)


# Settings of a run as they are typed: ``weight_decay=0.1``.

Config = TypeVar("Config")


def with_settings(config: Config, settings: Sequence[str], **given: Any) -> Config:
    """Give the dataclass `config` with fields changed by `settings`, each NAME=VALUE, and by the values `given`.

    Numbers, booleans and lists are written as in JSON, None as ``none``. All fields change at once, since one value may
    be valid only with another. Raises ValueError, which names the setting, if a setting is unknown or invalid.
    """
    changes = given | _parse_settings(type(config), settings)
    return replace(config, **changes)  # type: ignore[type-var]  # any dataclass will do


def _parse_settings(kind: type, settings: Sequence[str]) -> dict[str, Any]:
    hints, values = get_type_hints(kind), {}
    for name, text in map(_split_setting, settings):
        if name not in hints:
            raise ValueError(f"there is no setting {name!r}; name one of {', '.join(sorted(hints))}")
        values[name] = _parse_value(name, hints[name], text)
    return values


# Configuration files: TOML, whose keys are the fields of a config. The paper's experiments are such files, one each.

EXPERIMENTS = Path(__file__).parents[1] / "presets"
SUFFIX = ".toml"


def read_config(kind: type[Config], file: Path, **given: Any) -> Config:
    """Read a config of class `kind` from a TOML file, over the fields `given`. Raises ValueError if it is invalid."""
    try:
        return kind(**given | _parse_settings(kind, _as_settings(_read_toml(file))))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error


def read_training(file: Path) -> TrainConfig:
    """Read the settings of a training run from a TOML file. Raises ValueError, which names the file and the setting.

    The key ``extends`` names a preset that the file changes, ``method`` the method that the run is adapted to.
    """
    try:
        record = _read_toml(file)
        config = preset(record.pop("extends")) if "extends" in record else TrainConfig()
        if (method := record.pop("method", config.method)) != config.method:
            config = as_method(config, method)
        return with_settings(config, _as_settings(record), preset=file.stem)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"it cannot be read ({error}); name a file of settings ({SUFFIX})") from error


def _as_settings(record: Mapping[str, Any]) -> list[str]:
    """Write the fields of a TOML record as NAME=VALUE, as typed after ``--set``, so that both are checked alike."""
    texts = {name: v if isinstance(v, str) else json.dumps(v, default=str) for name, v in record.items()}
    return [f"{name}={text}" for name, text in texts.items()]


def _split_setting(setting: str) -> tuple[str, str]:
    name, equals, value = setting.partition("=")
    if not equals:
        raise ValueError(f"the setting {setting!r} is not NAME=VALUE; write it as in --set seed=7")
    return name.strip().replace("-", "_"), value.strip()


def _parse_value(name: str, hint: Any, text: str) -> Any:
    kinds = get_args(hint) if NoneType in get_args(hint) else (hint,)
    if NoneType in kinds and text == "none":
        return None
    kind = kinds[0]
    if kind is str:
        return text
    if kind is Architecture and text in ARCHITECTURES:
        return ARCHITECTURES[text]()
    try:
        value = json.loads(text)
        if kind is Architecture:
            return Architecture(**value)
        if get_args(kind):  # a tuple of numbers
            return tuple(_number(float, each) for each in value)
        return _number(kind, value)
    except (TypeError, ValueError) as error:
        said = "write it as in JSON" if isinstance(error, json.JSONDecodeError) else error
        raise ValueError(f"{name}: {text!r} does not fit; {said}") from error


def _number(kind: type, value: Any) -> Any:
    """Give `value`, read from JSON, as a `kind`: an integer is also a float, true is no integer. Raises TypeError."""
    if type(value) is int and kind is float:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"give a value such as {json.dumps(kind(1))}")
    return value


# Training runs by name, and the GPUs and objectives of unlearning that go by name.
#
# The paper's runs are the files of `EXPERIMENTS`, which have the values of its tables. `scratch-co-lmlm` and
# `scratch-standard` ask the paper's question of perplexity at a size that two CPU cores train.

SMOLLM2 = "smollm2-135m"  # all sizes of SmolLM2 share its tokenizer
PAPER_CONTEXT = 4096
SCRATCH_CONTEXT = (
    1024  # twice the longest sequence trained on: perplexity reads half a context, found values are longer
)


def smollm2_135m() -> Architecture:
    """Give the architecture of SmolLM2-135M with the paper's context length."""
    return Architecture(
        layers=30, width=576, heads=9, kv_heads=3, ffn=1536, context=PAPER_CONTEXT, spread=1 / 24
    )


def smollm2_360m() -> Architecture:
    """Give the architecture of SmolLM2-360M with the paper's context length."""
    return Architecture(layers=32, width=960, heads=15, kv_heads=5, ffn=2560, context=PAPER_CONTEXT)


ARCHITECTURES = {"smollm2-135m": smollm2_135m, "smollm2-360m": smollm2_360m}


def small() -> TrainConfig:
    """Give the run that trains an adapter on SmolLM2-135M-Instruct, on two CPU cores in an hour or two."""
    return TrainConfig(preset="small", init=SMOLLM2, tokenizer=SMOLLM2)


def scratch_co_lmlm() -> TrainConfig:
    """Give the run that trains 12M random weights, 3/4 of them the vocabulary's, on two CPU cores in some hours.

    A step counts documents, not tokens. So every method reads the same texts in the same order, as long as no text with
    its markup is cut at `max_length`.
    """
    return TrainConfig(
        preset="scratch-co-lmlm",
        init=RANDOM,
        architecture=Architecture(layers=6, width=192, heads=3, kv_heads=3, ffn=512, context=SCRATCH_CONTEXT),
        tokenizer=SMOLLM2,
        adapt="full",
        steps=3_000,
        warmup_steps=100,
        cooldown_steps=600,
        learning_rate=2e-3,
        weight_decay=0.1,
        batch_documents=16,
        micro_documents=8,
        block=1,
        max_length=SCRATCH_CONTEXT // 2,
        max_question_length=64,
        title_fraction=1.0,
        qa_fraction=0.0,
        ntp_fraction=1.0,
        precision="fp32",
    )


def co_lmlm_135m() -> TrainConfig:
    """Give the paper's run that trains the 135M model on annotated Wikipedia."""
    return read_training(EXPERIMENTS / "co-lmlm-135m.toml")


def co_lmlm_360m() -> TrainConfig:
    """Give the paper's run that trains the 360M model on annotated Wikipedia."""
    return read_training(EXPERIMENTS / "co-lmlm-360m.toml")


def co_lmlm_360m_fw() -> TrainConfig:
    """Give the paper's run of the 360M model on annotated FineWeb-Edu, with as much Wikipedia in the cooldown.

    The corpora must be given in this order: FineWeb-Edu, Wikipedia.
    """
    return read_training(EXPERIMENTS / "co-lmlm-360m-fw.toml")


_CO_LMLM: dict[str, Callable[[], TrainConfig]] = {
    "small": small,
    "scratch-co-lmlm": scratch_co_lmlm,
    "co-lmlm-135m": co_lmlm_135m,
    "co-lmlm-360m": co_lmlm_360m,
    "co-lmlm-360m-fw": co_lmlm_360m_fw,
}
_TOFU = ("tofu", "tofu-standard")


def names() -> tuple[str, ...]:
    """List the names of presets: the Co-LMLM runs, each for the other methods (``asker-360m``), and TOFU's."""
    return (*(_preset_name(run, method) for method in MARKUPS for run in _CO_LMLM), *_TOFU)


def preset(name: str) -> TrainConfig:
    """Give the config of the preset or of the file `name` (``NAME.toml``). Raises ValueError if there is none."""
    if name.endswith(SUFFIX):
        return read_training(Path(name).expanduser())
    if name in names() and (file := EXPERIMENTS / f"{name}{SUFFIX}").is_file():
        return read_training(file)
    for run, make in _CO_LMLM.items():
        for method in MARKUPS:
            if name == _preset_name(run, method):
                return make() if method == CO_LMLM.method else as_method(make(), method)
    raise ValueError(f"there is no preset {name!r}; name a file ({SUFFIX}), or one of {', '.join(names())}")


def as_method(config: TrainConfig, method: str) -> TrainConfig:
    """Give the config of the run for another method; a method without keys of questions gets no contrastive loss.

    A method without lookups gets no paraphrases, so its texts keep their own words.
    """
    if method not in MARKUPS:
        raise ValueError(f"there is no method {method!r}; choose one of {', '.join(MARKUPS)}")
    changes: dict[str, Any] = {"method": method, "preset": _preset_name(config.preset, method)}
    if MARKUPS[method].key is None:
        changes |= {"contrastive_weight": 0.0, "equal_negatives": False}
        changes |= {"qa_fraction": 0.0, "memory": 0, "hard_negatives": 0}
    if MARKUPS[method].opens is None:
        changes["paraphrase_fraction"] = 0.0
    return replace(config, **changes)


def shorten_run(config: TrainConfig, steps: int) -> TrainConfig:
    """Give the config of the same run with `steps` steps; warmup and cooldown are scaled if they would not fit."""
    share = steps / config.steps
    fixed = config.cooldown_steps
    if config.warmup_steps + (fixed or 0) <= steps:
        return replace(config, steps=steps)
    return replace(
        config,
        steps=steps,
        warmup_steps=int(config.warmup_steps * share),
        cooldown_steps=None if fixed is None else int(fixed * share),
    )


def _preset_name(run: str, method: str) -> str:
    if method == CO_LMLM.method:
        return run
    return run.replace(CO_LMLM.method, method) if CO_LMLM.method in run else f"{run}-{method}"


# Graphics processors that a plan knows.


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peak of dense bf16 arithmetic in FLOP/s, and memory in bytes, as the vendor states them."""

    peak: float
    memory: int


GPUS = {
    "a100": Gpu(312e12, 80 * 10**9),
    "h100": Gpu(989e12, 80 * 10**9),
    "h200": Gpu(989e12, 141 * 10**9),
    "b200": Gpu(2250e12, 180 * 10**9),
}


# The objectives of unlearning, by name.

NPO, GRAD_ASCENT = "npo", "grad-ascent"
OBJECTIVES = (NPO, GRAD_ASCENT)
