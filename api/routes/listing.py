"""The routes under /v1, by noun."""

from __future__ import annotations

from litestar import Router
from litestar.enums import HttpMethod
from litestar.routes import HTTPRoute

from colmlm.api.openai import chat, completions, models
from colmlm.api.routes import (
    answers,
    attributions,
    batches,
    changes,
    corpora,
    denials,
    documents,
    erasures,
    facts,
    feed,
    forgetting,
    generations,
    jobs,
    keysets,
    lookups,
    mending,
    records,
    review,
    searching,
    stats,
    tokens,
    uploads,
    vectors,
    verification,
)
from colmlm.api.schema.strict import StrictRequest


def v1() -> Router:
    """Builds the router of every route under /v1."""
    router = Router(
        "/v1",
        request_class=StrictRequest,
        route_handlers=[
            corpora.list_corpora,
            corpora.read_corpus,
            corpora.delete_corpus,
            corpora.export_corpus,
            documents.list_documents,
            documents.read_document,
            documents.list_document_facts,
            documents.ingest_documents,
            documents.delete_document,
            searching.list_facts,
            facts.read_fact,
            facts.read_facts,
            facts.trace_fact,
            facts.insert_fact,
            facts.update_fact,
            facts.delete_facts,
            facts.delete_fact,
            facts.restore_facts,
            batches.insert_facts,
            batches.update_facts,
            mending.mark_fact,
            mending.move_fact,
            mending.undo_change,
            *review.HANDLERS,
            lookups.look_up,
            answers.answer_question,
            answers.read_answer_threshold,
            answers.use_shipped_threshold,
            vectors.look_up_vectors,
            vectors.read_space,
            generations.generate,
            generations.list_generations,
            generations.trace_output,
            records.record,
            attributions.list_attributions,
            attributions.read_fact_impact,
            attributions.read_selection_impact,
            forgetting.list_forget_runs,
            forgetting.plan_forgetting,
            forgetting.read_forget_run,
            forgetting.list_forget_run_facts,
            forgetting.list_survivors,
            forgetting.read_drift,
            forgetting.apply_forgetting,
            forgetting.restore_forgotten,
            verification.verify_forgetting,
            verification.read_certificate,
            verification.check_certificate,
            verification.read_signing_key,
            erasures.preview_erasure,
            erasures.erase_facts,
            erasures.list_erasures,
            erasures.approve_erasure,
            erasures.withdraw_erasure,
            keysets.list_keysets,
            keysets.read_keyset,
            keysets.read_gate,
            keysets.activate_keyset,
            keysets.roll_back,
            keysets.retire_keyset,
            keysets.set_threshold,
            changes.list_changes,
            changes.compare_changes,
            changes.read_head,
            changes.check_head,
            changes.seal_breaks,
            changes.export_changes,
            feed.follow_changes,
            uploads.upload,
            *jobs.HANDLERS,
            denials.list_denials,
            *tokens.HANDLERS,
            stats.read_stats,
            completions.complete,
            chat.chat,
            models.list_models,
            models.read_model,
        ],
    )
    for route in router.routes:
        if isinstance(route, HTTPRoute):
            # This OPTIONS handler would name the methods of a path's first handler only; the app makes one for all.
            route.route_handlers = [
                h for h in route.route_handlers if HttpMethod.OPTIONS not in h.http_methods
            ]
    return router
