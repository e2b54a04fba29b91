"""`DetcoreCommand`: a home of its own, and nothing that outlives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from detcore_testing import DetcoreCommand

SLEEPER = "import time; time.sleep(60)"
ORPHAN = (
    "import subprocess, sys\n"
    f"subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], start_new_session=True,\n"
    "    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
)


def test_a_command_has_a_home_of_its_own(tmp_path: Path) -> None:
    with DetcoreCommand(tmp_path / "folder", variables={"OWN": "1"}) as detcore:
        finished = detcore("experiment", "list", "--json")
        assert finished.code == 0, finished.output
        assert finished.summary == {"experiments": []}
        source = "import os; print(os.environ['DETCORE_HOME'], os.environ['OWN'], os.getcwd())"
        home = tmp_path / "folder" / "home"
        told = detcore.python("-c", source).stdout.split()
        assert told == [str(home), "1", str(tmp_path / "folder")]


def test_what_is_left_running_is_named_and_ends_with_the_block(tmp_path: Path) -> None:
    with DetcoreCommand(tmp_path) as detcore:
        process = detcore.start_python("-c", SLEEPER)
        assert detcore.python("-c", ORPHAN).code == 0
        left = detcore.leftovers(timeout_s=0.1)
        assert len(left) == 2
        assert all(SLEEPER in line for line in left.values())
        other = subprocess.Popen([sys.executable, "-c", SLEEPER])
        try:
            assert other.pid not in left
        finally:
            other.kill()
            other.wait()
    assert process.poll() is not None
    assert detcore.leftovers(timeout_s=0.0) == {}


def test_a_command_that_hangs_is_killed_and_shows_what_it_printed(tmp_path: Path) -> None:
    with DetcoreCommand(tmp_path) as detcore:
        with pytest.raises(TimeoutError, match=r"did not end within 2 s.*\nso far"):
            detcore.python("-c", f"print('so far', flush=True); {SLEEPER}", timeout_s=2)
        assert detcore.leftovers() == {}


def test_waiting_ends_with_the_condition_with_a_failure_or_in_time(tmp_path: Path) -> None:
    with DetcoreCommand(tmp_path) as detcore:
        detcore.start_python("-c", "open('there', 'w'); " + SLEEPER)
        assert detcore.wait_for(lambda: (tmp_path / "there").exists())
        with pytest.raises(TimeoutError, match="did not come true within 0"):
            detcore.wait_for(lambda: False, timeout_s=0.1)
        detcore.start_python("-c", "raise SystemExit('broken')")
        with pytest.raises(AssertionError, match=r"the command failed.*broken"):
            detcore.wait_for(lambda: False)
