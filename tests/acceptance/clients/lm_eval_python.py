"""The calls of `lm_eval`, which scores and generates."""

from __future__ import annotations

import os

from calls import BATCH, FORCED, QUESTION, check, report, server
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

at = server()
os.environ["OPENAI_API_KEY"] = at.key  # where the program looks for it
PROMPT = f"Question: {QUESTION}\nAnswer:"


def generated(model, prompt, count):
    until = {"until": ["\n"], "max_gen_toks": 16, "temperature": 0, **FORCED}
    asked = [
        Instance(request_type="generate_until", doc={}, arguments=(prompt, dict(until)), idx=n)
        for n in range(count)
    ]
    return model.generate_until(asked, disable_tqdm=True)


def completions(count):
    place = {"model": at.model, "base_url": f"{at.url}/completions", "tokenizer_backend": None}
    model = LocalCompletionsAPI(
        **place, tokenized_requests=False, num_concurrent=count, max_retries=1, verify_certificate=False
    )
    return generated(model, PROMPT, count)


def chat():
    place = {"model": at.model, "base_url": f"{at.url}/chat/completions", "tokenizer_backend": None}
    model = LocalChatCompletion(**place, tokenized_requests=False, max_retries=1)
    (said,) = generated(model, model.apply_chat_template([{"role": "user", "content": QUESTION}]), 1)
    check(said, said)


def batch():
    said = completions(BATCH)
    check(len(said) == BATCH and len(set(said)) == 1 and said[0], said)


report(chat, batch)
