"""Observation of a server: metrics, logs, tracing spans, and readiness."""
