"""The same keys behind Chroma's own server: stored there, then asked for over HTTP at a recall no lower than ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from colmlm.lab.bench.peers import THREADS, Keys

EFFORTS = (10, 20, 40, 80, 160, 320, 640, 1280)
SAME = 1e-3  # a score this near to the best is of a key as near


@dataclass(frozen=True, slots=True)
class ChromaRoute:
    """Where queries are sent, and as what, with the effort and the recall of a search."""

    path: str
    bodies: list[str]
    ef_search: int
    recall_at_1: float


def recall_at_1(found: Keys, queries: Keys, keys: Keys) -> float:
    """Gives the share of queries whose score, `found`, is that of the nearest key."""
    best = np.concatenate([(part @ keys.T).max(axis=1) for part in np.array_split(queries, 10) if len(part)])
    return float(np.mean(found >= best - SAME))


def stored(port: int, keys: Keys, queries: Keys, wanted: float) -> ChromaRoute:
    """Stores the keys in a collection and gives its route, with the least effort that reaches the recall wanted."""
    import chromadb
    from chromadb.config import Settings

    client = chromadb.HttpClient("127.0.0.1", port, settings=Settings(anonymized_telemetry=False))
    collection = client.create_collection(
        "fact", embedding_function=None, configuration={"hnsw": {"space": "ip", "num_threads": THREADS}}
    )
    batch = client.get_max_batch_size()
    for start in range(0, len(keys), batch):
        part = keys[start : start + batch]
        ids = [str(start + n) for n in range(len(part))]
        collection.add(ids=ids, embeddings=part, documents=[f"value {number}" for number in ids])
    for effort in EFFORTS:
        collection.modify(configuration={"hnsw": {"ef_search": effort}})
        found: Any = collection.query(query_embeddings=queries, n_results=1, include=["distances"])
        scores = 1 - np.array([one[0] for one in found["distances"]], dtype=np.float32)
        if (recall := recall_at_1(scores, queries, keys)) >= wanted:
            break
    path = f"/api/v2/tenants/default_tenant/databases/default_database/collections/{collection.id}/query"
    asked = {"n_results": 1, "include": ["documents", "distances"]}
    bodies = [json.dumps({"query_embeddings": [query], **asked}) for query in queries.tolist()]
    return ChromaRoute(path, bodies, effort, recall)
