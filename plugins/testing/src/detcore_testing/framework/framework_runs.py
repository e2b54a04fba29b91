"""The runs behind the clauses of a `FrameworkSuite`: each is made once, when it is first needed."""

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

# Positions that are no multiples of the suite's units or validations, and in the middle of epochs.
CHECKPOINT_PERIOD = 5
VALIDATION_PERIOD = 8
SEED = 7
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "no change": {},
    # One batch at a time: a stepping controller is then called as often as can be.
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
_STOPS = '''"""Written by the suite: asks for a stop once a file is there."""

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
# Python's own, wherever it imports from: TensorFlow does so from the folder for temporary files.
_COMPILED = "__pycache__"
# The suite's own files in the working directory.
_OWN_FILE = re.compile(r"home|config-\d+\.yaml")
# Checkpoints in the storage, and the storage's own files.
_STORED = re.compile(r"[0-9a-f-]{36}|\.detcore-.*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameworkRun:
    """A run that ended, with its records and leftovers.

    Attributes:
        finished: The commands, oldest first: the first one, then each one that resumed the run.
        trial: Record of its trial; None if it did not get that far.
        training: Reports of training metrics by steps.
        validations: Reports of validation metrics by steps.
        checkpoints: Folders of its committed checkpoints by steps.
        commits: The note made at each commit, oldest first.
        journal: Where callbacks of the trial note their events; of the last command alone.
        left: Processes, and files in places that a run must leave clean, a line for each.
        begun: Batches of the checkpoint that the last command started from; 0: from none. Reports
            of a killed command may be of later batches.
    """

    finished: tuple[Finished, ...]
    trial: TrialRecord | None
    training: Mapping[int, MetricRecord]
    validations: Mapping[int, MetricRecord]
    checkpoints: Mapping[int, Path]
    commits: tuple[Mapping[str, Any], ...]
    journal: Path
    left: tuple[str, ...]
    begun: int = 0

    @property
    def output(self) -> str:
        """The output of the commands."""
        return "\n".join(finished.output for finished in self.finished)

    @property
    def code(self) -> int:
        """Exit code of the last command."""
        return self.finished[-1].code

    @property
    def processes_left(self) -> tuple[str, ...]:
        """The lines of `left` about processes; killed processes cannot clean up their files."""
        return tuple(line for line in self.left if line.startswith(_PROCESS))

    @property
    def last_checkpoint(self) -> Path:
        """The checkpoint with the most steps."""
        if not self.checkpoints:
            raise AssertionError(f"there is no checkpoint. The run printed:\n{self.output}")
        return self.checkpoints[max(self.checkpoints)]


class FrameworkRuns:
    """Runs of one plugin, in real processes.

    Args:
        suite: Which plugin, with which trials.
        folder: Where everything goes; empty or not there.
    """

    def __init__(self, suite: FrameworkDeclarations, folder: Path) -> None:
        self.suite = suite
        self.folder = folder.absolute()
        self.timeout_s = suite.timeout_s
        self.model_dir = self.folder / "model"
        self._made: dict[str, FrameworkRun | Exception] = {}
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
        # Short: multiprocessing puts sockets there, whose paths have at most 107 bytes.
        self.temporary = Path(tempfile.mkdtemp(prefix="dc-"))
        self.detcore = DetcoreCommand(
            self.folder / "runs",
            python_path=[*suite.python_path, site],
            variables={"TMPDIR": str(self.temporary)},
        )

    def close(self) -> None:
        """End the processes that are still running, and remove their temporary files."""
        self.detcore.close()
        shutil.rmtree(self.temporary, ignore_errors=True)

    # -- the runs ---------------------------------------------------------------------------------

    @property
    def reference(self) -> FrameworkRun:
        """From the start to the end in one go; checkpoints are written while training waits."""
        return self._run("reference", checkpoint_async=False)

    @property
    def interrupted(self) -> FrameworkRun:
        """The same training, killed while it saves a checkpoint, then asked to make way."""
        kill, terminate = {"before": {"2": "kill"}}, {"after": {"1": "terminate"}}
        return self._run("interrupted", kill, terminate, {}, checkpoint_async=True)

    @property
    def late(self) -> FrameworkRun:
        """The same training, killed after the last batch, resumed from the previous checkpoint."""
        return self._run("late", {"before": {self._last_save: "kill"}}, {}, checkpoint_async=False)

    @property
    def _last_save(self) -> str:
        return str(-(-self.suite.num_batches // CHECKPOINT_PERIOD))

    @property
    def rearranged(self) -> FrameworkRun:
        """The same training with other units, more validations, and one checkpoint at the end."""
        return self._run("rearranged", **collections.ChainMap(*map(dict, CHANGES.values())))

    def changed(self, what: str) -> FrameworkRun:
        """Return the same training with one of `CHANGES`, to isolate a cause."""
        return self._run(f"changed {what}", **CHANGES[what])

    @property
    def stopped(self) -> FrameworkRun:
        """With another seed, and a stop requested when the checkpoint of batch 10 is committed."""
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
        """Of the trial that stops in the framework's own way."""
        return self._run("stopped by framework", entrypoint=self.suite.stop_entrypoint)

    @property
    def continued(self) -> FrameworkRun:
        """A short trial that starts from the last checkpoint of `reference`."""
        return self.continue_with({})

    def continue_with(self, changes: Mapping[str, Any]) -> FrameworkRun:
        """Return such a trial with these hyperparameters on top."""
        source = {"source_checkpoint_uuid": self.reference.last_checkpoint.name}
        return self._run(
            "continued with changes" if changes else "continued",
            searcher=self._searcher(self.suite.unit) | source,
            perform_initial_validation=True,
            hyperparameters={**self.suite.hyperparameters, **changes},
        )

    @property
    def invalid(self) -> FrameworkRun:
        """With hyperparameters that the trial refuses; it could be started twice again."""
        invalid = {**self.suite.hyperparameters, **self.suite.invalid_hyperparameters}
        return self._run("invalid", hyperparameters=invalid, max_restarts=2)

    @property
    def broken(self) -> FrameworkRun:
        """Of the trial whose training raises."""
        return self._run("broken", entrypoint=self.suite.broken_entrypoint)

    @property
    def unknown(self) -> Finished:
        """The command, given a trial class that is not there; it begins no run."""
        module = self.suite.entrypoint.rpartition(":")[0]
        settings = self.settings("unknown", entrypoint=f"{module}:NobodyWroteThisTrial")
        config = self.detcore.write_config(settings)
        return self.detcore("run", config, self.model_dir, "--json", timeout_s=self.timeout_s)

    @property
    def two_workers(self) -> FrameworkRun:
        """Two workers, killed after the last batch, resumed from the previous checkpoint.

        The resumed workers must reach the state that the killed ones had written at the end.
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
        """Folder of the last checkpoint that the killed workers of `two_workers` had written."""
        return self.folder / "uninterrupted"

    @property
    def one_worker(self) -> FrameworkRun:
        """The run that `two_workers` is compared with."""
        if self.suite.worker_entrypoint in ("", self.suite.entrypoint):
            return self.reference
        return self._run("one worker", entrypoint=self.suite.worker_entrypoint)

    @property
    def refused_workers(self) -> FrameworkRun:
        """On two workers, of a framework that trains on one."""
        return self._run("refused workers", resources={"slots_per_trial": 2})

    def adopt(self, name: str, run: FrameworkRun) -> None:
        """Use a run that was made elsewhere in the place of one of these.

        Args:
            name: Which, such as ``"reference"``.
            run: The run.
        """
        self._made[name] = run

    # -- how they are made ------------------------------------------------------------------------

    def settings(self, name: str, **changes: Any) -> dict[str, Any]:
        """Return the experiment file of a run; each of `changes` replaces a whole section."""
        orders, commits = self._places(name)
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
        """Return where callbacks of a run note their events."""
        return self.folder / f"{name}.events"

    def _searcher(self, num_batches: int) -> dict[str, Any]:
        return {
            "name": "single",
            "metric": self.suite.metric,
            "smaller_is_better": self.suite.smaller_is_better,
            "max_length": {"batches": num_batches},
        }

    def _places(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"{name}.orders.json", self.folder / f"{name}.commits"

    def _run(self, name: str, *legs: Mapping[str, Any], **changes: Any) -> FrameworkRun:
        """Return a run, made once; if making it failed, raise the same error on every call."""
        if name not in self._made:
            try:
                self._made[name] = self._make(name, self.settings(name, **changes), legs or ({},))
            except Exception as error:  # noqa: BLE001  (raised below, each time)
                self._made[name] = error
        made = self._made[name]
        if isinstance(made, Exception):
            raise made
        return made

    def _make(
        self, name: str, settings: Mapping[str, Any], legs: Sequence[Mapping[str, Any]]
    ) -> FrameworkRun:
        """Run the first leg, and resume once for each further leg."""
        orders, commits = self._places(name)
        before = self._list_strays()
        finished: list[Finished] = []
        known, experiment_id, begun = self._newest_experiment(), 0, 0
        for leg in legs:
            orders.write_text(json.dumps(leg), encoding="utf-8")
            if self.journal(name).exists():  # so that it tells of the last leg alone
                self.journal(name).rename(f"{self.journal(name)}-{len(finished)}")
            if not finished:
                config = self.detcore.write_config(settings)
                words: tuple[object, ...] = ("run", config, self.model_dir)
            else:
                words = ("run", "--resume", experiment_id)
                begun = self._newest_checkpoint(experiment_id)
            finished.append(self.detcore(*words, "--json", timeout_s=self.timeout_s))
            experiment_id = experiment_id or self._newest_experiment()
            if experiment_id == known:
                raise AssertionError(f"the run was not begun:\n{finished[-1].output}")
        run = self._read(name, experiment_id, tuple(finished), commits)
        return dataclasses.replace(run, left=self._new_strays(before), begun=begun)

    def _list_strays(self, patience_s: float = 0.0) -> set[str]:
        """Return the processes and the files that a run must not leave, and that exist now.

        Args:
            patience_s: How long processes may take to end by themselves, in seconds.
        """
        processes = self.detcore.leftovers(patience_s)
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

    def _new_strays(self, before: set[str]) -> tuple[str, ...]:
        new = self._list_strays() - before
        if any(line.startswith(_PROCESS) for line in new):
            new = self._list_strays(patience_s=5.0) - before
        return tuple(sorted(new))

    def _newest_experiment(self) -> int:
        with self._database() as database:
            return max((record.id for record in database.list_experiments()), default=0)

    def _newest_checkpoint(self, experiment_id: int) -> int:
        with self._database() as database:
            records = database.list_checkpoints(experiment_id=experiment_id, states=["COMPLETED"])
        return max((record.steps_completed for record in records), default=0)

    def _database(self) -> Database:
        return Database.open(f"sqlite:///{self.detcore.home / 'detcore.db'}")

    def _read(
        self, name: str, experiment_id: int, finished: tuple[Finished, ...], commits: Path
    ) -> FrameworkRun:
        with self._database() as database:
            trials = database.list_trials(experiment_id)
            trial = trials[0] if trials else None
            by_kind = functools.partial(_by_steps, database, trial)
            training, validations = by_kind("training"), by_kind("validation")
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
            left=(),
        )


def _by_steps(database: Database, trial: TrialRecord | None, kind: str) -> dict[int, MetricRecord]:
    rows = database.metrics(trial.id, kind) if trial is not None else []
    return {row.steps_completed: row for row in rows}
