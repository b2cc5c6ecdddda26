"""Several server processes on one port: forked, replaced and drained by a supervisor, with limits kept together."""
