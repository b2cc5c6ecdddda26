"""Composition: puts knowledge base and model together, as the runtime, encoders, generators and handlers of jobs."""
