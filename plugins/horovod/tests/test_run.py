"""How other machines are reached."""

from __future__ import annotations

import socket

import pytest

from detcore.errors import WorkerError
from detcore_horovod.horovodrun import chief_address, interface_towards


def test_the_way_to_loopback_addresses() -> None:
    hosts = ["127.0.0.1", "127.0.0.2"]
    assert interface_towards(hosts) == "lo"
    assert chief_address(hosts) == "127.0.0.1"
    assert interface_towards(hosts[:1]) == "lo"
    with pytest.raises(WorkerError, match=r"'no-such\.invalid' has no address"):
        interface_towards(["no-such.invalid"])


def test_a_chief_on_this_machine_has_the_address_that_leads_to_the_others() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of no machine; nothing is sent
        except OSError:
            pytest.skip("this machine has no network")
        mine = probe.getsockname()[0]
    assert chief_address(["localhost", "127.0.0.2", mine]) == mine
