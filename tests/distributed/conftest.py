"""Run ranks as real processes, forked from a separate interpreter; see scenarios.py."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ranks = Callable[..., list[Any]]

_LAUNCHER_VARIABLES = (
    "MASTER_",
    "RANK",
    "WORLD_SIZE",
    "SLURM_",
    "OMPI_",
    "HOROVOD_",
    "TORCHELASTIC",
)


@pytest.fixture
def ranks() -> Ranks:
    """Return a function that runs a scenario on N processes and returns their results."""

    def run(name: str, size: int, **options: Any) -> list[Any]:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHER_VARIABLES)}
        environ.pop("DETCORE_JOB_KEY", None)
        result = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("scenarios.py")), name, str(size),
             json.dumps(options)],
            env={**environ, "OPENBLAS_NUM_THREADS": "1"},  # no threads before the forks
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        # A failure in a destructor or around a fork does not end the process.
        assert "Exception ignored" not in result.stderr
        results: list[Any] = json.loads(result.stdout.splitlines()[-1])
        return results

    return run


@pytest.fixture
def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
