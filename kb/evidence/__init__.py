"""Evidence: stores outputs with the facts in them, traces both, compares two states of the base, withholds the past."""
