"""`DetcoreCommand` has a separate home and kills its remaining processes."""

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


def test_command_has_separate_home(tmp_path: Path) -> None:
    with DetcoreCommand(tmp_path / "folder", variables={"OWN": "1"}) as detcore:
        finished = detcore("experiment", "list", "--json")
        assert finished.code == 0, finished.output
        assert finished.summary == {"experiments": []}
        source = "import os; print(os.environ['DETCORE_HOME'], os.environ['OWN'], os.getcwd())"
        home = tmp_path / "folder" / "home"
        words = detcore.python("-c", source).stdout.split()
        assert words == [str(home), "1", str(tmp_path / "folder")]


def test_leftovers_are_listed_and_killed(tmp_path: Path) -> None:
    with DetcoreCommand(tmp_path) as detcore:
        process = detcore.start_python("-c", SLEEPER)
        assert detcore.python("-c", ORPHAN).code == 0
        leftovers = detcore.leftovers(timeout_s=0.1)
        assert len(leftovers) == 2
        assert all(SLEEPER in line for line in leftovers.values())
        other = subprocess.Popen([sys.executable, "-c", SLEEPER])
        try:
            assert other.pid not in leftovers
        finally:
            other.kill()
            other.wait()
    assert process.poll() is not None
    assert detcore.leftovers(timeout_s=0.0) == {}


def test_hanging_command_is_killed_with_its_output(tmp_path: Path) -> None:
    with DetcoreCommand(tmp_path) as detcore:
        with pytest.raises(TimeoutError, match=r"did not finish within 2 s.*\nso far"):
            detcore.python("-c", f"print('so far', flush=True); {SLEEPER}", timeout_s=2)
        assert detcore.leftovers() == {}


def test_wait_for_ends_on_condition_failure_or_timeout(tmp_path: Path) -> None:
    with DetcoreCommand(tmp_path) as detcore:
        detcore.start_python("-c", "open('there', 'w'); " + SLEEPER)
        assert detcore.wait_for(lambda: (tmp_path / "there").exists())
        with pytest.raises(TimeoutError, match="was not true within 0"):
            detcore.wait_for(lambda: False, timeout_s=0.1)
        detcore.start_python("-c", "raise SystemExit('broken')")
        with pytest.raises(AssertionError, match=r"the command failed.*broken"):
            detcore.wait_for(lambda: False)
