"""Long work outside requests: jobs that people see and cancel, and workers that survive a restart."""
