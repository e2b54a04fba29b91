"""Scripts whose checkpoints are saved behind the training."""

from __future__ import annotations

import signal
from typing import Any

import pytest

SCRIPT = """
import os, sys, time
from pathlib import Path
from detcore import core

def snapshot(path):
    weights = b"x" * 1000
    def write():
        {before}
        (path / "weights").write_bytes(weights)
    return write

with core.init({arguments}) as context:
    uuid = context.checkpoint.save_async(snapshot, {{"steps_completed": 5}})
    print(uuid, flush=True)
    {after}
"""


def run(home: Any, before: str = "pass", after: str = "pass", arguments: str = "") -> Any:
    code = SCRIPT.format(before=before, after=after, arguments=arguments)
    return home.run(code)


def records(home: Any) -> tuple[str, list[str]]:
    """State of the newest experiment, and states of all checkpoints."""
    with home.database() as database:
        newest = max(database.list_experiments(), key=lambda each: each.id)
        return newest.state.value, [checkpoint.state for checkpoint in database.list_checkpoints()]


def test_context_exit_waits_for_save(home: Any) -> None:
    code, stdout, stderr = run(home, before="time.sleep(0.5)")
    assert code == 0, stderr
    assert records(home) == ("COMPLETED", ["COMPLETED"])
    assert (home.path / "checkpoints" / stdout.strip() / "manifest.json").exists()


@pytest.mark.parametrize("code", [0, 75])
def test_exit_code_zero_does_not_hide_failure(home: Any, code: int) -> None:
    returned, _, stderr = run(
        home, before="raise OSError(5, 'bad disk')", after=f"sys.exit({code})"
    )
    assert returned == 1
    assert "bad disk" in stderr
    assert records(home) == ("ERROR", ["DELETED"])


def test_script_error_is_reported_with_save_error(home: Any) -> None:
    code, _, stderr = run(
        home, before="raise OSError(5, 'bad disk')", after="raise ZeroDivisionError('mine')"
    )
    assert code == 1
    assert "ZeroDivisionError: mine" in stderr
    assert "in addition, a checkpoint could not be saved: [Errno 5] bad disk" in stderr
    with home.database() as database:
        assert database.list_experiments()[0].error == "ZeroDivisionError: mine"


def test_save_completes_after_script_error(home: Any) -> None:
    code, _, stderr = run(home, before="time.sleep(0.5)", after="sys.exit(3)")
    assert code == 3, stderr
    assert records(home) == ("ERROR", ["COMPLETED"])


def test_exit_timeout_is_recovered_by_next_start(home: Any) -> None:
    code, _, stderr = run(home, before="time.sleep(600)", arguments="checkpoint_exit_timeout_s=0.3")
    assert code == 1
    assert "CheckpointTimeoutError" in stderr
    assert "of batch 5 was not saved within 0.3 s" in stderr
    assert records(home) == ("ERROR", ["ACTIVE"])
    code, _, stderr = run(home)
    assert code == 0, stderr
    assert records(home) == ("COMPLETED", ["DELETED", "COMPLETED"])


def test_script_ends_before_announced_kill(home: Any) -> None:
    code = SCRIPT.format(
        before="time.sleep(600)",
        arguments="grace_s=4",
        after="while not context.preempt.should_preempt(): time.sleep(0.01)",
    )
    process = home.start(code)
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "was not saved within" in stderr
    assert records(home) == ("PAUSED", ["ACTIVE"])
