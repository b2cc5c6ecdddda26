"""Every verb of a noun is there here and over HTTP, with the same parameters, so that none can be forgotten."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest

from colmlm.cli.local.base import LocalBase
from colmlm.cli.nouns import facts, log, removal, running
from colmlm.cli.remote.base import RemoteBase
from colmlm.kb.access.access import Access
from colmlm.kb.evidence.log import Log
from colmlm.kb.evidence.outputs import Outputs
from colmlm.kb.facts.corpora import Corpora
from colmlm.kb.facts.documents import Documents
from colmlm.kb.facts.facts import Facts
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.switching.keysets import Keysets

# A noun of a base, its protocol, and the class of `kb` whose verbs it should have.
NOUNS: dict[str, tuple[type, type | None]] = {
    "facts": (facts.FactVerbs, Facts),
    "documents": (facts.DocumentVerbs, Documents),
    "corpora": (facts.CorpusVerbs, Corpora),
    "outputs": (facts.OutputVerbs, Outputs),
    "log": (log.Log, Log),
    "jobs": (running.JobVerbs, Jobs),
    "keysets": (running.KeysetVerbs, Keysets),
    "keys": (running.KeyVerbs, Access),
    "forgetting": (removal.ForgetVerbs, None),
    "erasures": (removal.ErasureVerbs, None),
}

# Verbs of `kb` that no command asks for of a base elsewhere, and why.
HERE_ONLY = {
    "facts": {"add", "add_many", "edit_many"},  # a base adds and keys in one: `Base.insert`
    "documents": {"text", "facts"},  # `read` gives both in one
    "corpora": {"standings"},  # compared where the documents are annotated
    "outputs": {"record", "record_from_elsewhere", "attributions", "impact_of_selection", "neighbours"},
    "log": {"head_seq", "changes_before", "counts", "hash_at", "holds", "deny"},  # the server's own and its console's
    "jobs": {"counts", "counts_by_kind", "num_waiting", "is_wanting"},  # what watches a server
    "keysets": {
        "all", "active", "standing",  # `listed` gives all in one
        "answering", "checkpoint", "has_question_keys", "has_threshold", "keys", "gate",  # what keys and measures
        "create", "store_keys", "finish", "build", "calibrate",  # done where the model is
    },
    "keys": {
        "name_of", "of_token", "of_session", "is_known", "begin_session", "end_session", "claim", "settle"
    },  # what a server asks at its door
}  # fmt: skip


def verbs(noun: type) -> dict[str, inspect.Signature]:
    public = inspect.getmembers(noun, inspect.isfunction)
    return {name: inspect.signature(found) for name, found in public if not name.startswith("_")}


def noun_of(base: type, name: str) -> Any:
    found = inspect.getattr_static(base, name)
    ours = {noun.__name__: noun for _, noun in NOUNS.values() if noun is not None}
    return get_type_hints(found.fget, vars(inspect.getmodule(base)) | ours)["return"]


def named(signature: inspect.Signature) -> list[str]:
    return [parameter for parameter in signature.parameters if parameter != "self"]


@pytest.mark.parametrize("name", NOUNS)
@pytest.mark.parametrize("base", [LocalBase, RemoteBase])
def test_a_noun_has_every_verb_of_its_protocol_with_its_parameters(base: type, name: str) -> None:
    there = verbs(noun_of(base, name))
    for verb, wanted in verbs(NOUNS[name][0]).items():
        assert verb in there, f"{name}.{verb}"
        found = there[verb]
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in found.parameters.values())
        missing = [p for p in named(wanted) if p not in found.parameters]
        assert not missing or takes_any, f"{name}.{verb} lacks {missing}"
        added = [
            p
            for p in named(found)
            if p not in wanted.parameters
            and found.parameters[p].default is inspect.Parameter.empty
            and found.parameters[p].kind is not inspect.Parameter.VAR_KEYWORD
        ]
        assert not added, f"{name}.{verb} wants {added}, which no command gives"


@pytest.mark.parametrize("name", [name for name, (_, ours) in NOUNS.items() if ours is not None])
def test_a_verb_of_the_knowledge_base_is_asked_for_elsewhere_or_said_to_be_for_here(name: str) -> None:
    protocol, ours = NOUNS[name]
    assert ours is not None
    assert set(verbs(ours)) - set(verbs(protocol)) == HERE_ONLY.get(name, set())
