"""Records of a script that runs by itself, without a runner."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import StorageFullError
from detcore.contract.values import ExperimentState, TrialInfo
from detcore.core._modes import script_file
from detcore.core._resume import InterruptedScripts

if TYPE_CHECKING:
    from detcore.core._modes import ScriptExperiment
    from detcore.core._outcome import Outcome
    from detcore.database import CheckpointRecord, TrialRecord
    from detcore.environment import Environment
    from detcore.hooks import PluginManager
    from detcore.hooks.delivery import LateDelivery
    from detcore.storage import StorageBackend

__all__ = ["ScriptRunner"]

_FLUSH_TIMEOUT_S = 60.0


class ScriptRunner:
    """The runner of a script by itself, in the same process.

    It records the experiment, moves the script's log into the records, notifies observers, answers
    questions, and records the end.

    Args:
        environment: Its `home` holds the trial's folder, its `database_url` the records.
        plugins: The plugins that are on.
        stack: Closes everything that is opened.
        wait_s: Returns how long the end waits for observers, in seconds.

    Raises:
        DatabaseError: If the records cannot be opened.
    """

    def __init__(
        self,
        environment: Environment,
        plugins: PluginManager,
        stack: contextlib.ExitStack,
        *,
        wait_s: Callable[[], float],
    ) -> None:
        from detcore.database import Database

        self._environment = environment
        self._plugins = plugins
        self._stack = stack
        self._wait_s = wait_s
        self._database = stack.enter_context(Database.open(environment.database_url))
        self._info: TrialInfo
        self._storage_url = ""
        self._delivery: LateDelivery | None = None

    def record(
        self,
        storage: StorageBackend,
        script: ScriptExperiment,
        *,
        spec: str | Mapping[str, object] | None,
        resume: bool,
    ) -> TrialInfo:
        """Record an experiment with one trial, or resume one that was interrupted.

        Args:
            storage: Where the checkpoints will be.
            script: The experiment to record.
            spec: The setting that `storage` was opened from; None: it is the default of the home.
            resume: Whether to resume an interrupted experiment of the same script.

        Raises:
            RunError: If the configuration names a checkpoint to start from that is not there.
        """
        environment = self._environment
        if environment.master is not None:
            logging.getLogger("detcore").warning(
                "this script is recorded in DETCORE_HOME or DETCORE_DB, and not by %s of the "
                "environment: a server records submissions (detcore run --master)",
                environment.master,
            )
        interrupted = InterruptedScripts(self._database, environment, self._plugins)
        interrupted.settle()
        info = self._info = self._record(storage, script, spec, interrupted if resume else None)
        self._storage_url = storage.url
        start = "from the start"
        if info.latest_checkpoint is not None:
            start = f"from batch {info.steps_completed} (checkpoint {info.latest_checkpoint})"
        _say(
            info,
            f"{start}; records in {self._database.url}; look at it: "
            f"detcore trial describe {info.trial_id}",
        )
        return info

    def _record(
        self,
        storage: StorageBackend,
        script: ScriptExperiment,
        spec: str | Mapping[str, object] | None,
        interrupted: InterruptedScripts | None,
    ) -> TrialInfo:
        from detcore.core._source import find_source

        database = self._database
        source = find_source(
            script.config.get("searcher") or {},
            database=database,
            storage=storage,
            environment=self._environment,
            plugins=self._plugins,
        )
        file = script_file()
        name = script.name or (file.name if file is not None else "interactive")
        model_dir = script.model_dir or (file.parent if file is not None else Path.cwd())
        config: dict[str, Any] = {
            **copy.deepcopy(dict(script.config)),
            "name": name,
            "is_standalone": True,
            # Not the URL of the default, which changes when the home is moved.
            "checkpoint_storage": None if spec is None else _plain(spec),
        }
        if source is not None:
            # Every start uses the same one; a trial's latest may be another one later.
            config["searcher"] |= {
                "source_trial_id": None, "source_checkpoint_uuid": source.checkpoint
            }  # fmt: skip
        script = dataclasses.replace(script, config=config, name=name, model_dir=model_dir)
        trial = None
        if interrupted is not None:
            trial = interrupted.claim(script, storage_url=storage.url)
        if trial is None:
            trial = self._create(script)
        latest = self._settled(storage, trial)
        steps_completed = latest.steps_completed if latest else 0
        return TrialInfo(
            experiment_id=trial.experiment_id,
            trial_id=trial.id,
            run_id=database.start_run(trial.id),
            trial_seed=script.seed,
            hparams=script.hparams,
            config=config,
            model_dir=str(model_dir),
            trial_dir=str(trial.trial_dir),
            latest_checkpoint=latest.uuid if latest else None,
            steps_completed=steps_completed,
            test_mode=script.test_mode,
            source_checkpoint=source.checkpoint if source else None,
            source_storage=source.storage if source else None,
            best_validation=database.best_until(trial.id, config, steps_completed),
        )

    def _create(self, script: ScriptExperiment) -> TrialRecord:
        """Record an experiment with one trial, which has its own folder."""
        from detcore.database import keep_secrets

        database, home = self._database, self._environment.home
        name, config = str(script.name), script.config
        experiment_id = database.create_experiment(
            config=config, config_text=None, model_dir=str(script.model_dir), name=name
        )
        keep_secrets(home, experiment_id, config)
        trial_id = database.create_trial(
            experiment_id=experiment_id, hparams=script.hparams, seed=script.seed
        )
        trial_dir = home / "experiments" / str(experiment_id) / "trials" / str(trial_id)
        database.set_trial_dir(trial_id, str(trial_dir))
        return database.get_trial(trial_id)

    def _settled(self, storage: StorageBackend, trial: TrialRecord) -> CheckpointRecord | None:
        """Settle the earlier runs of a trial; return the checkpoint that it resumes from."""
        from detcore.core._source import recover_trial
        from detcore.database import ingest_spools

        Path(str(trial.trial_dir)).mkdir(parents=True, exist_ok=True)
        if trial.current_run is None:
            return None
        ingest_spools(self._database, self._environment.home, trial_id=trial.id)
        recover_trial(self._database, storage, trial)
        return self._database.latest_checkpoint(trial.id)

    def follow(self, log: Path) -> None:
        """Start to move the log into the records, and to notify observers.

        Raises:
            StorageError: If the subscriptions of observers cannot be written.
        """
        from detcore.database import LogFollower

        follower = LogFollower(self._database)
        self._stack.callback(follower.close, _FLUSH_TIMEOUT_S)
        follower.follow(log)
        observers = self._plugins.observers()
        if observers:
            from detcore.hooks.delivery import LateDelivery, subscribe

            subscribe(self._info, observers)
            self._delivery = LateDelivery(
                self._environment.home,
                lambda: observers,
                experiment_id=self._info.experiment_id,
            )
            self._delivery.watch(Path(self._info.trial_dir))

    def answer(self, question: str, fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Answer a question about the records, as a runner does."""
        from detcore.database import answer_question

        return answer_question(
            self._database, self._environment.home, self._info.trial_id, question, fields
        )

    def record_end(self, outcome: Outcome) -> None:
        """Record how the script ended; its reports are in the records then.

        Raises:
            StorageFullError: If the database has no room for it.
        """
        from detcore.database import Patience

        info = self._info
        database = self._database.patient(Patience(logging.getLogger("detcore").warning))
        try:
            database.set_trial_state(info.trial_id, outcome.state, error=outcome.record)
            database.set_experiment_state(info.experiment_id, outcome.state, error=outcome.record)
        except StorageFullError as full:
            how = f"{outcome.label}: {outcome.error}" if outcome.error else outcome.label
            raise StorageFullError(
                f"no room in {database.url} to record how trial {info.trial_id} ended ({how}).\n"
                f"Its reports are kept in {info.trial_dir}, its checkpoints in "
                f"{self._storage_url}.\n"
                "Free some space. The next detcore command takes the reports in, and the next "
                "script that calls core.init() settles the trial.",
                missing_bytes=full.missing_bytes,
            ) from full

    def announce_end(self, outcome: Outcome) -> None:
        """Deliver the remaining events to observers, and say how the script ended."""
        left = self._delivery.close(self._wait_s()) if self._delivery is not None else {}
        if left:
            logging.getLogger("detcore.plugins").warning(
                "trial %d: not everything was delivered to %s; it is kept in %s and delivered "
                "later (detcore plugins deliver)",
                self._info.trial_id, ", ".join(sorted(left)),
                Path(self._info.trial_dir) / "observers",
            )  # fmt: skip
        text = outcome.state.value.lower()
        if outcome.record:
            text += f": {outcome.record}"
        if outcome.state is ExperimentState.PAUSED:
            text += "; core.init(resume=True) resumes it from its latest checkpoint"
        _say(self._info, text)


def _say(info: TrialInfo, text: str) -> None:
    """Print a message for the user of a script to stderr; stdout is the script's own."""
    print(f"experiment {info.experiment_id}, trial {info.trial_id}: {text}", file=sys.stderr)


def _plain(spec: str | Mapping[str, object]) -> str | dict[str, object]:
    """Return a specification as JSON values; pydantic's secrets hide theirs."""
    if isinstance(spec, str):
        return spec
    return {
        key: value.get_secret_value() if hasattr(value, "get_secret_value") else value
        for key, value in spec.items()
    }
