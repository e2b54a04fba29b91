"""Scripts and trials that use the Core API, with a separate home."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_runner import FakeRunner

from detcore import core
from detcore.records import Database, ingest_event_logs
from detcore.types import Length, TrialInfo, TrialSettings, Unit


class Home:
    """A folder of records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path / 'detcore.db'}"
        self.started: list[subprocess.Popen[str]] = []

    def database(self) -> Database:
        return Database.open(self.url)

    def start(self, code: str, name: str = "train.py", *, until: str = "") -> subprocess.Popen[str]:
        """Start a script; return when it has printed a line, if that is given."""
        script = self.path.parent / name
        script.write_text(code)
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(script)],
            env={**os.environ, "DETCORE_HOME": str(self.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        if until:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{until}\n"
        return process

    def run(self, code: str, name: str = "train.py") -> tuple[int, str, str]:
        """Run a script to its end; return exit code and output."""
        process = self.start(code, name)
        stdout, stderr = process.communicate(timeout=60)
        return process.returncode, stdout, stderr


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    for process in home.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def alone(home: Home, monkeypatch: pytest.MonkeyPatch) -> Callable[..., core.Context]:
    """Create contexts as a standalone script does."""
    monkeypatch.setenv("DETCORE_HOME", str(home.path))
    for name in ("DETCORE_TRIAL_INFO", "DETCORE_CHANNEL_FD", "DETCORE_DB"):
        monkeypatch.delenv(name, raising=False)
    return core.init


@pytest.fixture
def managed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[core.Context, TrialInfo]]]:
    """Make contexts as a worker does that a runner started, which answers questions."""
    trials: dict[str, int] = {}

    def make(
        config: dict[str, Any] | None = None,
        *,
        steps_completed: int = 0,
        channel_fd: int | None = None,
        **arguments: Any,
    ) -> tuple[core.Context, TrialInfo]:
        monkeypatch.setenv("DETCORE_HOME", str(home.path))
        settings = _settings(config or {})
        with home.database() as database:
            ingest_event_logs(database, home.path)
            if "id" not in trials:
                trials["experiment"] = database.create_experiment(
                    config=config or {}, config_text=None, model_dir="/", name="x"
                )
                trials["id"] = database.create_trial(
                    experiment_id=trials["experiment"], hparams={}, seed=3
                )
            # As the runner does, which knows only what earlier runs reported.
            best = database.get_best_value_until(trials["id"], settings, steps_completed)
            run_id = database.start_run(trials["id"])
        info = TrialInfo(
            experiment_id=trials["experiment"],
            trial_id=trials["id"],
            run_id=run_id,
            trial_seed=3,
            hparams={"lr": 0.1},
            config=config or {},
            model_dir="/",
            trial_dir=str(home.path / f"experiments/{trials['experiment']}/trials/{trials['id']}"),
            steps_completed=steps_completed,
            best_validation=best,
            settings=settings,
        )
        path = home.path / "info.json"
        path.write_text(json.dumps(dataclasses.asdict(info)))
        monkeypatch.setenv("DETCORE_TRIAL_INFO", str(path))
        monkeypatch.setenv(
            "DETCORE_CHANNEL_FD", str(channel_fd or runner.workers_end(info.trial_id))
        )
        return core.init(**arguments), info

    runner = FakeRunner(home.url, home.path)
    yield make
    runner.close()


def _settings(config: dict[str, Any]) -> TrialSettings:
    """Return the settings of a configuration of which only a part is given."""
    values = {**config, **config.get("searcher", {})}
    values.pop("searcher", None)
    for unit, count in values.pop("max_length", {}).items():
        values |= {"max_length": Length(count, Unit(unit)), "length_unit": Unit(unit)}
    return TrialSettings(**values)
