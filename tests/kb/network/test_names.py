"""A host's name is asked for with a limit: servers of names may say nothing."""

from __future__ import annotations

import os
import subprocess
from ipaddress import ip_address

import pytest

from colmlm.kb import interpreter
from colmlm.kb.network.addresses import addresses_of
from tests.places import PYTHONPATH, ROOT

# In a network of its own, whose servers of names take every question and answer none, however often they are asked.
_MUTE = """
import os, re, socket, subprocess, sys
from pathlib import Path
os.environ["RES_OPTIONS"] = "timeout:30 attempts:5"
from tests.networks import enter_own_network
enter_own_network()
configured = Path("/etc/resolv.conf").read_text() if Path("/etc/resolv.conf").exists() else ""
mute = []
for name in re.findall(r"^nameserver\\s+(\\S+)", configured, re.M) or ["127.0.0.1"]:
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    if not name.startswith("127."):
        subprocess.run(["ip", "address", "add", name, "dev", "lo"], check=True)
    mute.append(socket.socket(family, socket.SOCK_DGRAM))
    mute[-1].bind((name, 53))
from colmlm.kb.network.addresses import addresses_of
try:
    addresses_of("example.org", 443, seconds=0.5)
except TimeoutError as error:
    print(error)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("name", ["127.0.0.1", "::1", "localhost"])
def test_a_name_has_its_addresses(name: str) -> None:
    assert {ip_address("127.0.0.1"), ip_address("::1")} & set(addresses_of(name, 80))


def test_a_name_that_nobody_has_is_said_to_be_unknown() -> None:
    with pytest.raises(OSError):
        addresses_of("nobody.invalid", 80)
    with pytest.raises(UnicodeError):
        addresses_of("a" * 64 + ".example", 80)


def test_servers_of_names_that_say_nothing_are_given_up() -> None:
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    ran = subprocess.run(
        interpreter.command("-c", _MUTE),
        env=environment,
        cwd=ROOT,
        timeout=60,
        capture_output=True,
        text=True,
    )
    if "no network of its own" in ran.stderr:
        pytest.skip("no network of its own can be made here")
    assert ran.stdout == "no server of names answered in 0.5 s\n", ran.stderr
