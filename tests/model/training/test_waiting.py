"""A step is a few large pieces of work, and its host never waits for the device amid it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from colmlm.kb.corpus.format import read_annotated
from colmlm.kb.demo import DEMO_CORPUS
from colmlm.lab.bench.train import META, StepCounts, bench_training, counting, step_context, take_step
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.trainer import JointBatch, Trainer
from tests.places import ROOT


def of_128_documents(base: Path, folder: Path, **settings: object) -> Trainer:
    config = TrainConfig(
        init=str(base), batch_documents=128, max_length=512, precision="fp32", lora_rank=4, **settings
    )  # type: ignore[arg-type]
    documents = [parsed.document for parsed in read_annotated(DEMO_CORPUS) if parsed.document is not None]
    return Trainer(config, documents, folder, folder, "counted")


def counted(trainer: Trainer, batches: list[JointBatch]) -> StepCounts:
    """Counts a step on the device that computes nothing, where reading a result fails."""
    trainer.module.train().to(META)
    with counting(trainer) as counts:
        norm = take_step(trainer, batches, step_context(trainer, batches))
    assert norm.is_meta
    return counts


@pytest.mark.parametrize("settings", [{}, {"adapt": "full"}, {"checkpointing": True}])
@pytest.mark.parametrize("tokens, most_forwards", [(131_072, 1), (32_768, 8)])
def test_a_step_of_128_documents_is_few_forwards_of_few_shapes(
    base: Path, tmp_path: Path, tokens: int, most_forwards: int, settings: dict[str, object]
):
    trainer = of_128_documents(base, tmp_path, forward_tokens=tokens, **settings)
    batches = trainer.batches(0)
    counts = counted(trainer, batches)
    real, read = sum(batch.num_tokens for batch in batches), sum(b.rows[0].ids_RT.numel() for b in batches)
    assert 20_000 < real <= read and sum(batch.num_pairs for batch in batches) > 100
    passes = 1 if len(batches) == 1 else 2
    assert counts.forwards == passes * len(batches) <= most_forwards
    assert set(counts.shapes) <= {(1, tokens), (1, tokens // 4)}
    again = 2 if settings.get("checkpointing") else 1
    forwards_with_gradient = len(batches)
    layers = trainer.lm.causal.config.num_hidden_layers
    assert counts.attention_calls == layers * (counts.forwards + (again - 1) * forwards_with_gradient)
    assert all(len(batch.targets_N) % 4096 == 0 for batch in batches)


def test_every_step_has_the_shapes_of_the_first(base: Path, tmp_path: Path):
    trainer = of_128_documents(base, tmp_path, forward_tokens=32_768)
    shapes = {tuple(row.ids_RT.shape) for n in range(6) for batch in trainer.batches(n) for row in batch.rows}
    assert shapes <= {(1, 32_768), (1, 8_192)}


def test_a_step_that_asks_for_a_result_fails_where_there_is_none(base: Path, tmp_path: Path):
    """Shows that the tests above would fail if a step waited."""
    trainer = of_128_documents(base, tmp_path, forward_tokens=131_072)
    batches = trainer.batches(0)
    trainer.lm.causal.model.norm.register_forward_hook(lambda _, __, states: states * states.sum().item())
    with pytest.raises(RuntimeError, match="meta"):
        counted(trainer, batches)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_step_on_a_gpu_never_waits(base: Path, tmp_path: Path):
    trainer = of_128_documents(base, tmp_path, forward_tokens=32_768)
    trainer.module.to("cuda")
    batches = trainer.batches(0)
    take_step(trainer, batches, step_context(trainer, batches))  # sets up what is set up once
    torch.cuda.set_sync_debug_mode("error")
    try:
        take_step(trainer, batches, step_context(trainer, batches))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_benchmark_of_training_reports_counts_times_and_speed(base: Path, tmp_path: Path):
    config = TrainConfig(
        init=str(base), batch_documents=16, lora_rank=4, precision="fp32", forward_tokens=16384
    )
    documents = [parsed.document for parsed in read_annotated(DEMO_CORPUS) if parsed.document is not None]
    found = bench_training(config, documents, tmp_path, tmp_path, 2)
    assert found["documents"] == 16 and found["shapes"] == [[1, 16384]] and found["forwards"] == 1
    assert found["attention_calls"] == 2 and found["pairs"] > 10 and found["targets"] > 100
    assert len(found["tokens_per_second_of_steps"]) == 2 and found["tokens_per_second"] > 0
    assert min(found[f"{name}_seconds"] for name in ("batch", "stub", "launch")) > 0


# A lint: what runs within a step asks for no result. It finds what a GPU would wait for and shapes do not show.

INSIDE: dict[str, set[str]] = {
    "model/training/trainer.py": {
        "JointModule.forward", "Trainer.begin", "Trainer.loss", "Trainer._look_ahead", "Trainer._pull", "_forward",
        "JointBatch.to", "JointBatch.without_targets", "JointBatch._map",
    },
    "model/training/contrast.py": {
        "Pairs.of", "PairGradient.split", "PairGradient.surrogate", "PairMemory.extend", "PairMemory.remember",
        "contrast_pairs", "_gather_pairs", "_gradient", "_nearest", "next_token_sum", "info_nce", "same_question",
    },
    "model/training/forward.py": {
        "Rows.to", "attend", "varlen_kernel", "_kernel", "_causal", "MergedLinear.forward",
        "_MergedProduct.forward", "_MergedProduct.backward", "TokenRows.forward", "_HeadProduct.forward",
        "_HeadProduct.backward", "_Group.merge", "MergedAdapters.refresh",
    },
    "model/training/loop.py": {"Loop._step", "Loop._backward", "Loop._update"},
    "model/lm/language_model.py": {"FactLM.hidden", "FactLM.logits", "FactLM._autocast", "unit"},
}  # fmt: skip
READS = {"item", "tolist", "cpu", "numpy", "nonzero", "masked_select", "unique", "synchronize", "argwhere"}
CONVERTS = {"float", "int", "bool", "print"}  # of a text or a number they read nothing


def test_nothing_within_a_step_reads_from_the_device() -> None:
    found = []
    for name, wanted in INSIDE.items():
        functions = dict(functions_of(ast.parse((ROOT / name).read_text())))
        assert wanted <= functions.keys(), wanted - functions.keys()
        found += [f"{name}:{line}" for each in sorted(wanted) for line in reads(functions[each])]
    assert found == []


@pytest.mark.parametrize(
    "line",
    ["x.item()", "x.tolist()", "x.cpu()", "float(x.sum())", "bool(x.any())", "x.nonzero()", "print(x)",
     "torch.where(x > 0)", "torch.tensor([1], device=d)", "x.to('cpu')", "if x.any(): pass", "while x.all(): pass"],
)  # fmt: skip
def test_the_lint_finds_what_waits(line: str) -> None:
    assert list(reads(ast.parse(line))) == [1]


def test_the_lint_lets_pass_what_does_not_wait() -> None:
    assert not list(
        reads(ast.parse("y = torch.where(x > 0, x, 0).to(x.dtype)\nif y is None or len(y): y.sum()"))
    )


def functions_of(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from (
                (f"{node.name}.{each.name}", each) for each in node.body if isinstance(each, ast.FunctionDef)
            )


def reads(tree: ast.AST) -> Iterator[int]:
    """Give the lines that ask for a result."""
    for node in ast.walk(tree):
        is_branch = isinstance(node, ast.If | ast.While | ast.IfExp)
        if waits(node) or (is_branch and is_truth_of_tensor(node.test)):
            yield node.lineno


def waits(call: ast.AST) -> bool:
    match call.func if isinstance(call, ast.Call) else None:
        case ast.Name(id=name):
            return name in CONVERTS and not all(isinstance(given, ast.Constant) for given in call.args)
        case ast.Attribute(value=ast.Name(id="torch"), attr="where"):
            return len(call.args) == 1
        case ast.Attribute(value=ast.Name(id="torch"), attr="tensor"):
            return any(keyword.arg == "device" for keyword in call.keywords)
        case ast.Attribute(attr="to"):
            return any(isinstance(given, ast.Constant) and given.value == "cpu" for given in call.args)
        case ast.Attribute(attr=name):
            return name in READS
    return False


def is_truth_of_tensor(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Call)
        and isinstance(test.func, ast.Attribute)
        and test.func.attr in ("any", "all")
    )


def test_a_tensor_without_numbers_cannot_be_read() -> None:
    with pytest.raises(RuntimeError):
        torch.zeros(1, device=META).item()
    assert isinstance(torch.zeros(1, device=META) + 1, Tensor)
