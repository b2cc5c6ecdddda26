"""Where knowledge base and model are put together: the runtime, encoders, generators, what jobs need."""
