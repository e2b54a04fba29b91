"""Forked children of a process with an open context."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from detcore.atomic_files import is_file_locked
from detcore.log.reading import is_event_log_in_use

SCRIPT = """
import os, sys
from detcore import core

def main():
    with core.init(resume=True) as context:
        context.train.report_training_metrics(1, {{"loss": 1.0}})
        with context.checkpoint.store_path({{"steps_completed": 1}}) as (path, _):
            (path / "w").write_text("w")
        child = os.fork()
        if child == 0:
            {ending}
        assert os.waitpid(child, 0)[1] == {status}
        context.train.report_training_metrics(2, {{"loss": 1.0}})
    return child

if main() == 0:
    os._exit(0)
print("the parent ended")
"""


@pytest.mark.parametrize(
    ("ending", "status", "stderr"),
    [
        ("return 0", 0, ""),
        ("sys.exit(3)", 3 << 8, ""),
        ("raise ValueError('in the child')", 1 << 8, "ValueError: in the child\n"),
    ],
    ids=["return", "exit", "exception"],
)
def test_forked_child_does_not_change_trial(
    home: Any, ending: str, status: int, stderr: str
) -> None:
    code, stdout, printed = home.run(SCRIPT.format(ending=ending, status=status))
    assert (code, stdout) == (0, "the parent ended\n"), printed
    assert printed.count("Traceback") == bool(stderr)
    assert stderr in printed
    assert printed.count("experiment 1, trial 1: completed") == 1
    with home.database() as database:
        reports = database.metrics(1, "training")
        assert [report.steps_completed for report in reports] == [1, 2]
        assert database.get_experiment(1).state.value == "COMPLETED"
        assert database.get_experiment(1).script_start is None


def test_surviving_child_does_not_block_resume(home: Any) -> None:
    code = """
import os, time
from detcore import core
with core.init(resume=True) as context:
    if context.info.run_id == 1:
        child = os.fork()
        if child == 0:
            files = [os.pipe() for _ in range(20)]  # one has the number of the lock's
            if os.fork() == 0:
                for number in sum(files, ()):
                    os.fstat(number)
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
            print("a grandchild has its files", flush=True)
            time.sleep(600)
        print(child, flush=True)
        time.sleep(600)
    print("run", context.info.run_id)
"""
    process = home.start(code)
    lines = {process.stdout.readline(), process.stdout.readline()}
    assert "a grandchild has its files\n" in lines
    (child,) = (int(line) for line in lines if line.strip().isdigit())
    try:
        lock, folder = home.path / "detcore.db-locks" / "1", home.path / "experiments" / "1"
        assert is_file_locked(lock)
        process.kill()
        process.wait()
        assert not is_file_locked(lock)
        assert not is_event_log_in_use(folder / "trials" / "1" / "events-1.jsonl")
        assert home.run(code)[1] == "run 2\n"
    finally:
        os.kill(child, signal.SIGKILL)
