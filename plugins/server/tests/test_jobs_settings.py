"""Tests submitted runs on a production server: TLS, PostgreSQL, concurrent experiments."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from certificates import Certificate
from fake_distributions import write_distribution
from job_server import MODEL_DIR, JobServer, toy_config, wait_for
from postgresql_server import PostgreSQLServer, run_server

PLUGIN = """
from detcore import hookimpl
from detcore.plugins import LauncherType

@hookimpl
def detcore_register_launcher():
    return [LauncherType(name="noting", launcher="detcore_starts.launchers:Noting")]
"""
LAUNCHER = """
import os
from pathlib import Path
from detcore.launch import LocalLauncher

class Noting(LocalLauncher):
    def start(self, info, **options):
        with Path(os.environ["NOTED_STARTS"]).open("a") as file:
            file.write(f"trial {info.trial_id} on {options['slots']}\\n")
        return super().start(info, **options)
"""
# Each worker signals that it has started and waits for all others.
MEETING = """
import time
from pathlib import Path
from model_def import Line

class Meeting(Line):
    def on_batch(self, step):
        if step != 15:
            return
        place = Path(self.context.get_hparam("place"))
        (place / f"{self.context.get_hparam('who')}-{self.context.distributed.rank}").touch()
        while not (place / "go").exists():
            time.sleep(0.02)
"""


@dataclasses.dataclass
class Setup:
    """A server with its certificate and database."""

    jobs: JobServer
    postgresql: PostgreSQLServer
    folder: Path

    def begin(self, who: str, slots: int) -> None:
        """Submit an experiment with the command line."""
        config = toy_config(
            entrypoint="meeting:Meeting",
            resources={"slots_per_trial": slots},
            hyperparameters__place=str(self.folder),
            hyperparameters__who=who,
        )
        path = self.folder / f"{who}.yaml"
        path.write_text(yaml.safe_dump(config))
        code = self.folder / "code"
        result = self.jobs.client("run", path, code, "--master", self.jobs.url, "--detach")
        assert result.code == 0, result.output

    def weights(self, experiment_id: int) -> list[float]:
        """Return an experiment's weights, after a check that each step was reported once."""
        with self.jobs.database() as database:
            (trial,) = database.list_trials(experiment_id)
            reports = database.metrics(trial.id, "validation")
            assert [report.steps_completed for report in reports] == [10, 20, 30, 40]
            reports = database.metrics(trial.id, "training")
            steps = [report.steps_completed for report in reports]
            assert steps == sorted(set(steps))
            latest = database.latest_checkpoint(trial.id)
        assert latest is not None
        assert latest.steps_completed == 40
        path = self.jobs.server.home / "checkpoints" / latest.uuid / "toy.json"
        weights = json.loads(path.read_text())["weights"]
        return [float(value) for value in weights]


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    certificate = Certificate(tmp_path)
    modules = {"detcore_starts.plugin": PLUGIN, "detcore_starts.launchers": LAUNCHER}
    plugins = {"starts": "detcore_starts.plugin"}
    write_distribution(tmp_path / "site", "detcore-starts", modules=modules, plugins=plugins)
    shutil.copytree(MODEL_DIR, tmp_path / "code", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "code" / "meeting.py").write_text(MEETING)
    with (
        run_server() as postgresql,
        JobServer(
            tmp_path / "jobs",
            *(*certificate.options, "--max-experiments", "2", "--launcher", "noting"),
            python_path=[tmp_path / "site"],
            certificate=certificate.certificate,
            DETCORE_DB=postgresql.url(postgresql.create_database()),
            NOTED_STARTS=str(tmp_path / "starts"),
        ) as jobs,
    ):
        yield Setup(jobs, postgresql, tmp_path)


@pytest.mark.soak
def test_concurrent_experiments_over_tls_and_postgresql(setup: Setup) -> None:
    """One experiment has two workers. The database and the server stop in between."""
    setup.begin("alone", slots=1)
    setup.begin("pair", slots=2)
    setup.begin("later", slots=1)
    there = [setup.folder / name for name in ("alone-0", "pair-0", "pair-1")]
    wait_for(lambda: all(path.exists() for path in there))
    os.kill(setup.jobs.runner_of(1), 0)
    assert setup.jobs.runner_of(1) != setup.jobs.runner_of(2)
    assert not (setup.folder / "later-0").exists()  # two experiments run at the same time

    setup.postgresql.stop(crash=True)
    setup.jobs.server.kill()
    (setup.folder / "go").touch()
    setup.postgresql.start()
    setup.jobs.server.start()
    client = setup.jobs.client
    for number in (1, 2, 3):
        result = client("run", "--resume", number, "--master", setup.jobs.url)
        assert result.code == 0, result.output
        assert f"experiment {number}: completed" in result.stdout
    assert (setup.folder / "later-0").exists()
    # Each was started once, the first two at the same time: neither the server nor the database
    # being away ends a trial.
    starts = (setup.folder / "starts").read_text().splitlines()
    assert sorted(start.rpartition(" ")[2] for start in starts) == ["1", "1", "2"]
    alone, pair, later = (setup.weights(number) for number in (1, 2, 3))
    assert alone == later
    assert pair == pytest.approx(alone, rel=1e-3)  # it has different noise
    assert not (client.home / "checkpoints").exists()
