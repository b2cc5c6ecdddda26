"""A worker process that delivers webhooks to this machine: `python -m tests.kb.webhooks.process URL HOME`."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from colmlm.kb.jobs.worker import Worker
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.kb.webhooks.sending import RetryPolicy
from tests.receiver import LOOPBACK

SOON = RetryPolicy(first_wait=timedelta(milliseconds=50), longest_wait=timedelta(milliseconds=50))

if __name__ == "__main__":
    settings = Settings(home=Path(sys.argv[2]), database_url=sys.argv[1], webhook_networks=LOOPBACK)
    with KnowledgeBase.open(settings) as opened:
        Worker(opened, {}, grace_seconds=0.0, persistence=SOON).run()
