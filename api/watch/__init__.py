"""What watches a server: metrics, logs, spans, and whether it is ready."""
