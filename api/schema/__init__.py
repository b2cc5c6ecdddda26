"""The schemas of requests and responses, and the OpenAPI document."""
