"""What keeps an annotator from its work; each says cause and remedy in one line."""

from __future__ import annotations


class AnnotateError(Exception):
    """Root of the annotators' errors."""


class EndpointUnusable(AnnotateError):
    """The chat endpoint is out of reach, refuses the key or does not speak the protocol."""

    def __init__(self, url: str, cause: str, remedy: str) -> None:
        super().__init__(f"{url}: {cause}. {remedy}")


class RequestRefused(AnnotateError):
    """The endpoint will not take this one conversation: the document is at fault, or too long for the model."""


class ResultsUnusable(AnnotateError):
    """A file of results that cannot be gone on with."""
