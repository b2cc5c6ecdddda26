"""Jobs: queues long work outside requests, shows and cancels it, and runs workers, which resume it after a crash."""
