"""`colmlm bench families`: the forward passes of a random model of each family, beside transformers' own.

The models are of one shape and of random weights, as what is compared is speed and agreement, and neither needs a model
that says anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.options import AsJson, examples
from colmlm.cli.output import note, print_json, print_table
from colmlm.lab.bench.machine import machine
from colmlm.lab.bench.rounds import Seconds, in_turns

if TYPE_CHECKING:
    from torch import Tensor

    from colmlm.model.lm.forward_pass import ForwardPass

FAMILIES_EXAMPLES = examples(
    "colmlm bench families --json", "colmlm bench families --width 128 --layers 2 --rounds 1"
)
TEXTS, LENGTH = 8, 128  # texts that are read whole, and the tokens of each
PROMPT = 16  # tokens
HEAD, VOCABULARY = 64, 32_000
# What makes a config that family's own, where the shape that all have does not.
_OWN: dict[str, dict[str, Any]] = {
    "llama": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 256,
        }
    },
    "qwen3": {"head_dim": HEAD},
    "gemma3_text": {"head_dim": HEAD, "query_pre_attn_scalar": HEAD, "sliding_window": 64},
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFigures:
    """The figures of one family. Ratios are transformers' time to ours, so above one ours is faster.

    `keys` reads texts whole, as for keys; `decode1` and `decode8` go on from one prompt and from eight, greedily,
    beside `transformers.generate`. The differences are the greatest in absolute value, of states and logits of those
    texts, in fp32; `same_tokens` is the share of decoded tokens that are the same.
    """

    family: str
    parameters: int
    is_fast: bool
    states_difference: float
    logits_difference: float
    same_tokens: float
    vs_forward: float
    vs_generate1: float
    vs_generate8: float
    keys: dict[str, Seconds]
    decode1: dict[str, Seconds]
    decode8: dict[str, Seconds]


def families(
    width: Annotated[int, typer.Option("--width", min=128, help="Of the states; a head has 64 of it.")] = 512,
    layers: Annotated[int, typer.Option("--layers", min=1, help="Layers of each model.")] = 6,
    tokens: Annotated[int, typer.Option("--tokens", min=1, max=1000, help="Tokens that are decoded.")] = 48,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=1000, help="How often each way is timed, in turns.")
    ] = 3,
    as_json: AsJson = False,
) -> None:
    """Time keys and decoding with a random model of each family beside transformers, and compare what they compute."""
    from colmlm.model.lm.families import FAMILIES

    measured = []
    for kind, family in FAMILIES.items():
        note(f"{family.name}: {layers} layers of {width}, {rounds} rounds")
        measured.append(measure(kind, width=width, layers=layers, tokens=tokens, rounds=rounds))
    if as_json:
        print_json({"machine": machine(), "families": [asdict(figures) for figures in measured]})
        return
    print_table(
        ("family", "fast", "keys", "decode", "8 rows", "states", "logits", "same tokens"),
        [
            (f.family, "yes" if f.is_fast else "no", f"{f.vs_forward:.2f}", f"{f.vs_generate1:.2f}",
             f"{f.vs_generate8:.2f}", f"{f.states_difference:.1e}", f"{f.logits_difference:.1e}",
             f"{f.same_tokens:.1%}")
            for f in measured
        ],
    )  # fmt: skip


def measure(kind: str, *, width: int, layers: int, tokens: int, rounds: int) -> FamilyFigures:
    """Measures one family, by its `model_type`."""
    import torch

    from colmlm.model.lm.families import FAMILIES, is_fast
    from colmlm.model.lm.language_model import FactLM

    causal = random_model(kind, width, layers)
    ours = FactLM(causal, compute=torch.float32).inference
    ids_BT = torch.randint(1, VOCABULARY, (TEXTS, LENGTH), generator=torch.Generator().manual_seed(1))
    said: dict[str, Tensor] = {}
    with torch.inference_mode():
        output = causal(ids_BT, output_hidden_states=True)
        states_BTD = ours.states(ids_BT)
        states_off = (states_BTD - output.hidden_states[-1]).abs().max()
        logits_off = (ours.logits(states_BTD.flatten(0, 1)) - output.logits.flatten(0, 1)).abs().max()
        keys = in_turns(
            {"ours": lambda: ours.states(ids_BT), "transformers": lambda: causal.model(ids_BT, use_cache=False)}, rounds
        )  # fmt: skip
        decode1, decode8 = (
            in_turns(_ways(ours, causal, ids_BT[:rows, :PROMPT], tokens, said), rounds) for rows in (1, TEXTS)
        )
    return FamilyFigures(
        family=FAMILIES[kind].name,
        parameters=causal.num_parameters(),
        is_fast=is_fast(causal.config),
        states_difference=float(states_off),
        logits_difference=float(logits_off),
        same_tokens=float((said["ours"] == said["transformers"]).float().mean()),
        vs_forward=_ratio(keys),
        vs_generate1=_ratio(decode1),
        vs_generate8=_ratio(decode8),
        keys=keys,
        decode1=decode1,
        decode8=decode8,
    )


def random_model(kind: str, width: int, layers: int) -> Any:
    """Makes a model of this family, of some 33 million weights where it is 512 wide with six layers."""
    import torch
    from transformers import AutoConfig

    from colmlm.model.lm.families import model_of

    torch.manual_seed(3)
    shape = AutoConfig.for_model(
        kind, vocab_size=VOCABULARY, hidden_size=width, intermediate_size=11 * width // 4, num_hidden_layers=layers,
        num_attention_heads=width // HEAD, num_key_value_heads=width // HEAD // 2, max_position_embeddings=2048,
        tie_word_embeddings=True, pad_token_id=0, bos_token_id=None, eos_token_id=None, **_OWN.get(kind, {}),
    )  # fmt: skip
    return model_of(shape).eval().requires_grad_(False)


def decoded(ours: ForwardPass, ids_BT: Tensor, tokens: int) -> Tensor:
    """Decodes greedily; gives the [B, tokens] tokens."""
    import torch

    from colmlm.model.lm.past import Piece

    pasts = [ours.past() for _ in ids_BT]
    fed: Sequence[Sequence[int]] = ids_BT.tolist()
    said: list[Tensor] = []
    at = 0
    while len(said) < tokens:
        states_ND = ours.feed([Piece(ids, at, past) for ids, past in zip(fed, pasts, strict=True)])
        at += len(fed[0])
        said.append(ours.logits(states_ND.view(len(fed), -1, states_ND.shape[-1])[:, -1]).argmax(dim=-1))
        fed = said[-1][:, None].tolist()
    return torch.stack(said, dim=1)


def _ways(
    ours: ForwardPass, causal: Any, ids_BT: Tensor, tokens: int, said: dict[str, Tensor]
) -> dict[str, Callable[[], object]]:
    """Gives the two ways of decoding, which leave in `said` what they said."""
    import torch

    def own() -> None:
        said["ours"] = decoded(ours, ids_BT, tokens)

    def generate() -> None:
        mask = torch.ones_like(ids_BT)
        theirs = causal.generate(
            ids_BT,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
        said["transformers"] = theirs[:, ids_BT.shape[1] :]

    return {"ours": own, "transformers": generate}


def _ratio(seconds: dict[str, Seconds]) -> float:
    return seconds["transformers"].median / seconds["ours"].median
