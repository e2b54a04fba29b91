"""A worker of a trial without its runner: only what it sends reaches the records."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from running_server import USER, RunningServer

from detcore._log import spool_path
from detcore.database import Database, new_token, token_digest
from detcore.types import TrialInfo, TrialState

__all__ = ["LoneTrial", "wait_for"]


class LoneTrial:
    """A trial in the records of a server, whose workers run under another home.

    Attributes:
        home: The workers' ``DETCORE_HOME``.
        trial_id: The trial.
    """

    def __init__(self, server: RunningServer, folder: Path, **config: Any) -> None:
        self._server = server
        self.home = folder / "elsewhere"
        self.home.mkdir(parents=True, exist_ok=True)
        self.storage = folder / "checkpoints"
        self.storage.mkdir(exist_ok=True)
        self.config = {
            "name": "lone",
            "entrypoint": "python train.py",
            "checkpoint_storage": {"type": "directory", "container_path": str(self.storage)},
            "searcher": {"name": "single", "metric": "loss", "smaller_is_better": True},
            **config,
        }
        with self.database() as database:
            self.experiment_id = database.create_experiment(
                config=self.config, config_text=None, model_dir=str(self.home), name="lone"
            )
            self.trial_id = database.create_trial(
                experiment_id=self.experiment_id, hparams={}, seed=7
            )
        self.trial_dir = self.home / f"experiments/{self.experiment_id}/trials/{self.trial_id}"
        self.token = ""

    def database(self) -> Database:
        """Open the server's records."""
        return Database.open(self._server.database_url)

    def new_token(self, *, trial_id: int | None = None, lifetime_s: float = 600.0) -> str:
        """Note a token for the trial's workers."""
        token = new_token()
        with self.database() as database:
            database.add_token(
                token_digest(token),
                user_id=database.get_user(USER).id,
                expires_at=time.time() + lifetime_s,
                trial_id=trial_id or self.trial_id,
            )
        return token

    def start(self, script: str, *arguments: object, **changed: Any) -> subprocess.Popen[str]:
        """Start a run of the trial: a script with ``core.init()``."""
        token = changed.pop("token", None) or self.new_token()
        variables = changed.pop("variables", {})
        with self.database() as database:
            latest = database.latest_checkpoint(self.trial_id)
            run_id = database.start_run(self.trial_id)
        info = TrialInfo(
            **{
                "experiment_id": self.experiment_id,
                "trial_id": self.trial_id,
                "run_id": run_id,
                "trial_seed": 7,
                "hparams": {},
                "config": self.config,
                "model_dir": str(self.home),
                "trial_dir": str(self.trial_dir),
                "database_url": self._server.url,
                "latest_checkpoint": latest.uuid if latest else None,
                "steps_completed": latest.steps_completed if latest else 0,
                **changed,
            }
        )
        path = self.home / f"info-{run_id}.json"
        path.write_text(json.dumps(dataclasses.asdict(info)))
        (self.home / "train.py").write_text(script)
        left_out = ("DETCORE_DB", "DETCORE_EVENTS_FD", "DETCORE_REPLIES_FD", "DETCORE_LEASH_FD")
        environment = {name: text for name, text in os.environ.items() if name not in left_out}
        environment |= {
            "DETCORE_HOME": str(self.home),
            "DETCORE_TRIAL_INFO": str(path),
            "DETCORE_TOKEN": token,
            **variables,
        }
        return subprocess.Popen(
            [sys.executable, self.home / "train.py", *map(str, arguments)],
            cwd=self.home,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, script: str, *arguments: object, **changed: Any) -> str:
        """Run a run of the trial to its end; return what it printed."""
        process = self.start(script, *arguments, **changed)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        return output

    def spool(self, run_id: int = 1) -> Path:
        """Return where a run's spool lies."""
        return spool_path(self.trial_dir, run_id)

    def steps(self, kind: str = "training") -> list[int]:
        """Return the steps that the records know, in the order in which they came."""
        with self.database() as database:
            return [row.steps_completed for row in database.metrics(self.trial_id, kind)]

    def state(self) -> TrialState:
        """Return the trial's recorded state."""
        with self.database() as database:
            return database.get_trial(self.trial_id).state


def wait_for(condition: Any, timeout_s: float = 30.0) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)
