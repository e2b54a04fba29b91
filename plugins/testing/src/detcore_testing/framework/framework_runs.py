"""Runs shared by the `FrameworkSuite` clauses. Each run is created on first use."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detcore.records import Database, MetricRecord, TrialRecord
from detcore_testing.command import DetcoreCommand, Finished
from detcore_testing.framework.framework_declarations import FrameworkDeclarations

# Checkpoints fall in the middle of scheduling units, validation periods and epochs.
CHECKPOINT_PERIOD = 5
VALIDATION_PERIOD = 8
SEED = 7
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "no change": {},
    # A stepping controller is then called as often as possible.
    "units of one batch": {"scheduling_unit": 1},
    "more validations": {
        "min_validation_period": {"batches": 3},
        "perform_initial_validation": True,
    },
    "fewer checkpoints": {"min_checkpoint_period": {"batches": 0}},
}
_STAGE = "detcore_testing_stage-1.0.dist-info"
_ENTRY_POINTS = """[detcore]
testing-stage = detcore_testing.framework.stage
"""
_STOPS = '''"""Written by the suite: requests a stop when a file exists."""

from pathlib import Path

from {module} import {name} as Base


class Stops(Base):
    def __init__(self, context):
        super().__init__(context)
        path = Path(context.get_data_config()["stop_file"])
        was_requested = context.get_stop_requested

        def get_stop_requested():
            if path.exists():
                context.set_stop_requested(True)
            return was_requested()

        context.get_stop_requested = get_stop_requested
'''
_PROCESS = "process "
# Python's compiled files. TensorFlow imports modules from the temporary directory.
_COMPILED = "__pycache__"
# The suite's own files in the working directory.
_OWN_FILE = re.compile(r"home|config-\d+\.yaml")
# Checkpoints in the storage, and the storage's own files.
_STORED = re.compile(r"[0-9a-f-]{36}|\.detcore-.*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameworkRun:
    """A finished run with its records and leftovers.

    Attributes:
        finished: The commands, oldest first: the first command, then each resuming command.
        trial: Record of the trial, or None if the run created no trial.
        training: Training metric reports by step.
        validations: Validation metric reports by step.
        checkpoints: Directories of the committed checkpoints by step.
        commits: Journal entries of the commits, oldest first.
        journal: File with the callback events of the last command.
        leftovers: One line for each leftover process or file.
        start_batch: Batch of the checkpoint that the last command resumed from, or 0. A killed
            command may have reported later batches.
    """

    finished: tuple[Finished, ...]
    trial: TrialRecord | None
    training: Mapping[int, MetricRecord]
    validations: Mapping[int, MetricRecord]
    checkpoints: Mapping[int, Path]
    commits: tuple[Mapping[str, Any], ...]
    journal: Path
    leftovers: tuple[str, ...]
    start_batch: int = 0

    @property
    def output(self) -> str:
        """Output of all commands."""
        return "\n".join(finished.output for finished in self.finished)

    @property
    def code(self) -> int:
        """Exit code of the last command."""
        return self.finished[-1].code

    @property
    def leftover_processes(self) -> tuple[str, ...]:
        """Lines of `leftovers` about processes. Killed processes cannot delete their files."""
        return tuple(line for line in self.leftovers if line.startswith(_PROCESS))

    @property
    def last_checkpoint(self) -> Path:
        """Directory of the checkpoint with the most steps."""
        if not self.checkpoints:
            raise AssertionError(f"the run has no checkpoint. Output:\n{self.output}")
        return self.checkpoints[max(self.checkpoints)]


class FrameworkRuns:
    """Runs of one plugin in real processes.

    Args:
        suite: The plugin and its trials.
        folder: Directory for all files, empty or missing.
    """

    def __init__(self, suite: FrameworkDeclarations, folder: Path) -> None:
        self.suite = suite
        self.folder = folder.absolute()
        self.timeout_s = suite.timeout_s
        self.model_dir = self.folder / "model"
        self._cache: dict[str, FrameworkRun | Exception] = {}
        site = self.folder / "site"
        (site / _STAGE).mkdir(parents=True)
        metadata = "Metadata-Version: 2.1\nName: detcore-testing-stage\nVersion: 1.0\n"
        (site / _STAGE / "METADATA").write_text(metadata, encoding="utf-8")
        (site / _STAGE / "entry_points.txt").write_text(_ENTRY_POINTS, encoding="utf-8")
        shutil.copytree(
            suite.model_dir, self.model_dir, ignore=shutil.ignore_patterns("__pycache__")
        )
        module, _, name = suite.entrypoint.rpartition(":")
        stops = _STOPS.format(module=module, name=name)
        (self.model_dir / "detcore_suite_stops.py").write_text(stops, encoding="utf-8")
        # multiprocessing creates sockets here, and socket paths are limited to 107 bytes.
        self.temporary = Path(tempfile.mkdtemp(prefix="dc-"))
        self.detcore = DetcoreCommand(
            self.folder / "runs",
            python_path=[*suite.python_path, site],
            variables={"TMPDIR": str(self.temporary)},
        )

    def close(self) -> None:
        """Kill the remaining processes and delete temporary files."""
        self.detcore.close()
        shutil.rmtree(self.temporary, ignore_errors=True)

    # -- runs -------------------------------------------------------------------------------------

    @property
    def reference(self) -> FrameworkRun:
        """Uninterrupted run with synchronous checkpoints."""
        return self._run("reference", checkpoint_async=False)

    @property
    def interrupted(self) -> FrameworkRun:
        """The same training, killed during a save, resumed, and preempted with SIGTERM."""
        kill, terminate = {"before": {"2": "kill"}}, {"after": {"1": "terminate"}}
        return self._run("interrupted", kill, terminate, {}, checkpoint_async=True)

    @property
    def late(self) -> FrameworkRun:
        """The same training, killed after the last batch and resumed."""
        return self._run("late", {"before": {self._last_save: "kill"}}, {}, checkpoint_async=False)

    @property
    def _last_save(self) -> str:
        return str(-(-self.suite.num_batches // CHECKPOINT_PERIOD))

    @property
    def rearranged(self) -> FrameworkRun:
        """The same training with other units, more validations, and one checkpoint at the end."""
        return self._run("rearranged", **collections.ChainMap(*map(dict, CHANGES.values())))

    def run_with_change(self, change: str) -> FrameworkRun:
        """Return the same training with one of `CHANGES`, to isolate a cause."""
        return self._run(f"changed {change}", **CHANGES[change])

    @property
    def stopped(self) -> FrameworkRun:
        """Run with another seed, and a stop request after the checkpoint of batch 10."""
        stop_file = self.folder / "stop"
        return self._run(
            "stopped",
            {"after": {"2": f"touch:{stop_file}"}},
            entrypoint="detcore_suite_stops:Stops",
            checkpoint_async=False,
            reproducibility={"experiment_seed": SEED + 1},
            data={"stop_file": str(stop_file)},
        )

    @property
    def stopped_by_framework(self) -> FrameworkRun:
        """Run of the trial that stops through the framework."""
        return self._run("stopped by framework", entrypoint=self.suite.stop_entrypoint)

    @property
    def continued(self) -> FrameworkRun:
        """A short trial that starts from the last checkpoint of `reference`."""
        return self.continue_with({})

    def continue_with(self, changes: Mapping[str, Any]) -> FrameworkRun:
        """Return a run like `continued` with additional hyperparameters."""
        source = {"source_checkpoint_uuid": self.reference.last_checkpoint.name}
        return self._run(
            "continued with changes" if changes else "continued",
            searcher=self._searcher(self.suite.unit) | source,
            perform_initial_validation=True,
            hyperparameters={**self.suite.hyperparameters, **changes},
        )

    @property
    def invalid(self) -> FrameworkRun:
        """Run with hyperparameters that the trial rejects, and two allowed restarts."""
        invalid = {**self.suite.hyperparameters, **self.suite.invalid_hyperparameters}
        return self._run("invalid", hyperparameters=invalid, max_restarts=2)

    @property
    def broken(self) -> FrameworkRun:
        """Run of the trial that raises an exception in training."""
        return self._run("broken", entrypoint=self.suite.broken_entrypoint)

    @property
    def unknown(self) -> Finished:
        """The command with an unknown trial class, which starts no run."""
        module = self.suite.entrypoint.rpartition(":")[0]
        settings = self.settings("unknown", entrypoint=f"{module}:NobodyWroteThisTrial")
        config = self.detcore.write_config(settings)
        return self.detcore("run", config, self.model_dir, "--json", timeout_s=self.timeout_s)

    @property
    def two_workers(self) -> FrameworkRun:
        """Two workers, killed after the last batch and resumed from the previous checkpoint.

        The resumed workers must reach the last state that the killed workers wrote.
        """

        orders = {"before": {self._last_save: f"copy:{self.two_workers_uninterrupted},kill"}}
        return self._run(
            "two workers",
            orders,
            {},
            entrypoint=self.suite.worker_entrypoint or self.suite.entrypoint,
            resources={"slots_per_trial": 2},
            checkpoint_async=False,
        )

    @property
    def two_workers_uninterrupted(self) -> Path:
        """Directory of the last checkpoint that the killed workers of `two_workers` wrote."""
        return self.folder / "uninterrupted"

    @property
    def one_worker(self) -> FrameworkRun:
        """Run on one worker, for comparison with `two_workers`."""
        if self.suite.worker_entrypoint in ("", self.suite.entrypoint):
            return self.reference
        return self._run("one worker", entrypoint=self.suite.worker_entrypoint)

    @property
    def refused_workers(self) -> FrameworkRun:
        """Run on two workers of a framework that supports only one worker."""
        return self._run("refused workers", resources={"slots_per_trial": 2})

    def adopt(self, name: str, run: FrameworkRun) -> None:
        """Replace one of these runs by an existing run.

        Args:
            name: Name of the run to replace, such as ``"reference"``.
            run: The existing run.
        """
        self._cache[name] = run

    # -- running commands ------------------------------------------------------------------------

    def settings(self, name: str, **changes: Any) -> dict[str, Any]:
        """Return the experiment file of a run. Each of `changes` replaces a section."""
        orders, commits = self._stage_paths(name)
        return {
            "name": f"{self.suite.framework}: {name}",
            "entrypoint": self.suite.entrypoint,
            "hyperparameters": dict(self.suite.hyperparameters),
            "searcher": self._searcher(self.suite.num_batches),
            "checkpoint_storage": {
                "type": "testing-stage",
                "root": str(self.folder / "checkpoints"),
                "orders": str(orders),
                "journal": str(commits),
                "save_trial_latest": 1000,
            },
            "scheduling_unit": self.suite.unit,
            "min_validation_period": {"batches": VALIDATION_PERIOD},
            "min_checkpoint_period": {"batches": CHECKPOINT_PERIOD},
            "checkpoint_policy": "none",
            "max_restarts": 0,
            "reproducibility": {"experiment_seed": SEED},
            **changes,
            "data": {"journal": str(self.journal(name)), **changes.get("data", {})},
        }

    def journal(self, name: str) -> Path:
        """Return the file with the callback events of a run."""
        return self.folder / f"{name}.events"

    def _searcher(self, num_batches: int) -> dict[str, Any]:
        return {
            "name": "single",
            "metric": self.suite.metric,
            "smaller_is_better": self.suite.smaller_is_better,
            "max_length": {"batches": num_batches},
        }

    def _stage_paths(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"{name}.orders.json", self.folder / f"{name}.commits"

    def _run(self, name: str, *legs: Mapping[str, Any], **changes: Any) -> FrameworkRun:
        """Return a cached run. If it failed, raise the same error on every call."""
        if name not in self._cache:
            try:
                settings = self.settings(name, **changes)
                self._cache[name] = self._run_legs(name, settings, legs or ({},))
            except Exception as error:  # noqa: BLE001  (raised below on every call)
                self._cache[name] = error
        result = self._cache[name]
        if isinstance(result, Exception):
            raise result
        return result

    def _run_legs(
        self, name: str, settings: Mapping[str, Any], legs: Sequence[Mapping[str, Any]]
    ) -> FrameworkRun:
        """Run the first leg, and resume the run once for each further leg."""
        orders, commits = self._stage_paths(name)
        before = self._list_strays()
        finished: list[Finished] = []
        last_id, experiment_id, start_batch = self._newest_experiment(), 0, 0
        for leg in legs:
            orders.write_text(json.dumps(leg), encoding="utf-8")
            if self.journal(name).exists():  # keep only the events of the last leg
                self.journal(name).rename(f"{self.journal(name)}-{len(finished)}")
            if not finished:
                config = self.detcore.write_config(settings)
                words: tuple[object, ...] = ("run", config, self.model_dir)
            else:
                words = ("run", "--resume", experiment_id)
                start_batch = self._newest_checkpoint(experiment_id)
            finished.append(self.detcore(*words, "--json", timeout_s=self.timeout_s))
            experiment_id = experiment_id or self._newest_experiment()
            if experiment_id == last_id:
                raise AssertionError(f"the run did not start:\n{finished[-1].output}")
        run = self._read_records(name, experiment_id, tuple(finished), commits)
        leftovers = self._find_leftovers(before)
        return dataclasses.replace(run, leftovers=leftovers, start_batch=start_batch)

    def _list_strays(self, timeout_s: float = 0.0) -> set[str]:
        """Return the existing processes and files that a run must not leave behind.

        Args:
            timeout_s: How long to wait for processes to exit, in seconds.
        """
        processes = self.detcore.leftovers(timeout_s)
        working, stored = self.detcore.folder, self.folder / "checkpoints"
        paths = [
            *self.model_dir.rglob("*"),
            *self.temporary.glob("*"),
            *(path for path in working.glob("*") if not _OWN_FILE.fullmatch(path.name)),
            *(path for path in stored.glob("*") if not _STORED.fullmatch(path.name)),
        ]
        return {f"{_PROCESS}{pid}: {line}" for pid, line in processes.items()} | {
            str(path) for path in paths if _COMPILED not in path.parts
        }

    def _find_leftovers(self, before: set[str]) -> tuple[str, ...]:
        new = self._list_strays() - before
        if any(line.startswith(_PROCESS) for line in new):
            new = self._list_strays(timeout_s=5.0) - before
        return tuple(sorted(new))

    def _newest_experiment(self) -> int:
        with self._open_database() as database:
            return max((record.id for record in database.list_experiments()), default=0)

    def _newest_checkpoint(self, experiment_id: int) -> int:
        with self._open_database() as database:
            records = database.list_checkpoints(experiment_id=experiment_id, states=["COMPLETED"])
        return max((record.steps_completed for record in records), default=0)

    def _open_database(self) -> Database:
        return Database.open(f"sqlite:///{self.detcore.home / 'detcore.db'}")

    def _read_records(
        self, name: str, experiment_id: int, finished: tuple[Finished, ...], commits: Path
    ) -> FrameworkRun:
        with self._open_database() as database:
            trials = database.list_trials(experiment_id)
            trial = trials[0] if trials else None
            read_reports = functools.partial(_read_reports, database, trial)
            training, validations = read_reports("training"), read_reports("validation")
            records = database.list_checkpoints(experiment_id=experiment_id, states=["COMPLETED"])
        lines = commits.read_text(encoding="utf-8").splitlines() if commits.exists() else []
        return FrameworkRun(
            finished=finished,
            trial=trial,
            training=training,
            validations=validations,
            checkpoints={
                record.steps_completed: self.folder / "checkpoints" / record.uuid
                for record in records
            },
            commits=tuple(json.loads(line) for line in lines),
            journal=self.journal(name),
            leftovers=(),
        )


def _read_reports(
    database: Database, trial: TrialRecord | None, kind: str
) -> dict[int, MetricRecord]:
    rows = database.metrics(trial.id, kind) if trial is not None else []
    return {row.steps_completed: row for row in rows}
