"""The rules for ending workers, with real processes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from detcore.contract.launch import Line
from detcore.errors import WorkerError
from detcore.launch.exit_codes import EXIT_PEER_LOST
from detcore.launch.worker_processes import Workers, describe_exit


class Printed(list[str]):
    """Stores the output of workers."""

    def __call__(self, rank: int, stream: str, line: Line) -> None:
        self.append(f"{rank} {stream} {line.text.decode()}")


def start(workers: Workers, *sources: str) -> None:
    for source in sources:
        workers.start([sys.executable, "-S", "-c", "import sys, time\n" + source], os.environ)


def run(workers: Workers, *sources: str) -> int:
    start(workers, *sources)
    return workers.close()


def test_rank_that_lost_its_peer_is_not_blamed() -> None:
    lost, guilty = f"sys.exit({EXIT_PEER_LOST})", "time.sleep(0.5); sys.exit(65)"
    workers = Workers(Printed(), notice_s=5.0)  # the machine may be loaded
    assert run(workers, guilty, lost, "time.sleep(60)") == 65
    assert workers.first_failed == 0


def test_peer_loss_alone_is_blamed() -> None:
    workers = Workers(Printed())
    assert run(workers, f"sys.exit({EXIT_PEER_LOST})", "time.sleep(60)") == EXIT_PEER_LOST
    assert workers.first_failed == 0


def test_failed_rank_has_time_to_report() -> None:
    printed = Printed()
    why = "time.sleep(1.0); print('the reason'); sys.exit(1)"
    assert run(Workers(printed, notice_s=30.0), why, f"sys.exit({EXIT_PEER_LOST})") == 1
    assert printed == ["0 stdout the reason"]


def test_lingering_workers_are_not_blamed(tmp_path: Path) -> None:
    ends = str(tmp_path / "ends")
    waits = f"import os\nwhile not os.path.exists({ends!r}): time.sleep(0.01)"
    workers = Workers(Printed(), linger_s=2.0)
    began = time.monotonic()
    code = run(workers, waits, "time.sleep(600)", f"open({ends!r}, 'w'); sys.exit(75)")
    assert code == 75
    assert workers.first_failed is None
    assert time.monotonic() - began < 60
    patient = Workers(Printed())
    assert run(patient, "", "time.sleep(1.5); sys.exit(4)") == 4


ON_TERM = "import signal; signal.signal(signal.SIGTERM, {}); print('ready', flush=True)\n"
COMES_BACK = ON_TERM.format("lambda *_: sys.exit(75)") + "time.sleep(600)"
IGNORES = ON_TERM.format("signal.SIG_IGN") + "time.sleep(600)"


def start_ready(workers: Workers, printed: Printed, *sources: str) -> None:
    """Start workers that print a line; return when each has."""
    start(workers, *sources)
    while len(printed) < len(sources):
        workers.poll(0.01)


@pytest.mark.parametrize("stopped", [0, 1])
def test_stopped_worker_receives_ending_signal(stopped: int) -> None:
    printed = Printed()
    workers = Workers(printed)
    start_ready(workers, printed, *[COMES_BACK] * 3)
    pid = workers.pids[stopped]
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    workers.signal(signal.SIGTERM)
    assert workers.close() == 75
    assert workers.first_failed is None


def test_workers_that_ignore_sigterm_are_killed() -> None:
    printed = Printed()
    workers = Workers(printed, stop_linger_s=0.0, grace_s=0.0)
    start_ready(workers, printed, COMES_BACK, IGNORES, COMES_BACK)
    workers.signal(signal.SIGTERM)
    assert workers.close() == 75


def test_rank_0_is_killed_after_stop_timeout() -> None:
    printed = Printed()
    workers = Workers(printed, stop_s=lambda _: 0.0, grace_s=0.0)
    start_ready(workers, printed, IGNORES, COMES_BACK)
    workers.signal(signal.SIGTERM)
    assert workers.close() == -signal.SIGKILL
    assert workers.first_failed == 0


def test_sigterm_after_interrupt_limits_the_time() -> None:
    printed = Printed()
    limits_s = {signal.SIGINT: math.inf, signal.SIGTERM: 0.0}
    workers = Workers(printed, stop_s=lambda number: limits_s[signal.Signals(number)], grace_s=0.0)
    ignores_both = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + IGNORES
    start_ready(workers, printed, ignores_both)
    workers.signal(signal.SIGINT)
    workers.signal(signal.SIGTERM)
    assert workers.close() == -signal.SIGKILL


def test_output_held_open_is_abandoned() -> None:
    leave = "import subprocess; subprocess.Popen(['sleep', '90'], start_new_session=True)"
    printed = Printed()
    began = time.monotonic()
    assert run(Workers(printed), leave + "; print('left')") == 0
    assert time.monotonic() - began < 60
    assert printed == ["0 stdout left"]


def test_failed_start_ends_started_workers() -> None:
    workers = Workers(Printed())
    workers.start([sys.executable, "-c", "import time; time.sleep(60)"], os.environ)
    with pytest.raises(WorkerError, match=r"rank 1 \(/no/such\) did not start"):
        workers.start(["/no/such"], os.environ)
    assert not workers.is_alive


def test_interrupted_start_prints_nothing(tmp_path: Path) -> None:
    output_lines = tmp_path / "trial.json"
    os.mkfifo(output_lines)
    worker = subprocess.Popen(
        [sys.executable, "-m", "detcore.launch.worker"],
        env={**os.environ, "DETCORE_TRIAL_INFO": str(output_lines)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    # The FIFO opens when the worker reads it, and has no end until it is closed.
    with output_lines.open("wb"):
        worker.send_signal(signal.SIGINT)
        output, _ = worker.communicate()
    assert (output, worker.returncode) == (b"", -signal.SIGINT)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "ended with exit code 3"),
        (139, "ended with exit code 139, as after SIGSEGV"),
        (255, "ended with exit code 255"),
        (-9, "was killed by SIGKILL"),
    ],
)
def test_describe_exit(code: int, words: str) -> None:
    assert describe_exit(code) == words
