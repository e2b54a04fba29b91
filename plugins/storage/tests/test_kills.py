"""Checkpoints are complete if the process is killed while it saves to a server."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from storage_servers import ACCESS_KEY, BUCKET, SECRET_KEY, gcs_server

from detcore.checkpoint import list_committed, verify_checkpoint
from detcore.environment import read_environment
from detcore.plugins import PluginManager
from detcore.storage import open_storage

KILLS = 5
PROGRAM = """
import json, sys
from pathlib import Path
from detcore.checkpoint import CheckpointContext
from detcore.distributed import DistributedContext
from detcore.environment import read_environment
from detcore.plugins import PluginManager
from detcore.storage import open_storage

plugins = PluginManager(read_environment())
storage = open_storage(json.loads(sys.argv[1]), home=Path(), plugins=plugins)
context = CheckpointContext(storage=storage, distributed=DistributedContext())
Path("model").mkdir(exist_ok=True)
for steps in range(1, 1000):
    for name in ("weights", "momentum"):
        Path("model", name).write_bytes(bytes([steps % 256]) * 3_000_000)
    print(context.upload("model", {"steps_completed": steps}), flush=True)
"""


@pytest.fixture(params=["s3", "gcs"])
def settings(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The ``checkpoint_storage`` of a server."""
    common = {"type": request.param, "bucket": BUCKET, "prefix": uuid.uuid4().hex}
    if request.param == "s3":
        url = request.getfixturevalue("weed_url")
        keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
        yield {**common, "endpoint_url": url, **keys}
        return
    with gcs_server() as url:
        yield {**common, "endpoint_url": url}


@pytest.mark.soak
def test_killed_saves_leave_whole_checkpoints(settings: dict[str, Any], tmp_path: Path) -> None:
    dice = random.Random(7)
    state: set[str] = set()
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(settings)],
            cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        state.add(process.stdout.readline().strip())
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(dice.uniform(0.0, 0.3))
            raise AssertionError("the process ended")
        process.kill()
        state |= {*process.communicate()[0].split()}
    storage = open_storage(settings, home=tmp_path, plugins=PluginManager(read_environment()))
    with contextlib.closing(storage):
        committed = list_committed(storage)
        assert state <= {*committed}
        faults = [fault for uuid in committed for fault in verify_checkpoint(storage, uuid)]
        assert faults == []
