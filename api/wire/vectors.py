"""Lookups by vectors: their paths, limits and media types."""

MAX_VECTORS = 1024
MAX_DIM = 16_384
LOOKUPS, VECTORS = "/v1/lookups", "/v1/lookups/vectors"
OCTETS = b"application/octet-stream"
JSON, MSGPACK = "application/json", "application/msgpack"
