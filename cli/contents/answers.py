"""`colmlm ask`, `generate` and `lookup`: answer a question, decode a prompt with the model, or only look facts up."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.auditing.trace import mark_splices, show_output, stored_output_note
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.errors import CHECK_FAILED, REFUSED
from colmlm.cli.fact_view import check_at_source, fact_source, print_check
from colmlm.cli.options import (
    MAX_BIGINT,
    AcceptedOnly,
    AnswerMode,
    AsOf,
    CheckpointPath,
    CorporaAsked,
    MinSeq,
    RankedBy,
    Threshold,
    Verbose,
    above_zero,
    examples,
    no_nan,
    some_text,
    wants_json,
)
from colmlm.cli.output import count_of, note, print_json, print_table, say, shorten
from colmlm.kb.answers.records import NO_SURE_ANSWER, PASSAGE, Answer
from colmlm.kb.evidence.generation import StoringDecoder
from colmlm.kb.evidence.records import OutputTrace
from colmlm.kb.lookup.options import AnswerOptions
from colmlm.kb.lookup.records import AsOfLookup, Lookup
from colmlm.kb.texts.characters import visible_text

if TYPE_CHECKING:
    from colmlm.kb.evidence.generation import GenerationRequest
    from colmlm.kb.facts.records import FactRecord

ASK_EXAMPLES = examples(
    'colmlm ask "When was the canteen opened?"',
    'colmlm ask "When was the canteen opened?" --threshold 0 --json',
    'colmlm ask "When was the canteen opened?" --mode paper',
    'colmlm ask "When was the canteen opened?" --corpus handbook --corpus news',
    'colmlm ask "When was the canteen opened?" --as-of 12',
)


@anywhere
def ask(
    base: Base,
    question: Annotated[str, typer.Argument(callback=some_text, help="The question.")],
    mode: Annotated[
        AnswerMode, typer.Option("--mode", help="Read what is near, or take the fact with the nearest key.")
    ] = AnswerMode.read,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            min=-1,
            max=1,
            callback=no_nan,
            help="The least score of an answer: a probability, or in mode paper a cosine. Default: the fitted one.",
        ),
    ] = None,
    nearest: Annotated[
        int, typer.Option("--nearest", min=0, max=10, help="How many of the nearest passages to show.")
    ] = 3,
    accepted_only: AcceptedOnly = False,
    corpora: CorporaAsked = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also read the answer's file or address again, and compare.")
    ] = False,
    as_of: AsOf = None,
    checkpoint: CheckpointPath = None,
    verbose: Verbose = False,
) -> None:
    """Answer a question from the documents, with the place that says it.

    Where nothing stored answers it, the nearest passages are shown, and the exit code is 3. Each answer is stored as an
    output, also where nothing is said, unless COLMLM_KEEP_ANSWERS is `no`. What is asked of the past is not stored.
    With --verify the exit code is 1 where the source does not say so any more.
    """

    how: AnswerOptions = {"threshold": threshold, "nearest": nearest, "accepted_only": accepted_only}
    if corpora:
        how["corpora"] = tuple(corpora)

    def answer_question(asked: Base) -> Answer:
        asked.use_checkpoint(checkpoint)
        return asked.lookups.answer(question, mode=mode.value, as_of=as_of, **how)

    found = base.ask_server_first(answer_question, checkpoint=checkpoint, as_of=as_of, verbose=verbose)
    checked = None
    if verify and found.answer is not None and found.source is not None:
        checked = check_at_source(base, found.source, found.answer)
    if wants_json():
        print_json(_as_dict(found) | ({"source_check": checked} if verify else {}))
    else:
        _show(found)
        if checked is not None:
            print_check(checked)
        if found.generation_id is not None:
            note(stored_output_note(found.generation_id, base.server))
    if found.abstained:
        raise typer.Exit(REFUSED)
    if checked is not None and not checked.still_says:
        raise typer.Exit(CHECK_FAILED)


def _as_dict(found: Answer) -> dict[str, object]:
    source = found.source
    return {
        "question": found.question,
        "answer": found.answer,
        "grain": found.grain,
        "fact_id": found.facts[0].fact_id if found.facts else None,
        "facts": found.facts,
        "unreviewed": found.unreviewed,
        "corpus": source.corpus if source else None,
        "document": source.external_id if source else None,
        "title": source.title if source else None,
        "start": source.start if source else None,
        "end": source.end if source else None,
        "score": found.score,
        "threshold": found.threshold,
        "abstained": found.abstained,
        "withheld": found.withheld,
        "why": found.why,
        "nearest": found.nearest,
        "seq": found.seq,
        "generation_id": found.generation_id,
    }


def _show(found: Answer) -> None:
    if found.answer is not None:
        say(visible_text(found.answer))
        say()
        where = "a fact without a document"
        if (source := found.source) is not None:
            where = f"{source.corpus}/{source.external_id}, {source.start} to {source.end}"
        said = ", ".join(str(fact.fact_id) for fact in found.facts)
        facts = f"fact{'' if len(found.facts) == 1 else 's'} {said}" if said else "no marked fact"
        what = "the lines that answer; " if found.grain == PASSAGE else ""
        note(f"{what}{where}; {facts}; score {found.score:.2f}")
        for fact in found.facts:
            if fact.entered_seq is not None:
                note(
                    f"Fact {fact.fact_id} was corrected by {fact.entered_by}, change {fact.entered_seq}; "
                    f"its document says something else. See: colmlm trace fact {fact.fact_id}"
                )
        if found.unreviewed:
            proposed = ", ".join(map(str, found.unreviewed))
            facts = "fact" if len(found.unreviewed) == 1 else "facts"
            note(f"Unreviewed: nobody has accepted {facts} {proposed} yet. See: colmlm review list")
        return
    say(NO_SURE_ANSWER)
    if found.why is not None:
        note(found.why)
    if found.nearest:
        say()
        print_table(
            ("nearest passages", "document", "facts"),
            [
                (
                    shorten(passage.text, 200),
                    f"{passage.source.corpus}/{passage.source.external_id}" if passage.source else "",
                    ", ".join(str(fact.fact_id) for fact in passage.facts[:5]),
                )
                for passage in found.nearest
            ],
        )


GENERATE_EXAMPLES = examples(
    'colmlm generate "Question: What is the capital of Peru? Answer:" --mode forced',
    'colmlm generate "Hydrogen was discovered by" --max-tokens 20 --json',
    'colmlm generate "Question: What is the capital of Peru? Answer:" --on-miss continue',
    'colmlm generate "Question: What is the capital of Peru? Answer:" --mode forced --ranking reader',
    'colmlm generate "Question: What is the capital of Peru? Answer:" --mode forced --as-of 12',
    'colmlm generate "Hydrogen was discovered by" --server https://kb.example.org --token-file decoder.token',
    'colmlm generate "Hydrogen was discovered by" --server https://kb.example.org --token-file reader.token --there',
)
LOOKUP_EXAMPLES = examples(
    'colmlm lookup "What is the capital of Peru?" -k 3',
    'colmlm lookup "What is the capital of Peru?" --as-of 12',
)


class LookupMode(StrEnum):
    auto = "auto"
    forced = "forced"
    off = "off"


class OnMiss(StrEnum):
    abstain = "abstain"
    go_on = "continue"


@anywhere
def generate(
    base: Base,
    prompt: Annotated[str, typer.Argument(callback=some_text, help="The text to go on from.")],
    mode: Annotated[
        LookupMode,
        typer.Option("--mode", help="The model decides when to look up; look up at once; or never."),
    ] = LookupMode.auto,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, max=100_000, help="Tokens to sample; spliced text is free.")
    ] = 64,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, max=100, callback=no_nan, help="0 is greedy.")
    ] = 0.0,
    top_p: Annotated[
        float,
        typer.Option("--top-p", max=1, callback=above_zero, help="Sample from this share of the mass."),
    ] = 1.0,
    repetition_penalty: Annotated[
        float, typer.Option("--repetition-penalty", callback=above_zero, help="Above 1 discourages repeats.")
    ] = 1.2,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End before this text; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MAX_BIGINT, help="Of the sampling.")] = 0,
    fact_bias: Annotated[
        float | None,
        typer.Option(
            "--fact-bias",
            callback=no_nan,
            help="What a lookup's logit gets in mode auto: more looks up more. Default: the checkpoint's own.",
        ),
    ] = None,
    threshold: Threshold = None,
    on_miss: Annotated[
        OnMiss | None,
        typer.Option(
            "--on-miss",
            help="Where a lookup finds nothing: say nothing more, or go on in the model's own words. "
            "Default: a prompt that ends in `Answer:` abstains, any other goes on.",
        ),
    ] = None,
    ranking: Annotated[
        RankedBy | None,
        typer.Option(
            "--ranking",
            help="What lookups find facts by: the key alone, the key and words, or these and the reader, whose "
            "threshold is a probability. Default: COLMLM_RANKING, or the reader for a question, whose threshold then "
            "only rises, else the key.",
        ),
    ] = None,
    accepted_only: AcceptedOnly = False,
    corpora: CorporaAsked = None,
    min_seq: MinSeq = None,
    as_of: AsOf = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text as it is decoded.")] = False,
    there: Annotated[
        bool, typer.Option("--there", help="With --server: decode there too, with the server's checkpoint.")
    ] = False,
    checkpoint: CheckpointPath = None,
    verbose: Verbose = False,
) -> None:
    """Decode a prompt with lookups, and store the output with the evidence for every spliced span.

    With --server it is decoded here, and the lookups and the output go to the server; with --there the server decodes.
    Where nothing found answers a question, nothing is said, and the exit code is 3.
    """
    from colmlm.kb.evidence.generation import GenerationRequest

    if stream and wants_json():
        raise typer.BadParameter("it prints text as it comes, --json one object at the end; take one of them.",
                                 param_hint="--stream")  # fmt: skip
    _refuse_both_times(min_seq, as_of)
    _refuse_review_of_past(accepted_only, as_of)
    if as_of is not None and ranking not in (None, RankedBy.key):
        raise typer.BadParameter(
            "the past is looked up by key alone; leave --ranking out.", param_hint="--as-of"
        )
    if there and base.server is None:
        raise typer.BadParameter("it decodes on a server: name that with --server.", param_hint="--there")
    if stop and "" in stop:
        raise typer.BadParameter("an empty text stops at once; leave it out.", param_hint="--stop")
    request = GenerationRequest(
        prompt=prompt, mode=mode, max_tokens=max_tokens, temperature=temperature, top_p=top_p,
        repetition_penalty=repetition_penalty, stop=tuple(stop or ()), seed=seed, threshold=threshold, min_seq=min_seq,
        fact_bias=fact_bias, on_miss=on_miss.value if on_miss else None,
        ranking=ranking.value if ranking else None, accepted_only=accepted_only,
        corpora=tuple(corpora or ()),
    )  # fmt: skip

    def decode_prompt(asked: Base) -> OutputTrace:
        with asked.generator(checkpoint, as_of, there=there) as generator:
            return _stream(generator, request) if stream else generator.generate(request)

    trace = base.ask_server_first(decode_prompt, checkpoint=checkpoint, as_of=as_of, verbose=verbose)
    abstained = request.abstains and trace.abstained
    if wants_json():
        print_json(trace)
    else:
        if not stream or abstained:
            say(NO_SURE_ANSWER if abstained else mark_splices(trace))
        _show_evidence(trace, base.server)
        if as_of is not None:
            note(f"This is the answer as of change {as_of}, without the facts that were erased since.")
    if abstained:
        raise typer.Exit(REFUSED)


def _refuse_both_times(min_seq: int | None, as_of: int | None) -> None:
    if min_seq is not None and as_of is not None:
        raise typer.BadParameter("the past waits for no change; leave --min-seq out.", param_hint="--as-of")


def _refuse_review_of_past(accepted_only: bool, as_of: int | None) -> None:
    if accepted_only and as_of is not None:
        raise typer.BadParameter(
            "a lookup of the past also finds facts that were only proposed; leave --accepted-only out.",
            param_hint="--as-of",
        )


def _stream(generator: StoringDecoder, request: GenerationRequest) -> OutputTrace:
    trace = None
    for item in generator.stream(request):
        if isinstance(item, OutputTrace):
            trace = item
        elif isinstance(item, str):
            sys.stdout.write(visible_text(item))
            sys.stdout.flush()
    assert trace is not None, "a stream ends with its trace"
    if trace.output:
        sys.stdout.write("\n")
    return trace


def _show_evidence(trace: OutputTrace, server: str | None) -> None:
    say()
    show_output(trace)
    note(stored_output_note(trace.generation_id, server))


@anywhere
def lookup(
    base: Base,
    question: Annotated[str, typer.Argument(callback=some_text, help="What to look up.")],
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="How many facts.")] = 5,
    threshold: Threshold = None,
    accepted_only: AcceptedOnly = False,
    corpora: CorporaAsked = None,
    min_seq: MinSeq = None,
    as_of: AsOf = None,
    checkpoint: CheckpointPath = None,
    verbose: Verbose = False,
) -> None:
    """Find the facts nearest to a question, without decoding. No match is a normal result."""
    _refuse_both_times(min_seq, as_of)
    _refuse_review_of_past(accepted_only, as_of)

    def looked_up(asked: Base) -> tuple[Lookup, list[FactRecord]]:
        asked.use_checkpoint(checkpoint)
        found = asked.lookups.ask(
            question, k=k, threshold=threshold, min_seq=min_seq, as_of=as_of, accepted_only=accepted_only,
            corpora=tuple(corpora or ()),
        )  # fmt: skip
        return found, asked.facts.show_many([hit.fact_id for hit in found.hits]) if found.hits else []

    found, facts = base.ask_server_first(looked_up, checkpoint=checkpoint, as_of=as_of, verbose=verbose)
    if wants_json():
        print_json(_lookup_as_dict(question, found, facts))
    else:
        _show_lookup(found, facts)


def _lookup_as_dict(question: str, found: Lookup, facts: list[FactRecord]) -> dict[str, object]:
    hits = []
    for hit, fact in zip(found.hits, facts, strict=True):
        hits.append(
            {
                "fact_id": hit.fact_id,
                "version": hit.version,
                "value": hit.value,
                "score": hit.score,
                "review": hit.review,
                "question": fact.question,
                "source": fact.source,
            }
        )
    return {
        "question": question,
        "match": bool(hits),
        "hits": hits,
        "runner_up": found.runner_up,
        "threshold": found.threshold,
        "seq": found.seq,
        "abstained": found.abstained,
        **({"redacted": found.redacted, "unkeyed": found.unkeyed} if isinstance(found, AsOfLookup) else {}),
    }


def _show_lookup(found: Lookup, facts: list[FactRecord]) -> None:
    if isinstance(found, AsOfLookup) and found.redacted:
        note(f"{count_of(found.redacted, 'fact')} of change {found.seq}, erased since, can't be found.")
    if isinstance(found, AsOfLookup) and found.unkeyed:
        note(
            f"{count_of(found.unkeyed, 'fact', 'have')} no key of this checkpoint among those of change {found.seq}."
        )
    if found.abstained is not None:
        say(f"Abstained: the question points at fact {found.abstained}, which was forgotten.")
        return
    if not found.hits:
        best = "" if found.runner_up is None else f"; the nearest fact scores {found.runner_up:.3f}"
        say(f"No match at or above {found.threshold:.3f}{best}.")
        return
    rows = []
    for hit, fact in zip(found.hits, facts, strict=True):
        rows.append(
            (f"{hit.score:.3f}", hit.fact_id, shorten(hit.value), shorten(fact.question), fact_source(fact))
        )
    print_table(("score", "fact", "value", "question", "source"), rows)
    if proposed := [str(hit.fact_id) for hit in found.hits if hit.review == "proposed"]:
        note(f"Unreviewed: fact {', '.join(proposed)}. See: colmlm review list")
