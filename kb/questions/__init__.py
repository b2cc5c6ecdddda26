"""Questions kept with the values they should get: sets of them, runs that ask them, and what changed between."""
