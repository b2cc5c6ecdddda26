"""What becomes of lookups while the server that searches the keys is killed, put back to an older state, and wiped."""

from __future__ import annotations

import pytest

from colmlm.kb.store.settings import Settings
from tests.acceptance.milvus_incidents import incidents
from tests.milvus_server import MilvusServer


@pytest.mark.slow(reason="starts Milvus and kills it")
@pytest.mark.timeout(1000)
def test_no_incident_of_the_server_elsewhere_gives_a_wrong_answer(settings: Settings, milvus: MilvusServer):
    found = incidents(settings, milvus, beside=50)
    assert [incident.name for incident in found] == ["killed", "put back to before 40 edits", "wiped"]
    assert [(incident.wrong, incident.fsck_ok) for incident in found] == [(0, True)] * 3
    assert found[0].errors and found[2].errors["CandidatesRefused"]
