"""The joint objective equals the paper's formulas (section 3.2), written out with loops in double precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from colmlm.model.lm.language_model import FactLM, unit
from colmlm.model.text.tokens import EncodedText, FactTokenizer
from colmlm.model.training.contrast import PairMemory, Pairs, contrast_pairs, next_token_sum, question_ids
from colmlm.model.training.steps import Pair, Step
from colmlm.model.training.trainer import JointModule, joint_batch, lookups_batch
from tests.kb.corpora import CHILE, PERU
from tests.tiny import byte_tokenizer, tiny_llama


@dataclass
class Reference:
    """The formulas over one step, one term after the other, without batching."""

    lm: FactLM
    step: Step

    def __post_init__(self) -> None:
        with torch.no_grad():
            self.states = [self.lm.hidden(torch.tensor([s.ids]))[0].double() for s in self.step.sequences]
        self.head = self.lm.causal.lm_head.weight.detach().double()

    def next_token(self) -> tuple[float, int]:
        """Computes -sum over t not in M of log p(x_t | x_<t), and the number of these t."""
        total, count = 0.0, 0
        for sequence, states, scored in zip(self.step.sequences, self.states, self.step.scored, strict=True):
            for t in range(1, len(sequence)):
                if not scored or sequence.masked[t]:
                    continue
                logits = [float(states[t - 1] @ row) for row in self.head]
                total -= logits[sequence.ids[t]] - math.log(sum(math.exp(z) for z in logits))
                count += 1
        return total, count

    def vectors(self) -> tuple[list[Tensor], list[Tensor]]:
        facts = [self.states[p.fact_sequence][p.fact_position] for p in self.step.pairs]
        queries = [self.states[p.query_sequence][p.query_position] for p in self.step.pairs]
        return [f / f.norm() for f in facts], [q / q.norm() for q in queries]


def contrastive(
    facts: Sequence[Tensor],
    queries: Sequence[Tensor],
    questions: Sequence[str],
    temperature: float,
    old: Sequence[tuple[Tensor, Tensor, str]] = (),
) -> float:
    """Computes -1/2B sum of both directions; equal questions are no negatives, and `old` pairs are negatives only."""
    total, size = 0.0, len(facts)
    words = [q.lower().split() for q in questions]
    candidates = [*zip(facts, queries, words, strict=True), *((f, q, w.lower().split()) for f, q, w in old)]
    for i in range(size):
        for ours, theirs in ((facts[i], 1), (queries[i], 0)):
            own = math.exp(float(ours @ candidates[i][theirs]) / temperature)
            others = 0.0
            for k, candidate in enumerate(candidates):
                if k != i and candidate[2] == words[i]:
                    continue
                others += math.exp(float(ours @ candidate[theirs]) / temperature)
            total += math.log(own / others)
    return -total / (2 * size)


@pytest.fixture(scope="module")
def tokenizer() -> FactTokenizer:
    return byte_tokenizer()


@pytest.fixture(scope="module")
def module(tokenizer: FactTokenizer) -> JointModule:
    """A tiny model with a large spread: its logits and its states differ from token to token."""
    return JointModule(FactLM(tiny_llama(tokenizer.vocabulary_size, spread=0.2), compute=torch.float32))


@pytest.fixture(scope="module")
def step(tokenizer: FactTokenizer) -> Step:
    """Two documents and their questions, one of them asked twice and one as a document with a loss."""
    sequences = [tokenizer.document(PERU), tokenizer.document(CHILE)]
    scored, pairs = [True, True], []
    for at, document in enumerate((PERU, CHILE)):
        for position, span in zip(sequences[at].fact_positions, document.facts, strict=True):
            query = tokenizer.question(span.question)
            pairs.append(Pair(at, position, len(sequences), query.fact_positions[0], span.question))
            sequences.append(query)
            scored.append(False)
    again = tokenizer.spans("", "Q:  ", [])
    asked = EncodedText((*again.ids[:-1], tokenizer.fact), (len(again) - 1,), (*again.masked[:-1], False))
    pairs.append(
        Pair(
            0, sequences[0].fact_positions[0], len(sequences), len(asked) - 1, "what IS the  capital of Peru?"
        )
    )
    return Step((*sequences, asked), (*scored, True), tuple(pairs))


def part(step: Step, documents: Sequence[int]) -> Step:
    """Makes a step of some documents of a step, with their questions."""
    pairs = [pair for pair in step.pairs if pair.fact_sequence in documents]
    kept = sorted({*documents, *(pair.query_sequence for pair in pairs)})
    moved = [
        replace(p, fact_sequence=kept.index(p.fact_sequence), query_sequence=kept.index(p.query_sequence))
        for p in pairs
    ]
    return Step(tuple(step.sequences[i] for i in kept), tuple(step.scored[i] for i in kept), tuple(moved))


def forward(module: JointModule, step: Step, **how: object) -> tuple[Tensor, Tensor, Tensor]:
    batch = joint_batch(step, **{"pairs": True, "fraction": 1.0, "salt": 0} | how)
    return module(batch.rows, batch.scored_N, batch.targets_N, batch.facts_P, batch.queries_P)


def test_the_next_token_loss_is_that_of_the_positions_outside_m(
    module: JointModule, step: Step, tokenizer: FactTokenizer
):
    expected, count = Reference(module.lm, step).next_token()
    batch = joint_batch(step, pairs=True, fraction=1.0, salt=0)
    summed, _, _ = forward(module, step)
    assert len(batch.targets_N) == count
    assert summed.item() == pytest.approx(expected, rel=1e-5)
    targets = batch.targets_N.tolist()
    assert targets.count(tokenizer.fact) == 4 + 1  # every opening token is learnt, but no closing one
    assert tokenizer.fact_end not in targets and tokenizer.fact_q not in targets
    assert len(tokenizer.encode("Lima")) and "Lima" not in tokenizer.decode(targets)


def test_many_positions_go_through_the_head_in_pieces_to_the_same_gradient(module: JointModule, step: Step):
    batch = joint_batch(step, pairs=True, fraction=1.0, salt=0)
    gradients = []
    for positions in (10_000, 50):
        module.zero_grad()
        states_TD = torch.cat([module.lm.hidden(*rows).flatten(0, 1) for rows in batch.rows])
        scored_ND = states_TD.index_select(0, batch.scored_N)
        summed = next_token_sum(module.lm, scored_ND, batch.targets_N, positions)
        summed.backward()
        gradients.append((summed.item(), [p.grad.clone() for p in module.parameters()]))
    assert gradients[1][0] == pytest.approx(gradients[0][0], rel=1e-6)
    for ours, theirs in zip(gradients[1][1], gradients[0][1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_the_contrastive_loss_is_the_papers_formula_without_equal_questions(
    module: JointModule, step: Step, temperature: float
):
    facts, queries = Reference(module.lm, step).vectors()
    questions = [pair.question for pair in step.pairs]
    expected = contrastive(facts, queries, questions, temperature)
    _, facts_PD, queries_PD = forward(module, step)
    pull = contrast_pairs(
        Pairs(facts_PD.detach(), queries_PD.detach(), question_ids(questions)), temperature, PairMemory(0)
    )
    assert float(pull.losses_N.sum()) == pytest.approx(expected, rel=1e-4)
    loss = pull.surrogate(facts_PD, queries_PD)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    without = contrastive(facts, queries, [str(n) for n in range(5)], temperature)
    assert abs(without - expected) > 1e-3  # here it matters that pairs with the same question are left out


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_equal_questions_stay_negatives_where_the_formula_is_kept_to_the_letter(
    module: JointModule, step: Step, temperature: float
):
    """-1/2B sum over i of both log softmaxes at i, each over all k of the batch, as section 3.2 writes it."""
    facts, queries = (torch.stack(side) for side in Reference(module.lm, step).vectors())
    total, size = 0.0, len(facts)
    for i in range(size):
        for rows, columns in ((facts, queries), (queries, facts)):
            exponentials = [math.exp(float(rows[i] @ columns[k]) / temperature) for k in range(size)]
            total += math.log(exponentials[i] / sum(exponentials))
    pairs = Pairs(facts, queries, question_ids([pair.question for pair in step.pairs]))
    pull = contrast_pairs(pairs, temperature, PairMemory(0), equal_negatives=True)
    assert float(pull.losses_N.sum()) == pytest.approx(-total / (2 * size), rel=1e-9)
    others = contrast_pairs(pairs, temperature, PairMemory(0))
    assert abs(float(others.losses_N.sum()) + total / (2 * size)) > 1e-3


def test_the_gradient_is_that_of_the_formula(module: JointModule, step: Step):
    """Computes it by central differences of the slow formula, at some coordinates of both sides."""
    facts, queries = Reference(module.lm, step).vectors()
    questions = [pair.question for pair in step.pairs]
    pairs = Pairs(torch.stack(facts), torch.stack(queries), question_ids(questions))
    pull = contrast_pairs(pairs, 0.2, PairMemory(0))
    for side, gradient in ((facts, pull.facts_ND), (queries, pull.queries_ND)):
        for row, column in ((0, 0), (1, 7), (4, 63)):
            moved = []
            for move in (1e-5, -1e-5):
                side[row][column] += move
                moved.append(contrastive(facts, queries, questions, 0.2))
                side[row][column] -= move
            assert float(gradient[row, column]) == pytest.approx(
                (moved[0] - moved[1]) / 2e-5, rel=1e-4, abs=1e-8
            )


def test_remembered_pairs_are_negatives_and_no_positives():
    random = torch.Generator().manual_seed(3)
    rows = unit(torch.randn(14, 8, generator=random)).double()
    questions = ["a", "b", "c", "d", "B", "e", "f"]
    memory = PairMemory(3)
    first = Pairs(rows[:4], rows[4:8], question_ids(questions[:4]))
    contrast_pairs(first, 0.5, memory)
    assert memory.pairs is not None and len(memory.pairs) == 3  # the oldest of the step is forgotten
    second = Pairs(rows[8:11], rows[11:14], question_ids(questions[4:]))
    pull = contrast_pairs(second, 0.5, memory)
    old = [(rows[i], rows[4 + i], questions[i]) for i in range(3)]
    expected = contrastive(list(rows[8:11]), list(rows[11:14]), questions[4:], 0.5, old)
    assert float(pull.losses_N.sum()) == pytest.approx(expected, rel=1e-9)
    assert abs(expected - contrastive(list(rows[8:11]), list(rows[11:14]), questions[4:], 0.5)) > 1e-3
    assert torch.equal(memory.pairs.facts_ND, rows[8:11])
    again = PairMemory(3)
    again.load(memory.state())
    assert again.pairs is not None and torch.equal(again.pairs.ids_N, memory.pairs.ids_N)


def test_a_batch_that_asks_one_question_only_has_nothing_to_learn():
    rows = unit(torch.randn(6, 8, generator=torch.Generator().manual_seed(3)))
    pull = contrast_pairs(
        Pairs(rows[:3], rows[3:], question_ids(["Who?", " who?", "WHO?"])), 0.07, PairMemory(0)
    )
    assert float(pull.losses_N.sum()) == 0.0 and not pull.facts_ND.any() and not pull.queries_ND.any()
    assert pull.nearest_N.sum() == pytest.approx(1.0)


def test_no_pairs_pull_nowhere():
    none = torch.zeros(0, 8)
    pull = contrast_pairs(Pairs(none, none, question_ids([])), 0.07, PairMemory(4))
    assert pull.surrogate(none, none).item() == 0.0 and float(pull.nearest_N.sum()) == 0.0


def test_which_positions_are_sampled_depends_on_the_sequence_and_the_step_alone(step: Step):
    def targets(some: Step, salt: int) -> list[int]:
        return joint_batch(some, pairs=True, fraction=0.3, salt=salt).targets_N.tolist()

    halves = [part(step, [document]) for document in (0, 1)]
    assert [len(half.pairs) for half in halves] == [4, 1]
    assert sorted(targets(step, 1)) == sorted(targets(halves[0], 1) + targets(halves[1], 1))
    assert targets(step, 1) != targets(step, 2)
    everything = joint_batch(step, pairs=True, fraction=1.0, salt=1)
    assert 0.15 < len(targets(step, 1)) / len(everything.targets_N) < 0.45
    assert joint_batch(step, pairs=True, fraction=0.0, salt=1).targets_N.tolist() == []


def test_the_parts_of_a_step_are_the_step(module: JointModule, step: Step):
    whole = forward(module, step)
    parts = [forward(module, part(step, [document])) for document in (0, 1)]
    assert sum(summed.item() for summed, _, _ in parts) == pytest.approx(whole[0].item(), rel=1e-6)
    order = [*range(3), 4, 3]  # the question that was asked twice belongs to the first document
    for side in (1, 2):
        torch.testing.assert_close(
            torch.cat([p[side] for p in parts]), whole[side][order], rtol=1e-5, atol=1e-6
        )
    nothing = forward(module, part(step, []))
    assert nothing[0].item() == 0.0 and nothing[1].shape == (0, 64)
    nothing[0].backward()
    assert all(p.grad is not None for p in module.parameters())


def test_the_lookups_of_sequences_are_the_vectors_of_the_loss(module: JointModule, step: Step):
    batch = lookups_batch(step.sequences)
    _, rows_PD, _ = module(batch.rows, batch.scored_N, batch.targets_N, batch.facts_P, batch.queries_P)
    facts, queries = Reference(module.lm, step).vectors()
    expected = torch.stack([*facts[:4], *queries]).float()
    torch.testing.assert_close(rows_PD, expected, rtol=1e-4, atol=1e-5)
