"""The knowledge bases that commands work with: that of this machine, and one behind its API."""
