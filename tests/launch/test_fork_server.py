"""Workers that are forked from a process with their imports."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import is_running, wait_until, wait_until_gone
from toy_command import TOY_PLUGIN
from warm_trials import Runs, finish, kind

from detcore.launch import LocalLauncher
from detcore.launch.forked_workers import ForkServer

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


def test_forked_worker_equals_new_worker(runs: Runs) -> None:
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
    # The random generators differ from those of the parent.
    for seeds in zip(cold["at_import"], warm["at_import"], again["at_import"], strict=True):
        assert len(set(seeds)) == 3
    # No descriptors of the parent or of other workers.
    cold_files, warm_files = ([kind(name) for name in worker["files"]] for worker in (cold, warm))
    assert cold_files == warm_files
    # All imports of a worker are done before the fork. Update WORKER_MODULES if this fails.
    late = set(cold["modules"]) - set(warm["modules"])
    assert not {name for name in late if name.startswith("detcore")}


@pytest.mark.parametrize("does", ["", "ends late"])
def test_forked_workers_run_exit_handlers(runs: Runs, does: str) -> None:
    runs.warm_up()
    for launcher in (runs.warm, LocalLauncher()):
        assert runs.run(launcher, does)[0] == 0
        output = [text for stream, text in runs.trials.output if stream == "stdout"]
        assert output == ["to stdout", *(["slept", "at exit"] if does else [])]
        if not does:  # a daemon thread keeps the module's names alive, with Python's own end, too
            for name in ("facts.json.kept", "facts.json.left"):
                assert (runs.folder / name).read_text() == "written"


def test_exit_codes_and_signals_are_reported(runs: Runs) -> None:
    runs.warm_up()
    parent = runs.parent
    for does, expected in (("exit 3", 3), ("kill 9", -9), ("kill 11", -11), ("exit 0", 0)):
        code, facts = runs.run(runs.warm, does)
        assert (code, facts["parent"]) == (expected, parent), does

    waits = runs.start_waiting()
    assert runs.run(runs.warm)[0] == 0, "a worker holds nothing that belongs to another"
    waits.kill()
    assert finish(waits) == -signal.SIGKILL

    waits = runs.start_waiting()
    waits.signal(signal.SIGTERM)  # the worker records the signal
    os.kill(waits.pid, signal.SIGKILL)
    assert finish(waits) == -signal.SIGKILL
    # No zombie processes remain.
    assert _children(parent) == []
    assert runs.notices == []


def test_lost_fork_server_ends_its_workers(tmp_path: Path) -> None:
    with contextlib.closing(Runs(tmp_path)) as runs:
        _lose_the_parent(runs)


def _lose_the_parent(runs: Runs) -> None:
    runs.warm_up()
    parent = runs.parent
    waits = runs.start_waiting()
    os.kill(parent, signal.SIGKILL)
    assert finish(waits) == -signal.SIGKILL
    assert not is_running(waits.pid)
    code, facts = runs.run(runs.warm)
    assert (code, facts["parent"]) == (0, os.getpid())
    assert len(runs.notices) == 1
    assert f"process {parent} that forks trials was killed by SIGKILL" in runs.notices[0]


def test_nothing_outlives_the_runner(tmp_path: Path) -> None:
    program = tmp_path / "runner.py"
    program.write_text(
        "import sys, time\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from warm_trials import Runs\n"
        "folder = Path(sys.argv[1])\n"
        "folder.mkdir()\n"
        "runs = Runs(folder)\n"
        "runs.warm_up()\n"
        "group = runs.start_waiting()\n"
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


def test_process_with_threads_is_not_forked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    caplog.set_level(logging.DEBUG, "detcore.launch")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{TOY_PLUGIN}"}
    notices: list[str] = []
    server = ForkServer(["toy"], notices.append)
    wait_until(
        lambda: (
            server.start(environment, cwd=tmp_path, keep_open=()) is not None
            or "not forked" in caplog.text
        )
    )
    server.close()
    assert "trials are not forked: it has 2 threads" in caplog.text
    assert notices == []


def test_other_import_variables_prevent_forking(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.warm_up()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    _, facts = runs.run(runs.warm)
    assert (facts["parent"], is_forked(facts)) == (runs.parent, True)
    assert facts["variables"]["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    _, facts = runs.run(runs.warm)
    assert (facts["parent"], is_forked(facts)) == (runs.parent, False)
    assert facts["variables"]["OMP_NUM_THREADS"] == "1"


def test_import_variables_in_code_prevent_forking(tmp_path: Path) -> None:
    with contextlib.closing(Runs(tmp_path)) as runs:
        runs.warm_up()
        model = tmp_path / "model" / "model_def.py"
        model.write_text("import os\nos.environ['TOY_LAYOUT'] = '1'\n" + model.read_text())
        code, facts = runs.run(runs.warm)
    assert (code, facts["parent"], is_forked(facts)) == (0, runs.parent, False)
    assert facts["variables"]["TOY_LAYOUT"] == "1"
    assert sorted(runs.trials.output) == [("stderr", "to stderr"), ("stdout", "to stdout")]


def is_forked(facts: Any) -> bool:
    """Return whether the objects of the process were frozen before a fork."""
    return bool(facts["collector"][1])
