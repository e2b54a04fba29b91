"""Test `create` in scripts and modules with real runs of the toy framework."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_command import TOY_PLUGIN, Detcore, Finished

from detcore import Trial
from detcore.client import create
from detcore.client.class_location import find_class
from detcore.errors import (
    ConfigError,
    DetcoreError,
    InvalidExperimentError,
    RunError,
)
from detcore.trial import import_trial_class

MODEL = """
import os
import sys
import time
import numpy as np
from detcore_toy import ToyTrial
from detcore.client import create
from sizes import SIZE

class Net(ToyTrial):
    pause_s = 0.0

    def build_data(self):
        # A trial does not start another experiment.
        assert create(Net, local=True) is None
        print("trial in", os.getcwd(), __name__, flush=True)
        x = np.random.default_rng(3).normal(size=(SIZE, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])

    def on_batch(self, step):
        time.sleep(self.pause_s)

class Slow(Net):
    pause_s = 0.05

class Broken(Net):
    def build_data(self):
        raise ZeroDivisionError("the user's own mistake")
"""
HYPERPARAMETERS = {"global_batch_size": 8, "learning_rate": 0.05}


@pytest.fixture
def detcore(tmp_path: Path) -> Iterator[Detcore]:
    with Detcore(tmp_path) as command:
        yield command


def start(detcore: Detcore, script: str, *arguments: str, cwd: str = ".") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, script, *arguments],
        env=detcore.variables(),
        cwd=detcore.tmp_path / cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    detcore.started.append(process)
    return process


def run(detcore: Detcore, script: str, *arguments: str, cwd: str = ".") -> Finished:
    process = start(detcore, script, *arguments, cwd=cwd)
    stdout, stderr = process.communicate(timeout=120)
    return Finished(process.returncode, stdout, stderr)


def write(detcore: Detcore, name: str, *parts: str) -> None:
    path = detcore.tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(textwrap.dedent(part) for part in parts))
    path.with_name("sizes.py").write_text("SIZE = 96\n")


def test_create_runs_search_without_main_guard(detcore: Detcore) -> None:
    """A script in a subdirectory whose name is not an identifier, with code after the call."""
    config = {
        "hyperparameters": {
            "global_batch_size": 8,
            "learning_rate": {"type": "log", "base": 10, "minval": -3, "maxval": -1},
        },
        "searcher": {"name": "random", "max_trials": 2, "max_length": {"batches": 6}},
        "reproducibility": {"experiment_seed": 5},
    }
    call = f"""
    experiment = create(Net, {config!r}, local=True)
    assert __name__ == "__main__", "trials do not come here"
    best = experiment.top_checkpoint()
    metrics = best.validation["metrics"]["validation_metrics"]
    print("best", metrics["val_loss"] > 0, best.trial_id, experiment.id)
    """
    write(detcore, "scripts/my-train.py", MODEL, call)
    finished = run(detcore, "scripts/my-train.py")
    assert finished.code == 0, finished.stdout + finished.stderr
    assert "best True" in finished.stdout
    folder = detcore.tmp_path.resolve()
    assert finished.stdout.count(f"trial in {folder} my-train") == 2
    assert finished.stdout.count("validation: val_loss") == 2
    (first, second) = detcore.committed()
    records = [json.loads((path.parent / "trial.json").read_text()) for path in (first, second)]
    assert {record["trial_class"] for record in records} == {"scripts/my-train.py:Net"}
    assert len({record["hparams"]["learning_rate"] for record in records}) == 2
    assert (first.parent / "code" / "scripts" / "my-train.py").exists()


def test_create_tests_class_of_other_directory(detcore: Detcore) -> None:
    """The configuration is a file, and trials do not run code below the main guard."""
    write(detcore, "code/model_def.py", MODEL)
    write(
        detcore,
        "code/start.py",
        """
        import sys
        from detcore.client import create
        from model_def import Net
        if __name__ == "__main__":
            done = create(Net, sys.argv[1], local=True, test=True, context_dir=sys.argv[2])
            print("done", done.id)
        """,
    )
    (detcore.tmp_path / "elsewhere").mkdir()
    code = str(detcore.tmp_path / "code")
    path = str(detcore.config(entrypoint="nowhere:Nobody", hyperparameters=HYPERPARAMETERS))
    finished = run(detcore, f"{code}/start.py", path, code, cwd="elsewhere")
    assert finished.code == 0, finished.stdout + finished.stderr
    assert "done 1" in finished.stdout
    assert f"trial in {Path(code).resolve()} model_def" in finished.stdout
    assert "batch 1: validation" in finished.stdout
    assert len(detcore.committed()) == 1
    # The class cannot be imported from this folder.
    finished = run(detcore, f"{code}/start.py", path, ".", cwd="elsewhere")
    assert finished.code == 1
    assert f"Pass context_dir={str(Path(code))!r}" in finished.stderr


def test_create_raises_and_can_be_resumed(detcore: Detcore) -> None:
    config: dict[str, Any] = {"hyperparameters": HYPERPARAMETERS, "scheduling_unit": 2}
    config["max_restarts"] = 0
    config["searcher"] = {"max_length": {"batches": 100_000}}
    write(
        detcore,
        "train.py",
        MODEL,
        f"""
        if __name__ == "__main__":
            try:
                create(Broken, {config!r}, local=True)
            except RuntimeError as error:
                print("told:", error, flush=True)
            create(Slow, {config!r}, local=True)
        """,
    )
    process = start(detcore, "train.py")
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "experiment 2" in line:
            break
    detcore.wait_for(lambda: any("loss" in p.read_text() for p in detcore.home.rglob("events-*")))
    process.send_signal(signal.SIGINT)
    remaining_output, stderr = process.communicate(timeout=120)
    output = "".join(lines) + remaining_output
    assert process.returncode == 75, output + stderr
    assert "told: experiment 1 failed: " in output
    assert "ZeroDivisionError: the user's own mistake" in output
    assert "experiment 2 was interrupted; resume with: detcore run --resume 2" in output


def test_script_of_run_trains_its_trial(detcore: Detcore) -> None:
    model = MODEL.replace("assert create(Net, local=True) is None", "pass")
    write(detcore, "train.py", model, 'create(Net, {"hyperparameters": {"ignored": 1}})')
    path = detcore.config(entrypoint="python3 train.py", searcher__max_length={"batches": 12})
    finished = detcore("run", path, detcore.tmp_path, "--json")
    assert finished.code == 0, finished.stdout + finished.stderr
    (trial,) = finished.summary["trials"]
    assert trial["steps_completed"] == 12
    assert (detcore.home / "experiments" / "1").is_dir()
    assert not (detcore.home / "experiments" / "2").exists()


class Here(Trial):
    """A class of an imported module that no plugin trains."""


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> type[Trial]:
    """A class of an imported module that the toy plugin trains."""
    monkeypatch.syspath_prepend(str(TOY_PLUGIN))
    monkeypatch.setenv("DETCORE_HOME", "/no/where")
    toy_trial: type[Trial] = importlib.import_module("detcore_toy").ToyTrial
    return toy_trial


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({}, InvalidExperimentError, "(?s)needs context_dir.*pass local=True"),
        ({"context_dir": "."}, ConfigError, "(?s)needs the address of a server.*pass local=True"),
        ({"context_dir": "/no/where", "test": True}, ConfigError, "context_dir is '/no/where'"),
        ({"context_dir": ".", "master_url": "ftp://host"}, ConfigError, "address of a server"),
        ({"local": 1}, ConfigError, r"local is 1 \(int\)"),
        ({"command": "train.py"}, ConfigError, "a list of strings"),
        ({"trial_def": 5}, InvalidExperimentError, "trial_def is 5"),
        ({"trial_def": Here, "local": True}, DetcoreError, "no installed plugin trains"),
        ({"local": True, "context_dir": "/no/where"}, ConfigError, "context_dir is '/no/where'"),
        ({"local": True, "config": 5}, ConfigError, "config is 5"),
        ({"local": True, "config": {"searchr": 1}}, ConfigError, "(?s)searchr.*searcher"),
    ],
)
def test_create_rejects_wrong_arguments(
    toy: type[Trial], given: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        create(**{"trial_def": toy, **given})


def test_importing_a_class_ends_at_create(
    toy: type[Trial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading a checkpoint imports the whole module and starts no experiment."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "deep").mkdir()
    source = (
        "from detcore_toy import ToyTrial\nfrom detcore.client import create\n"
        "from neighbour_of_two import VALUE\n"
        "class First(ToyTrial):\n    value = VALUE\n"
        "create(First)\n"
        "class Second(ToyTrial): pass\n"
    )
    for name in ("two_classes.py", "deep/two-classes.py"):
        (tmp_path / name).write_text(source)
    (tmp_path / "deep" / "neighbour_of_two.py").write_text("VALUE = 7\n")
    path = list(sys.path)
    with pytest.raises(InvalidExperimentError, match=r"before it defines the class 'Second'"):
        import_trial_class("deep/two-classes.py:Second", tmp_path)
    for entrypoint in ("deep/two-classes.py:First", "two_classes:First"):
        trial_class: Any = import_trial_class(entrypoint, tmp_path)
        assert trial_class.value == 7
        assert vars(sys.modules[trial_class.__module__])["First"] is trial_class
        assert import_trial_class(entrypoint, tmp_path) is trial_class
    with pytest.raises(InvalidExperimentError, match=r"the file .* does not exist"):
        import_trial_class("deep/three.py:First", tmp_path)
    sys.path[:] = path
    for name in ("two_classes", "two-classes", "neighbour_of_two"):
        del sys.modules[name]


def test_unimportable_class_is_rejected(tmp_path: Path) -> None:
    class Inside(Trial):
        pass

    with pytest.raises(InvalidExperimentError, match="inside a function"):
        find_class(Inside, tmp_path)


def test_create_requires_main_thread() -> None:
    caught: list[BaseException] = []

    def call() -> None:
        try:
            create(Here, local=True)
        except RunError as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_class_typed_at_prompt_is_rejected(detcore: Detcore) -> None:
    typed = (
        "from detcore_toy import ToyTrial; from detcore.client import create\n"
        "class Net(ToyTrial): pass\n\n"
        "create(Net, local=True)\n"
    )
    process = subprocess.run(
        [sys.executable, "-i", "-q"],
        input=typed,
        env=detcore.variables(),
        cwd=detcore.tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Put the class into a file, or use IPython or Jupyter" in process.stderr
    assert not detcore.home.exists()
