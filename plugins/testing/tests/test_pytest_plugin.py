"""The pytest plugin: what it isolates, and that each of its guards finds a leak."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

LEAKS = """
import os, subprocess, sys, threading, time
import pytest

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
FORK = "import os, time; os.fork() or (os.setsid(), os.fork() or time.sleep(60)); "

def test_thread():
    threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()

def test_child():
    subprocess.Popen(SLEEP)

def test_grandchild():
    subprocess.run([sys.executable, "-c", FORK], close_fds=True, stdout=subprocess.DEVNULL)

def test_variable_set():
    os.environ["LEAKED"] = "1"

def test_variable_changed():
    os.environ["KNOWN"] = "other"

def test_variable_gone():
    del os.environ["KNOWN"]

@pytest.mark.leaks("on purpose")
def test_let_off():
    os.environ["LEAKED"] = "1"

def test_ignored():
    os.environ["HARMLESS_1"] = "1"

def test_clean(monkeypatch):
    monkeypatch.setenv("OWN", "1")
    thread = threading.Thread(target=time.sleep, args=(0.2,))
    thread.start()
    subprocess.run([sys.executable, "-c", ""])
    assert "LEAKED" not in os.environ
    assert os.environ["KNOWN"] == "1"
"""

HOMES = """
import os, subprocess, sys
import pytest
from pathlib import Path
from detcore.environment import read_environment

SEEN = []

@pytest.mark.parametrize("number", range(2))
def test_home(number, detcore_home):
    environment = read_environment()
    assert environment.home == detcore_home
    assert list(environment.home.iterdir()) == []
    (environment.home / "mine").touch()
    assert environment.database_url == f"sqlite:///{detcore_home}/detcore.db"
    assert environment.disabled_plugins == frozenset()
    source = "import os; print(os.environ['DETCORE_HOME'])"
    child = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert child.stdout.strip() == str(detcore_home)
    SEEN.append(detcore_home)
    assert len(set(SEEN)) == number + 1
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makeconftest('pytest_plugins = ["detcore_testing.pytest_plugin"]')
    pytester.makeini("[pytest]\ndetcore_leaks_ignored = HARMLESS_*\n")
    monkeypatch.setenv("KNOWN", "1")
    return pytester


@pytest.mark.soak
def test_each_guard_finds_its_leak_and_nothing_else(project: pytest.Pytester) -> None:
    project.makepyfile(LEAKS)
    result = project.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist", timeout=60)
    result.assert_outcomes(passed=9, errors=6)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_thread*",
            "*the thread 'forgotten' is still running",
            "*ERROR at teardown of test_child*",
            "*the process * is still running: *import time; time.sleep(60)*",
            "*ERROR at teardown of test_grandchild*",
            "*the process * is still running: *os.setsid()*",
            "*ERROR at teardown of test_variable_set*",
            "*the variable LEAKED is set, to '1'",
            "*ERROR at teardown of test_variable_changed*",
            "*the variable KNOWN is 'other'; it was '1'",
            "*ERROR at teardown of test_variable_gone*",
            "*the variable KNOWN is gone; it was '1'",
        ]
    )


def test_each_test_has_a_home_of_its_own(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCORE_DB", "sqlite:////nowhere/else.db")
    monkeypatch.setenv("DETCORE_DISABLE_PLUGINS", "all")
    project.makepyfile(HOMES)
    result = project.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist", timeout=60)
    result.assert_outcomes(passed=2)
