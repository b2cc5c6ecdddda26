"""The network outside: which of its addresses are public, and requests that end in time."""
