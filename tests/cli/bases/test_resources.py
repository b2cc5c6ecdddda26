"""Every verb of a resource is there here and over HTTP, with the same parameters, so that none can be forgotten."""

from __future__ import annotations

import inspect
from functools import cached_property
from inspect import Parameter
from typing import Any, get_type_hints, is_typeddict

import pytest

from colmlm.api.client.client import Client
from colmlm.api.client.connection import Connection
from colmlm.cli.bases import local_base, local_contents, local_lookups, local_removal
from colmlm.kb.access.access import Access
from colmlm.kb.answers import records as answer_records
from colmlm.kb.evidence import answering_generator
from colmlm.kb.evidence import records as evidence
from colmlm.kb.evidence.log import Log
from colmlm.kb.evidence.outputs import Outputs
from colmlm.kb.facts import records as facts
from colmlm.kb.facts.comparisons import Comparisons
from colmlm.kb.facts.corpora import Corpora, StoredDocuments
from colmlm.kb.facts.facts import Facts
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.keys import records as keys
from colmlm.kb.log import audit
from colmlm.kb.log import records as log_records
from colmlm.kb.lookup import options as lookup_options
from colmlm.kb.lookup.lookups import Lookups
from colmlm.kb.misses import records as miss_records
from colmlm.kb.misses.misses import Misses
from colmlm.kb.questions import records as question_records
from colmlm.kb.questions.sets import QuestionSets
from colmlm.kb.removal import records as forgetting
from colmlm.kb.removal.holds import Retention
from colmlm.kb.review import records as review_records
from colmlm.kb.review.review import FactReview
from colmlm.kb.switching.keysets import Keysets
from colmlm.kb.upkeep.upkeep import Upkeep
from colmlm.kb.webhooks.webhooks import Webhooks

# The options of verbs, which are written once.
OPTIONS: dict[str, Any] = {
    name: found
    for module in (
        answer_records,
        audit,
        evidence,
        facts,
        forgetting,
        keys,
        log_records,
        lookup_options,
        question_records,
        miss_records,
        review_records,
    )
    for name, found in vars(module).items()
    if is_typeddict(found)
}

# The class of `kb` whose verbs a noun should have.
OURS: dict[str, type] = {
    "facts": Facts,
    "comparisons": Comparisons,
    "documents": StoredDocuments,
    "corpora": Corpora,
    "review": FactReview,
    "lookups": Lookups,
    "outputs": Outputs,
    "misses": Misses,
    "log": Log,
    "jobs": Jobs,
    "questions": QuestionSets,
    "keysets": Keysets,
    "tokens": Access,
    "upkeep": Upkeep,
    "webhooks": Webhooks,
    "retention": Retention,
}

# Verbs of `kb` that nobody asks for of a base elsewhere, and why.
HERE_ONLY = {
    "facts": {"add_many", "every", "every_of", "ids_of"},  # not over HTTP
    "comparisons": set(),
    "documents": {"text", "facts"},  # `read` gives both in one
    "corpora": {
        "standings",  # compared where the documents are annotated
        "followed_paths", "follow", "synced_files", "key_digests", "begin_synced", "keep_synced", "note_seen",
        "remove",  # done where the folder is
    },
    "review": {"progress"},  # the inbox has it
    "lookups": {
        "catch_up", "rebuild", "snapshot", "standing", "in_keyset",  # of the index of one process
        "nearest",  # what answers are read from
    },
    "outputs": {"record", "record_traced", "attributions", "impact_of_selection", "neighbours"},
    "misses": {"group", "prune", "open_groups"},  # what workers and a server's console do
    "log": {"head_seq", "counts", "find_change_hash", "holds", "deny", "change", "database_id"},
    # the server's own and its console's
    "jobs": {"counts", "counts_by_kind", "num_waiting", "lacks_worker", "share_snapshots"},  # what watches a server
    "keysets": {
        "all", "active", "standing",  # `listed` gives all in one
        "head", "in_use", "checkpoint", "has_question_keys", "has_threshold", "keys", "gate",  # what keys and measures
        "create", "store_keys", "finish", "build", "calibrate", "rekey_part", "key_facts",  # done where the model is
        "outlived_calibration",
        "line", "former", "is_ready",  # which models a server should have
    },
    "questions": {"run", "askable", "draft_of_output"},  # what asks, calibrates, and shows a form
    "tokens": {
        "end_sessions_of",
        "name_of", "of_secrets", "of_session", "is_known", "begin_session", "end_session",
        "begin_session_of", "of_person",
        "claim", "settle",
    },  # what a server asks at its door
    "upkeep": {"fsck", "is_read_at_start", "repair", "shared_snapshot", "snapshot"},  # of this machine
    "webhooks": set(),
    "retention": {"carry_out", "due"},  # what workers and the console do
}  # fmt: skip


# Verbs that only a base elsewhere has: what a decoder of this machine asks of it, and how work is run there.
ELSEWHERE_ONLY = {"lookups": {"require"}, "jobs": {"run_to_end"}}

# Options that only this machine has, and that an API does not know.
OPTIONS_HERE_ONLY = {
    "facts.search": {"nearest", "past"},  # what the server decides by the question and the token
    "outputs.give_feedback": {"on_behalf_of"},  # the token says who gives it
    "outputs.impact": {"after", "limit"},  # all are read
    "tokens.create": {"on_secret"},  # a function of this process
}


def _here() -> dict[str, type]:
    """Gives the class of each resource of this machine's base, though it is imported for a type checker alone."""
    modules = (local_contents, local_lookups, local_removal, answering_generator)
    known = {name: found for module in modules for name, found in vars(module).items()}
    known |= {ours.__name__: ours for ours in OURS.values()}
    return {
        name: get_type_hints(found.fget, known)["return"]
        for name, found in vars(local_base.LocalBase).items()
        if isinstance(found, property) and name != "kb"
    }


def _elsewhere() -> dict[str, type]:
    with Client(Connection("http://127.0.0.1:9", "nobody")) as client:
        names = [name for name, found in vars(Client).items() if isinstance(found, cached_property)]
        return {name: type(getattr(client, name)) for name in names}


HERE, ELSEWHERE = _here(), _elsewhere()


def shared(name: str) -> dict[str, inspect.Signature]:
    """Gives the verbs that a resource has here and elsewhere, with their signatures here."""
    there = set(verbs(ELSEWHERE[name])) - ELSEWHERE_ONLY.get(name, set())
    return {verb: signature for verb, signature in verbs(HERE[name]).items() if verb in there}


def verbs(noun: type) -> dict[str, inspect.Signature]:
    public = inspect.getmembers(noun, inspect.isfunction)
    return {name: unpacked(found) for name, found in public if not name.startswith("_")}


def unpacked(verb: Any) -> inspect.Signature:
    """The signature of a verb, with the options of a `TypedDict` that it takes as parameters of its own."""
    signature = inspect.signature(verb)
    parameters = []
    for parameter in signature.parameters.values():
        if options := _typed(parameter.annotation):
            parameters += [
                parameter.replace(
                    name=name,
                    kind=inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if name in options.__required_keys__ else None,
                )
                for name in options.__annotations__
            ]
        else:
            parameters.append(parameter)
    return signature.replace(parameters=parameters)


def _typed(annotation: object) -> Any:
    """What `Unpack[...]` names."""
    said = str(annotation)
    return OPTIONS[said[len("Unpack[") : -1]] if said.startswith("Unpack[") else None


def named(signature: inspect.Signature) -> list[str]:
    return [parameter for parameter in signature.parameters if parameter != "self"]


def test_a_base_has_the_resources_that_are_compared() -> None:
    assert set(OURS) | {"decoder", "forgetting", "erasures", "holds"} == set(HERE) == set(ELSEWHERE)


@pytest.mark.parametrize("name", HERE)
def test_a_resource_has_the_same_verbs_with_the_same_parameters_here_and_elsewhere(name: str) -> None:
    here, there = verbs(HERE[name]), verbs(ELSEWHERE[name])
    assert set(there) - ELSEWHERE_ONLY.get(name, set()) <= set(here)
    for verb in shared(name):
        ours, theirs = named(here[verb]), named(there[verb])
        assert not set(theirs) - set(ours), f"{name}.{verb}"
        assert set(ours) - set(theirs) == OPTIONS_HERE_ONLY.get(f"{name}.{verb}", set()), f"{name}.{verb}"
        positional = [p for p in theirs if there[verb].parameters[p].kind is not Parameter.KEYWORD_ONLY]
        assert positional == ours[: len(positional)], f"{name}.{verb}"
        needed = {p for p in ours if here[verb].parameters[p].default is Parameter.empty}
        assert needed >= {p for p in theirs if there[verb].parameters[p].default is Parameter.empty}


@pytest.mark.parametrize("name", OURS)
def test_a_verb_of_the_knowledge_base_is_asked_for_elsewhere_or_said_to_be_for_here(name: str) -> None:
    assert set(verbs(OURS[name])) - set(verbs(ELSEWHERE[name])) == HERE_ONLY[name]
