"""The network outside: which of its addresses are public, and names and requests that are answered in time."""
