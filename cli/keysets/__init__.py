"""Commands on keysets and checkpoints."""
