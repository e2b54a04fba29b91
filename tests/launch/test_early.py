"""Workers that are started before it is known which trial they run."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import is_running, wait_until_gone
from toy_command import MODEL_DIR, TOY_PLUGIN, Detcore
from warm_trials import CONFIG, HPARAMS, Runs, kind, wait_for_event

from detcore.environment import read_environment
from detcore.errors import ConfigError
from detcore.hooks import PluginManager
from detcore.launch import EarlyWorker, LocalLauncher, early_worker
from detcore.launch._early import start_early
from detcore.launch._user_imports import read_imports

pytestmark = pytest.mark.cold


@pytest.fixture(autouse=True)
def toy_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TOY_PLUGIN))
    monkeypatch.syspath_prepend(str(TOY_PLUGIN))


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with contextlib.closing(Runs(tmp_path)) as runs:
        yield runs


def early_for(runs: Runs, **variables: str) -> EarlyWorker:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)  # another one in each test
        early = start_early(
            CONFIG["entrypoint"],
            runs.folder / "model",
            home=runs.folder / "home",
            plugins=PluginManager(read_environment()),
            variables=variables,
        )
    assert early is not None
    return early


def like(early: EarlyWorker, cwd: Path, *modules: str) -> EarlyWorker:
    """Return a worker that differs from another one, which is ended, by folder and modules."""
    early.close()
    return EarlyWorker(CONFIG["entrypoint"], cwd, vars(early)["_environment"], modules)


def test_an_early_worker_is_like_one_that_was_started_with_its_trial(runs: Runs) -> None:
    code, cold = runs.run(LocalLauncher())
    assert code == 0
    with early_for(runs) as early, contextlib.closing(LocalLauncher(early=early)) as launcher:
        code, facts = runs.run(launcher)
        assert (code, facts["own"]) == (0, early.process.pid)
        # The collector leaves modules alone, and nothing else.
        assert facts["collector"] == [True, True]
        assert (runs.folder / "facts.json.kept").read_text() == "written"
        assert sorted(runs.trials.output) == [("stderr", "to stderr"), ("stdout", "to stdout")]
        # It has one trial; the next ones start by themselves.
        code, again = runs.run(launcher)
        assert code == 0
        assert again["own"] != early.process.pid
    changing = {"at_import", "collector", "files", "own", "modules"}
    assert {name: facts[name] for name in cold if name not in changing} == {
        name: cold[name] for name in cold if name not in changing
    }
    cold_files, early_files = ([kind(name) for name in each["files"]] for each in (cold, facts))
    assert cold_files == early_files
    assert set(cold["modules"]) <= set(facts["modules"])


def test_exit_codes_and_signals_are_told(runs: Runs) -> None:
    for does, expected in (("exit 3", 3), ("kill 9", -9)):
        with early_for(runs) as early:
            code, facts = runs.run(LocalLauncher(early=early), does)
            assert (code, facts["own"]) == (expected, early.process.pid), does


@pytest.mark.parametrize("change", ["variables", "cwd", "died"])
def test_one_that_does_not_fit_is_ended_and_the_trial_starts_by_itself(
    runs: Runs, change: str
) -> None:
    early = early_for(runs, **({"TF_NUM_INTRAOP_THREADS": "3"} if change == "variables" else {}))
    if change == "cwd":
        early = like(early, runs.folder)
    elif change == "died":
        os.kill(early.process.pid, signal.SIGKILL)
        early.process.wait()
    code, facts = runs.run(LocalLauncher(early=early))
    assert code == 0
    assert facts["own"] != early.process.pid
    assert "TF_NUM_INTRAOP_THREADS" not in facts["variables"]
    assert not is_running(early.process.pid)


def test_one_is_ended_when_the_trial_has_two_workers(runs: Runs) -> None:
    early = early_for(runs)
    os.kill(early.process.pid, signal.SIGSTOP)  # it cannot end by itself
    group = LocalLauncher(early=early).start(
        runs.trials.info(**HPARAMS), home=runs.trials.home, slots=2, on_output=lambda *_: None
    )
    try:
        assert early.process.pid not in group.pids
        assert not is_running(early.process.pid)
    finally:
        group.kill()
        group.close()


def test_what_cannot_be_imported_early_does_not_fail_the_trial(runs: Runs) -> None:
    early = like(early_for(runs), runs.folder / "model", "no_such_module")
    code, facts = runs.run(LocalLauncher(early=early))
    assert (code, facts["own"]) == (0, early.process.pid)


FILE = """
entrypoint: model_def:Trial
searcher: {name: single}
"""


@contextlib.contextmanager
def early_for_file(config: Path, *settings: str) -> Iterator[EarlyWorker | None]:
    (config.parent / "model_def.py").write_text("from detcore_toy import ToyTrial\n")
    environment = read_environment()
    with early_worker(
        config,
        config.parent,
        settings=settings,
        environment=environment,
        plugins=PluginManager(environment),
        is_verbose=False,
    ) as early:
        yield early


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        (FILE, (), True),
        (FILE + "launcher: local\nresources: {slots_per_trial: 1}", ("name=a",), True),
        (FILE + "seed: !!int ''\n", (), True),  # another mistake, which the check names
        (FILE.replace("single", "random"), (), False),
        (FILE.replace("model_def:Trial", "python3 train.py"), (), False),
        (FILE.replace("model_def:Trial", "[model_def:Trial]"), (), False),
        (FILE.replace("model_def", "no_such_module"), (), False),
        (FILE + "launcher: torch\n", (), False),
        (FILE + "resources: {slots_per_trial: 2}\n", (), False),
        (FILE, ("resources.slots_per_trial=2",), False),
        (FILE, ("searcher={name: random}",), False),
        (FILE, ("resources.max_slots=2", "searcher.metric=loss"), True),
        (FILE + "hyperparameters: [\n", (), False),
        (FILE + "#" * 20_000, (), False),
        ("[" * 1000, (), False),
        ("- entrypoint", (), False),
    ],
)
def test_a_worker_starts_early_where_the_file_is_certain_about_it(
    tmp_path: Path, text: str, settings: tuple[str, ...], expected: bool
) -> None:
    config = tmp_path / "const.yaml"
    config.write_text(text)
    with early_for_file(config, *settings) as early:
        assert (early is not None) is expected
    assert early is None or not is_running(early.process.pid)


def test_a_refused_experiment_ends_its_worker(tmp_path: Path) -> None:
    config = tmp_path / "const.yaml"
    config.write_text(FILE)
    with contextlib.suppress(ConfigError), early_for_file(config) as early:
        assert early is not None
        pid = early.process.pid
        os.kill(pid, signal.SIGSTOP)  # it cannot end by itself
        raise ConfigError("wrong")
    assert not is_running(pid)


def test_a_file_that_can_be_read_once_is_left_to_the_check(tmp_path: Path) -> None:
    config = tmp_path / "const.yaml"
    os.mkfifo(config)
    with early_for_file(config) as early:
        assert early is None


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.environ['KERAS_BACKEND'] = 'jax'\n",
        "x = " + "-" * 5000 + "1",
        "x = 1\n" * 100_000,
    ],
    ids=["may set variables", "deep", "long"],
)
def test_code_that_cannot_be_judged_gets_no_early_worker(tmp_path: Path, text: str) -> None:
    (tmp_path / "model_def.py").write_text(text)
    plugins = PluginManager(read_environment())
    assert start_early("model_def:Trial", tmp_path, home=tmp_path, plugins=plugins) is None


def test_warnings_about_the_code_are_left_to_the_worker(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text("x = '\\d'\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_imports("model_def", tmp_path) is not None


class Checking:
    """A run whose check of the experiment waits, because its records are locked."""

    def __init__(self, detcore: Detcore) -> None:
        detcore.home.mkdir()
        config = detcore.config()
        self._lock = sqlite3.connect(detcore.home / "detcore.db", isolation_level=None)
        self._lock.execute("BEGIN EXCLUSIVE")
        self.process = detcore.start("run", config, MODEL_DIR)
        wait_for_event(lambda: bool(_workers(self.process.pid)))
        (self.worker,) = _workers(self.process.pid)

    def close(self) -> None:
        self._lock.close()


def _workers(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [child for child in map(int, text.split()) if b"\0early\0" in _command_line(child)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_while_it_is_checked_leaves_no_worker(
    tmp_path: Path, number: signal.Signals
) -> None:
    with Detcore(tmp_path) as detcore, contextlib.closing(Checking(detcore)) as run:
        run.process.send_signal(number)
        _, errors = run.process.communicate(timeout=60)
        assert run.process.returncode == (130 if number == signal.SIGINT else -number)
        assert errors.count("interrupted") == (number == signal.SIGINT), errors
        assert wait_until_gone([run.worker], 30) == []


def test_a_run_uses_its_early_worker(tmp_path: Path) -> None:
    with Detcore(tmp_path) as detcore, contextlib.closing(Checking(detcore)) as run:
        run.close()
        output, errors = run.process.communicate(timeout=120)
        assert run.process.returncode == 0, output + errors
        assert f"process {run.worker}" in output or f"pid {run.worker}" in output, output
