"""Middleware: what every request passes before it is routed, and the limits that it meets."""
