"""Records of a script that runs by itself, without a runner."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.core._script import script_file
from detcore.errors import DetcoreError, StorageFullError
from detcore.types import ExperimentState, TrialInfo

if TYPE_CHECKING:
    from detcore.core._outcome import Outcome
    from detcore.core._script import ScriptExperiment
    from detcore.database import (
        CheckpointRecord,
        Database,
        ExperimentRecord,
        TrialRecord,
    )
    from detcore.delivery import LateDelivery
    from detcore.environment import Environment
    from detcore.hooks import PluginManager
    from detcore.storage import StorageBackend

__all__ = ["ScriptRunner", "create_records", "settle_dead_scripts"]

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
        """Record an experiment with one trial, or resume one; see `create_records`."""
        environment = self._environment
        if environment.master is not None:
            logging.getLogger("detcore").warning(
                "this script is recorded in DETCORE_HOME or DETCORE_DB, and not by %s of the "
                "environment: a server records submissions (detcore run --master)",
                environment.master,
            )
        settle_dead_scripts(self._database, environment, self._plugins)
        info = create_records(
            self._database, environment, self._plugins, storage, script, spec=spec, resume=resume
        )
        self._info, self._storage_url = info, storage.url
        start = "from the start"
        if info.latest_checkpoint is not None:
            start = f"from batch {info.steps_completed} (checkpoint {info.latest_checkpoint})"
        _say(
            info,
            f"{start}; records in {self._database.url}; look at it: "
            f"detcore trial describe {info.trial_id}",
        )
        return info

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
            from detcore.delivery import LateDelivery, subscribe

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


def create_records(
    database: Database,
    environment: Environment,
    plugins: PluginManager,
    storage: StorageBackend,
    script: ScriptExperiment,
    *,
    spec: str | Mapping[str, object] | None = None,
    resume: bool = False,
) -> TrialInfo:
    """Record an experiment with one trial, or resume one that was interrupted.

    Args:
        database: The records.
        environment: Its `home` holds the trial's folder.
        plugins: Open the storage of a checkpoint to start from.
        storage: Where the checkpoints will be.
        script: The experiment to record.
        spec: The setting that `storage` was opened from; None: it is the default of the home.
        resume: Whether to resume an interrupted experiment of the same script.

    Raises:
        RunError: If the configuration names a checkpoint to start from that is not there.
    """
    from detcore.checkpoint import find_source, pin_source
    from detcore.core._resume import claim_interrupted

    source = find_source(
        script.config.get("searcher") or {},
        database=database,
        storage=storage,
        environment=environment,
        plugins=plugins,
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
    pin_source(config, source)
    told = dataclasses.replace(script, config=config, name=name, model_dir=model_dir)
    trial = None
    if resume:
        trial = claim_interrupted(
            database,
            told,
            storage_url=storage.url,
            settle=lambda number: _settle_if_killed(database, environment, plugins, number),
        )
    if trial is None:
        trial = _create(database, environment, told)
    latest = _settled(database, environment, storage, trial)
    best = database.best_until(trial.id, config, latest.steps_completed if latest else 0)
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
        steps_completed=latest.steps_completed if latest else 0,
        test_mode=script.test_mode,
        source_checkpoint=source.checkpoint if source else None,
        source_storage=source.storage if source else None,
        best_validation=best,
    )


def _create(database: Database, environment: Environment, script: ScriptExperiment) -> TrialRecord:
    """Record an experiment with one trial, which has its own folder."""
    from detcore.database import keep_secrets

    name, config = str(script.name), script.config
    experiment_id = database.create_experiment(
        config=config, config_text=None, model_dir=str(script.model_dir), name=name
    )
    keep_secrets(environment.home, experiment_id, config)
    trial_id = database.create_trial(
        experiment_id=experiment_id, hparams=script.hparams, seed=script.seed
    )
    trial_dir = _folder(environment, experiment_id) / "trials" / str(trial_id)
    database.set_trial_dir(trial_id, str(trial_dir))
    return database.get_trial(trial_id)


def _settled(
    database: Database, environment: Environment, storage: StorageBackend, trial: TrialRecord
) -> CheckpointRecord | None:
    """Settle the earlier runs of a trial; return the checkpoint that it resumes from."""
    from detcore.database import ingest_spools

    Path(str(trial.trial_dir)).mkdir(parents=True, exist_ok=True)
    if trial.current_run is None:
        return None
    ingest_spools(database, environment.home, trial_id=trial.id)
    _recover(database, storage, trial)
    return database.latest_checkpoint(trial.id)


def _recover(
    database: Database,
    storage: StorageBackend,
    trial: TrialRecord,
    *,
    uuids: Collection[str] | None = None,
) -> None:
    """Settle the checkpoints that killed processes of a trial left, or some of them."""
    from detcore.checkpoint import recover_checkpoints
    from detcore.delivery import tell_recovered

    completed = recover_checkpoints(database, storage, trial.id, uuids=uuids)
    if trial.trial_dir is not None:
        tell_recovered(
            Path(trial.trial_dir),
            trial_id=trial.id,
            run_id=trial.run_id,
            storage=storage,
            uuids=completed,
        )


def settle_dead_scripts(
    database: Database, environment: Environment, plugins: PluginManager
) -> None:
    """Settle the killed scripts of this machine: their checkpoints, and their state.

    Other scripts may start at the same time and take over settled experiments at once, so those
    that a live process holds are not touched.
    """
    for experiment in database.list_experiments(states=[ExperimentState.RUNNING]):
        if not experiment.config.get("is_standalone"):
            continue
        _settle_if_killed(database, environment, plugins, experiment.id)
    # A script that ended while a checkpoint was being saved has recorded its end itself.
    active: dict[int, set[str]] = {}
    for record in database.list_checkpoints(states=["ACTIVE"]):
        active.setdefault(record.experiment_id, set()).add(record.uuid)
    for experiment_id, uuids in sorted(active.items()):
        experiment = database.get_experiment(experiment_id)
        is_over = experiment.state is not ExperimentState.RUNNING
        is_script = experiment.config.get("is_standalone")
        if is_script and is_over and database.experiment_is_alive(experiment_id) is False:
            _try_settle(database, environment, plugins, experiment, uuids=uuids)


def _settle_if_killed(
    database: Database, environment: Environment, plugins: PluginManager, experiment_id: int
) -> None:
    """Settle the experiment of a script that was killed, unless another process does so now."""
    experiment, is_alive = database.observe_experiment(experiment_id)
    # None: it runs on another machine, and the next script there settles it.
    if is_alive is not False or experiment.state is not ExperimentState.RUNNING:
        return
    if database.adopt_experiment(experiment_id):  # one of those that start now
        error = "the script ended without saying how (killed, or the machine went down)"
        if not _try_settle(database, environment, plugins, experiment, error=error):
            assert experiment.process is not None  # it was adopted from one
            database.disown_experiment(experiment_id, experiment.process)


def _try_settle(
    database: Database,
    environment: Environment,
    plugins: PluginManager,
    experiment: ExperimentRecord,
    *,
    uuids: Collection[str] | None = None,
    error: str | None = None,
) -> bool:
    """Settle a script's checkpoints, or some, and with an error its state; whether that worked."""
    try:
        _settle(database, environment, plugins, experiment, uuids, error)
    except (DetcoreError, OSError) as failure:
        # A storage that is away today must not keep an unrelated script from starting; the
        # records stay as they are, and the next start looks again.
        logging.getLogger("detcore").warning(
            "what experiment %s left behind could not be settled yet: %s", experiment.id, failure
        )
        return False
    return True


def _settle(
    database: Database,
    environment: Environment,
    plugins: PluginManager,
    experiment: ExperimentRecord,
    uuids: Collection[str] | None,
    error: str | None,
) -> None:
    from detcore.database import ingest_spools, restore_secrets
    from detcore.delivery import tell_end_of_killed
    from detcore.storage import open_storage

    ingest_spools(database, environment.home, experiment_id=experiment.id)
    restored = restore_secrets(environment.home, experiment.id, experiment.config)
    spec = restored.config.get("checkpoint_storage")
    with contextlib.closing(open_storage(spec, home=environment.home, plugins=plugins)) as storage:
        for trial in database.list_trials(experiment.id):
            _recover(database, storage, trial, uuids=uuids)
            if error is not None:
                database.set_trial_state(trial.id, ExperimentState.ERROR, error=error)
                if trial.trial_dir is not None:
                    tell_end_of_killed(
                        Path(trial.trial_dir),
                        trial_id=trial.id,
                        run_id=trial.run_id,
                        state=ExperimentState.ERROR.value,
                        error=error,
                    )
    if error is not None:
        database.set_experiment_state(experiment.id, ExperimentState.ERROR, error=error)


def _plain(spec: str | Mapping[str, object]) -> str | dict[str, object]:
    """Return a specification as JSON values; pydantic's secrets hide theirs."""
    if isinstance(spec, str):
        return spec
    return {
        key: value.get_secret_value() if hasattr(value, "get_secret_value") else value
        for key, value in spec.items()
    }


def _folder(environment: Environment, experiment_id: int) -> Path:
    return environment.home / "experiments" / str(experiment_id)
