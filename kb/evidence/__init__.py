"""Evidence: stores outputs with the facts spliced into them, traces both, and withholds what is past."""
