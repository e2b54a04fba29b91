"""Workers that are forked from a process that has their imports already."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import is_running, wait_until_gone
from toy_command import TOY_PLUGIN
from warm_trials import Runs, finish, kind, wait_for_event

from detcore.launch import LocalLauncher
from detcore.launch._user_imports import read_imports
from detcore.launch._warm_parent import WarmParent

pytestmark = pytest.mark.cold


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.fixture(autouse=True)
def toy_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TOY_PLUGIN))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    runs = Runs(tmp_path_factory.mktemp("runs"))
    yield runs
    runs.close()


def test_a_forked_worker_is_like_one_that_was_started_by_itself(runs: Runs) -> None:
    code, cold = runs.run(LocalLauncher())
    assert code == 0
    warm = runs.warm_up()
    assert sorted(runs.trials.output) == [("stderr", "to stderr"), ("stdout", "to stdout")]
    _, again = runs.run(runs.warm)
    assert warm["parent"] == again["parent"] == runs.parent

    changing = {"at_import", "collector", "files", "own", "parent", "modules"}
    assert {name: warm[name] for name in cold if name not in changing} == {
        name: cold[name] for name in cold if name not in changing
    }
    # Not the generators of their parent.
    for seeds in zip(cold["at_import"], warm["at_import"], again["at_import"], strict=True):
        assert len(set(seeds)) == 3
    # Nothing of the parent's, nor of another worker's.
    cold_files, warm_files = ([kind(name) for name in each["files"]] for each in (cold, warm))
    assert cold_files == warm_files
    # What every worker imports is there already: keep WORKER_MODULES up to date.
    late = set(cold["modules"]) - set(warm["modules"])
    assert not {name for name in late if name.startswith("detcore")}


@pytest.mark.parametrize("does", ["", "ends late"])
def test_workers_end_as_python_ends_them(runs: Runs, does: str) -> None:
    runs.warm_up()
    for launcher in (runs.warm, LocalLauncher()):
        assert runs.run(launcher, does)[0] == 0
        said = [text for stream, text in runs.trials.output if stream == "stdout"]
        assert said == ["to stdout", *(["slept", "at exit"] if does else [])]
        if not does:  # a daemon thread keeps the module's names alive, with Python's own end, too
            for name in ("facts.json.kept", "facts.json.left"):
                assert (runs.folder / name).read_text() == "written"


def test_exit_codes_and_signals_are_told(runs: Runs) -> None:
    runs.warm_up()
    parent = runs.parent
    for does, expected in (("exit 3", 3), ("kill 9", -9), ("kill 11", -11), ("exit 0", 0)):
        code, facts = runs.run(runs.warm, does)
        assert (code, facts["parent"]) == (expected, parent), does

    waits = runs.start(runs.warm, "wait")
    others = runs.start(runs.warm)
    assert finish(others) == 0, "a worker holds nothing that belongs to another"
    wait_for_event(lambda: ("stdout", "waiting") in runs.trials.output)
    waits.kill()
    assert finish(waits) == -signal.SIGKILL

    waits = runs.start(runs.warm, "wait")
    wait_for_event(lambda: ("stdout", "waiting") in runs.trials.output)
    waits.signal(signal.SIGTERM)  # noted by the worker
    os.kill(waits.pid, signal.SIGKILL)
    assert finish(waits) == -signal.SIGKILL
    # No zombies stay.
    assert _children(parent) == []
    assert runs.notices == []


def test_a_lost_parent_takes_its_workers_along_and_trials_start_cold(tmp_path: Path) -> None:
    with contextlib.closing(Runs(tmp_path)) as runs:
        _lose_the_parent(runs)


def _lose_the_parent(runs: Runs) -> None:
    runs.warm_up()
    parent = runs.parent
    waits = runs.start(runs.warm, "wait")
    wait_for_event(lambda: ("stdout", "waiting") in runs.trials.output)
    os.kill(parent, signal.SIGKILL)
    assert finish(waits) == -signal.SIGKILL
    assert not is_running(waits.pid)
    code, facts = runs.run(runs.warm)
    assert (code, facts["parent"]) == (0, os.getpid())
    assert len(runs.notices) == 1
    assert f"process {parent} that starts trials quickly was killed by SIGKILL" in runs.notices[0]


def test_nothing_outlives_the_runner(tmp_path: Path) -> None:
    program = tmp_path / "runner.py"
    program.write_text(
        "import sys, time\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from warm_trials import Runs, wait_for_event\n"
        "folder = Path(sys.argv[1])\n"
        "folder.mkdir()\n"
        "runs = Runs(folder)\n"
        "runs.warm_up()\n"
        "group = runs.start(runs.warm, 'wait')\n"
        "wait_for_event(lambda: ('stdout', 'waiting') in runs.trials.output)\n"
        "print(runs.parent, group.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    runner = subprocess.Popen(
        [sys.executable, str(program), str(tmp_path / "other")], stdout=subprocess.PIPE, text=True
    )
    assert runner.stdout is not None
    pids = [int(word) for word in runner.stdout.readline().split()]
    assert all(map(is_running, pids)), pids
    runner.kill()
    runner.communicate()
    assert wait_until_gone(pids, 30) == []


def test_a_process_with_threads_is_not_forked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "starts_threads.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    caplog.set_level(logging.DEBUG, "detcore.launch")
    parent = WarmParent(["starts_threads"])
    wait_for_event(
        lambda: (
            parent.start(dict(os.environ), cwd=tmp_path, keep_open=()) is not None
            or "unfit" in caplog.text
        )
    )
    parent.close()
    assert "trials start cold: the process to fork is unfit: it has 2 threads" in caplog.text
    assert parent.lost is None


def test_other_variables_mean_another_start(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.warm_up()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    _, facts = runs.run(runs.warm)
    assert facts["parent"] == runs.parent
    assert facts["variables"]["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    _, facts = runs.run(runs.warm)
    assert facts["parent"] == os.getpid()


# -- what the user's code imports ------------------------------------------------------------------


def test_imports_are_followed_through_the_users_files(tmp_path: Path) -> None:
    files = {
        "model_def.py": "import os\nfrom parts.layers import A\nfrom detcore_toy import ToyTrial",
        "parts/__init__.py": "",
        "parts/layers.py": "from . import low\nfrom .data import load\nimport tensorflow.keras",
        "parts/low.py": "import first",
        "parts/data.py": "import numpy as np",
        "unrelated.py": "import torch",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = read_imports("model_def", tmp_path)
    assert found is not None
    assert found.packages >= {"os", "detcore_toy", "tensorflow", "first", "numpy"}
    assert "torch" not in found.packages
    assert not found.may_set_variables
    assert read_imports("not_there", tmp_path) is None
    (tmp_path / "parts" / "low.py").write_text("def")
    assert read_imports("model_def", tmp_path) is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os\nos.environ['A'] = '1'", True),
        ("import os\ndel os.environ['A']", True),
        ("from os import environ\nenviron.setdefault('A', '1')", True),
        ("import os\nos.environ.update(A='1')", True),
        ("import os\nos.environ |= {}", True),
        ("import os\nchange(os.environ)", True),
        ("import os as o\no.putenv('A', '1')", True),
        ("import dotenv", True),
        ("import os\na = os.environ['A'] + os.environ.get('B', '') + os.getenv('C', '')", False),
        ("import os\nif 'A' in os.environ:\n    x = {**os.environ.items()}", False),
    ],
)
def test_code_that_may_set_variables_is_found(tmp_path: Path, source: str, expected: bool) -> None:
    (tmp_path / "model_def.py").write_text(source)
    found = read_imports("model_def", tmp_path)
    assert found is not None
    assert found.may_set_variables is expected
