"""Observation of a server: metrics, logs, the journal of edits and denials, tracing spans, and readiness."""
