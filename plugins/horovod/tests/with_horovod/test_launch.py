"""``detcore launch`` and ``detcore run --slots`` with a real Horovod, also on several "machines".

Loopback addresses replace machines, and a script that runs its command locally replaces ssh.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Starter

pytestmark = pytest.mark.each_version

ALLREDUCE = """
import os
import horovod.tensorflow as hvd
import tensorflow as tf
from detcore import core

for attempt in range(2):  # the second attempt must not find the addresses of the first
    hvd.init()
    total = hvd.allreduce(tf.constant([float(hvd.rank() + 1)]), op=hvd.Sum).numpy().tolist()
    numbers = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size())
    print("RESULT", attempt, *numbers, total, flush=True)
    hvd.shutdown()
with core.DistributedContext.from_env() as distributed:
    print("CONTEXT", distributed.allgather(distributed.rank), flush=True)
"""
ACROSS = """
import json, os, signal, sys, time
from pathlib import Path
import horovod.tensorflow as hvd

hvd.init()
from detcore import core
with core.DistributedContext.from_horovod(hvd) as distributed:
    ranks = distributed.allgather((distributed.rank, distributed.cross_rank, os.getpid()))
    assert distributed.cross_size == 2

def end(number, frame):
    print("received", number, flush=True)
    os._exit(75)

signal.signal(signal.SIGUSR1, end)
report = {"ranks": ranks, "token": os.environ.get("MY_TOKEN"), "chosen": os.environ.get("CHOSEN")}
Path(f"ready-{hvd.rank()}.part").write_text(json.dumps(report))
Path(f"ready-{hvd.rank()}.part").rename(f"ready-{hvd.rank()}")
time.sleep(60)
"""
STUBBORN = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = os.environ["HOROVOD_RANK"]
Path(f"ready-{rank}").write_text(str(os.getpid()))
if sys.argv[1] == rank:
    while len(list(Path(".").glob("ready-?"))) < 2: time.sleep(0.05)
    sys.exit(3)
time.sleep(60)
"""
# Exits immediately, because a second SIGTERM would kill an interpreter that is being finalized.
GENTLE = """
import os, signal, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
Path("ready-" + os.environ["HOROVOD_RANK"]).write_text(str(os.getpid()))
time.sleep(600)
"""
SSH = """#!{python}
import os, sys
words = sys.argv[1:]
while words[0].startswith("-"):
    words = words[2:]  # each option of horovodrun and detcore has a value
host, *words = words
while words and words[0].startswith("-"):
    words = words[2:]
assert host == "127.0.0.2"
os.environ["SSH_CONNECTION"] = "127.0.0.1 50000 127.0.0.2 22"
os.execvp("sh", ["sh", "-c", " ".join(words)])
"""
HOSTS = ("--launcher", "horovod", "--hosts", "127.0.0.1:1,127.0.0.2:1")


class Detcore(Starter):
    """The `detcore` command in a separate directory, with an `ssh` that stays on this machine."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.variables: dict[str, str] = {}
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(SSH.format(python=sys.executable))
        (folder / "bin" / "ssh").chmod(0o700)

    def start(self, *words: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "detcore", *map(str, words)],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "HOME": str(self.folder),
                "DETCORE_HOME": str(self.folder / "home"),
                **self.variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def write_script(self, source: str) -> Path:
        path = self.folder / "worker.py"
        path.write_text(source)
        return path

    def wait_until_ready(self) -> list[str]:
        """Wait for both workers, and return their messages."""

        def read_both() -> list[str]:
            messages = [path.read_text() for path in sorted(self.folder.glob("ready-?"))]
            return messages if len(messages) == 2 and all(messages) else []

        messages: list[str] = wait_for(read_both, self.started[-1])
        return messages


@pytest.fixture
def detcore(tmp_path: Path) -> Iterator[Detcore]:
    with Detcore(tmp_path) as command:
        yield command


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> Any:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if value := condition():
            return value
        if process is not None and process.poll() not in (None, -signal.SIGKILL):
            raise AssertionError(f"the job ended too soon: {process.communicate()}")
        time.sleep(0.05)
    raise TimeoutError("the condition did not come true")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def command_lines() -> str:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().decode("utf-8", "replace"))
        except OSError:  # the process has ended
            continue
    return "\n".join(lines)


def test_horovod_is_installed() -> None:
    assert importlib.util.find_spec("horovod") is not None, "this environment must have Horovod"


@pytest.mark.soak
def test_four_workers_sum_their_ranks(detcore: Detcore) -> None:
    script = detcore.write_script(ALLREDUCE)
    job = detcore.start("launch", "--launcher", "horovod", "-n", 4, "--", "python", script)
    stdout, stderr = job.communicate(timeout=200)
    assert job.returncode == 0, stderr
    for rank in range(4):
        for attempt in range(2):
            assert f"[rank={rank}] RESULT {attempt} {rank} 4 {rank} 4 1 [10.0]" in stdout
        assert f"[rank={rank}] CONTEXT [0, 1, 2, 3]" in stdout


def test_trial_with_two_slots_uses_horovod(detcore: Detcore) -> None:
    detcore.write_script(ALLREDUCE)
    (detcore.folder / "exp.yaml").write_text(
        "name: horovod\nentrypoint: python worker.py\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
    )
    job = detcore.start("run", "exp.yaml", "--slots", 2)
    stdout, stderr = job.communicate(timeout=200)
    assert job.returncode == 0, stdout + stderr
    for rank in range(2):
        assert f"[rank={rank}] RESULT 1 {rank} 2 {rank} 2 1 [3.0]" in stdout
        assert f"[rank={rank}] CONTEXT [0, 1]" in stdout


@pytest.mark.soak
def test_job_runs_on_two_machines(detcore: Detcore) -> None:
    detcore.variables = {
        "MY_TOKEN": "zq-not-for-everybody",
        "AWS_SECRET_ACCESS_KEY": "zq-aws",
        "DETCORE_JOB_KEY": "zq-key",
        "CHOSEN": "by me",
    }
    script = detcore.write_script(ACROSS)
    job = detcore.start("launch", *HOSTS, "--env", "CHOSEN", "--", "python", script)
    reports = [json.loads(text) for text in detcore.wait_until_ready()]
    lines = command_lines()
    assert "horovodrun" in lines
    assert "zq-" not in lines, "a secret is on a command line"
    for worker in reports:
        assert [rank[:2] for rank in worker["ranks"]] == [[0, 0], [1, 1]]
        assert worker["token"] is None
        assert worker["chosen"] == "by me"
    job.send_signal(signal.SIGUSR1)
    stdout, stderr = job.communicate(timeout=60)
    assert job.returncode == 75, stderr
    received = sorted(line for line in stdout.splitlines() if "received" in line)
    assert received == [f"[rank={rank}] received {int(signal.SIGUSR1)}" for rank in range(2)]


@pytest.mark.parametrize("failing", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_failed_worker_ends_remote_workers(detcore: Detcore, failing: int) -> None:
    script = detcore.write_script(STUBBORN)
    job = detcore.start("launch", *HOSTS, "--", "python", "-S", script, failing)
    pids = [int(text) for text in detcore.wait_until_ready()]
    _, stderr = job.communicate(timeout=60)
    assert job.returncode == 3, stderr
    assert f"rank {failing} ended with exit code 3; ending the others" in stderr
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("stopped", [0, 1])
def test_suspended_worker_does_not_block_the_end(detcore: Detcore, stopped: int) -> None:
    script = detcore.write_script(GENTLE)
    job = detcore.start("launch", *HOSTS, "--", "python", "-S", script)
    pids = [int(text) for text in detcore.wait_until_ready()]
    os.kill(pids[stopped], signal.SIGSTOP)
    job.send_signal(signal.SIGTERM)
    _, stderr = job.communicate(timeout=60)
    assert job.returncode == 75, stderr
    assert not any(map(is_running, pids))


def test_late_worker_receives_end_request(detcore: Detcore) -> None:
    (detcore.folder / "bin" / "ssh").write_text(
        SSH.format(python=sys.executable).replace(
            '" ".join(words)]', '"(" + " ".join(words) + ") | (sleep 3; cat)"]'
        )
    )
    job = detcore.start("launch", *HOSTS, "--", "python", "-S", detcore.write_script(GENTLE))
    pids = [int(text) for text in detcore.wait_until_ready()]
    job.send_signal(signal.SIGTERM)
    _, stderr = job.communicate(timeout=30)
    assert job.returncode == 75, stderr
    assert not any(map(is_running, pids))


@pytest.mark.soak
def test_workers_ignoring_end_request_are_killed(detcore: Detcore) -> None:
    detcore.variables = {"DETCORE_GRACE_S": "1"}
    script = detcore.write_script(STUBBORN)
    job = detcore.start("launch", *HOSTS, "--", "python", "-S", script, "none")
    pids = [int(text) for text in detcore.wait_until_ready()]
    os.kill(pids[0], signal.SIGSTOP)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode != 0
    assert not any(map(is_running, pids))


@pytest.mark.soak
def test_killed_launcher_leaves_no_remote_workers(detcore: Detcore) -> None:
    script = detcore.write_script(STUBBORN)
    job = detcore.start("launch", *HOSTS, "--", "python", "-S", script, "none")
    pids = [int(text) for text in detcore.wait_until_ready()]
    job.kill()
    job.communicate()
    wait_for(lambda: not any(map(is_running, pids)))


def test_unreachable_machine_is_reported(detcore: Detcore) -> None:
    (detcore.folder / "bin" / "ssh").write_text("#!/bin/sh\necho no route to $5 >&2\nexit 255\n")
    job = detcore.start("launch", *HOSTS, "--", "python", "-c", "pass")
    _, stderr = job.communicate(timeout=120)
    assert job.returncode == 1
    assert "horovodrun did not start the workers" in stderr
    assert "ssh not successful for host 127.0.0.2" in stderr
