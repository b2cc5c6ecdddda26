"""The routes: under /v1 a module for each resource, and the probes by which a server says that it lives or is ready."""
