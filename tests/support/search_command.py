"""Searches over a script without training, run with the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toy_command import Detcore

from detcore.records import Database, TrialRecord

__all__ = ["Searches"]

SPACE = {
    "rate": {"type": "double", "minval": 0.0, "maxval": 1.0},
    "width": {"type": "int", "minval": 1, "maxval": 8},
}

# Saves its progress, and is killed, fails or waits according to its orders.
SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
from detcore import InvalidHP, core

orders = json.loads(Path("orders.json").read_text())
with core.init() as context:
    info = context.info
    mine = orders.get(str(info.trial_id), {})
    begun = 0
    if info.latest_checkpoint:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            begun = int((path / "state").read_text())
    with open("starts.jsonl", "a") as file:
        file.write(json.dumps({"trial": info.trial_id, "from": begun, "at": time.time(),
                               "length": info.searcher_length}) + "\\n")
    if mine.get("invalid"):
        raise InvalidHP("too wide")
    step = begun
    for operation in context.searcher.operations():
        while step < operation.length:
            step += 1
            if mine.get("meet"):
                Path(f"met-{info.trial_id}").touch()
                while len(list(Path(".").glob("met-*"))) < mine["meet"]:
                    time.sleep(0.01)
            if step == mine.get("fail_at") and info.run_id <= mine.get("fail_runs", 99):
                os.kill(os.getpid(), signal.SIGKILL)
            if step == mine.get("stop_at"):
                sys.exit(0)
            while mine.get("hold") and not Path("go").exists():
                Path(f"holding-{info.trial_id}").touch()
                if context.preempt.should_preempt():
                    with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
                        (path / "state").write_text(str(step))
                    sys.exit(75)
                time.sleep(0.01)
        with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
            (path / "state").write_text(str(step))
        metric = info.hparams["rate"] + 1 / step
        context.train.report_validation_metrics(step, {"loss": metric})
        operation.report_completed(metric)
"""


class Searches:
    """The `detcore` command with a home and a code directory."""

    def __init__(self, detcore: Detcore) -> None:
        self.detcore = detcore
        self.code = detcore.tmp_path / "code"
        self.code.mkdir()
        (self.code / "train.py").write_text(SCRIPT)
        self.order()

    def order(self, **orders: Any) -> None:
        """Set the behaviour of trials by id: ``t3={"fail_at": 2}``."""
        by_id = {name.removeprefix("t"): order for name, order in orders.items()}
        (self.code / "orders.json").write_text(json.dumps(by_id))

    def config(self, **changes: Any) -> Path:
        """Write an experiment file of three random trials of 4 batches."""
        searcher = {
            "name": "random",
            "metric": "loss",
            "max_length": {"batches": 4},
            "max_trials": 3,
            **changes.pop("searcher", {}),
        }
        return self.detcore.config(
            **{
                "entrypoint": "python3 train.py",
                "hyperparameters": SPACE,
                "searcher": searcher,
                **changes,
            }
        )

    def run(self, *, code: int = 0, **changes: Any) -> dict[str, Any]:
        """Run an experiment, and return its summary."""
        finished = self.detcore("run", self.config(**changes), self.code, "--json")
        assert finished.code == code, finished.stdout + finished.stderr
        return finished.summary

    def resume(self, *arguments: object) -> dict[str, Any]:
        """Resume the first experiment, and return its summary."""
        finished = self.detcore("run", "--resume", 1, "--json", *arguments)
        assert finished.code == 0, finished.stdout + finished.stderr
        return finished.summary

    def database(self) -> Database:
        return self.detcore.database()

    def events(self, experiment: int = 1) -> list[Any]:
        """Return the log of a search, with trial indices."""
        with self.database() as database:
            return database.list_search_events(experiment)

    def trials(self, experiment: int = 1) -> list[TrialRecord]:
        with self.database() as database:
            return database.list_trials(experiment)

    def starts(self) -> list[dict[str, Any]]:
        """Return the trial and the first step of every start."""
        lines = (self.code / "starts.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def holding(self) -> list[int]:
        """Return the trials that wait for the file ``go``."""
        return sorted(int(path.name.partition("-")[2]) for path in self.code.glob("holding-*"))
