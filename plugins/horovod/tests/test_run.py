"""Network interfaces and addresses of other machines."""

from __future__ import annotations

import socket

import pytest

from detcore.errors import WorkerError
from detcore_horovod.horovodrun import chief_address, interface_towards


def test_loopback_hosts_use_interface_lo() -> None:
    hosts = ["127.0.0.1", "127.0.0.2"]
    assert interface_towards(hosts) == "lo"
    assert chief_address(hosts) == "127.0.0.1"
    assert interface_towards(hosts[:1]) == "lo"
    with pytest.raises(WorkerError, match=r"'no-such\.invalid' has no address"):
        interface_towards(["no-such.invalid"])


def test_chief_address_reaches_other_hosts() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a test address; nothing is sent
        except OSError:
            pytest.skip("this machine has no network")
        own_address = probe.getsockname()[0]
    assert chief_address(["localhost", "127.0.0.2", own_address]) == own_address
