"""Records of a script that runs by itself, without a runner."""

from __future__ import annotations

import copy
import dataclasses
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore._log.events import CheckpointDamaged
from detcore.contract.errors import StorageFullError
from detcore.contract.values import ExperimentState, TrialInfo, TrialState, Unit
from detcore.core._channel import Channel
from detcore.core._modes import script_file
from detcore.core._opening import Opening
from detcore.core._resume import InterruptedScripts
from detcore.core._script_calls import ScriptCall, record_end_at_exit

if TYPE_CHECKING:
    from detcore.core._modes import ScriptExperiment
    from detcore.core._records import TrialRecords
    from detcore.database import CheckpointRecord, Database, TrialRecord
    from detcore.hooks.delivery import Delivery
    from detcore.storage import StorageBackend


_FLUSH_TIMEOUT_S = 60.0


class ScriptOpening(Opening):
    """Opens the context of a script by itself, which is its own runner.

    It records the experiment, moves the script's log into the records, notifies observers, answers
    questions, and records the end.
    """

    _info: TrialInfo
    _database: Database
    _channel: Channel
    _storage_url = ""
    _delivery: Delivery | None = None

    def _identify(self) -> tuple[TrialInfo, StorageBackend, Channel]:
        """Record an experiment with one trial, or resume one that was interrupted."""
        from detcore.database import Database
        from detcore.describe import describe_start

        environment = self._environment
        self._database = self._stack.enter_context(Database.open(environment.database_url))
        storage = self._open_storage(None)
        storage.probe()
        if environment.master is not None:
            logging.getLogger("detcore").warning(
                "this script is recorded in DETCORE_HOME or DETCORE_DB, and not by %s of the "
                "environment: a server records submissions (detcore run --master)",
                environment.master,
            )
        interrupted = InterruptedScripts(self._database, environment, self._plugins)
        interrupted.settle()
        info = self._info = self._record(storage, interrupted)
        self._storage_url = storage.url
        if self._plugins.observers():
            from detcore.hooks.delivery import write_run

            write_run(info)
        start = describe_start(info)
        if info.is_complete:
            start = (
                f"completed by an earlier start of this script, restored {start}, not trained again"
            )
        _say(
            info,
            f"{start}; records in {self._database.url}; look at it: "
            f"detcore trial describe {info.trial_id}",
        )
        self._channel = Channel(None, answerer=self._answer)
        return info, storage, self._channel

    def _record(self, storage: StorageBackend, interrupted: InterruptedScripts) -> TrialInfo:
        from detcore.core._source import find_source

        database, script, spec = (
            self._database, self._settings.script, self._settings.checkpoint_storage,
        )  # fmt: skip
        source = find_source(
            script.settings,
            database=database,
            storage=storage,
            environment=self._environment,
            plugins=self._plugins,
        )
        call = ScriptCall.find(database)
        file = script_file()
        name = script.name or (file.name if file is not None else "interactive")
        model_dir = script.model_dir or (file.parent if file is not None else Path.cwd())
        config: dict[str, Any] = {
            **copy.deepcopy(dict(script.config)),
            "name": name,
            "is_standalone": True,
            # Not the URL of the default, which changes when the home is moved.
            "checkpoint_storage": None if spec is None else _plain(spec),
            "script_start": call.record,
        }
        if source is not None:
            config["searcher"] |= source.pinned
        script = dataclasses.replace(script, config=config, name=name, model_dir=model_dir)
        trial = None
        if self._settings.resume:
            trial = interrupted.claim(script, call)
        if trial is None:
            trial = self._create(script)
        if call.session is None:
            record_end_at_exit(self._environment.database_url)
        latest = self._settled(storage, trial)
        steps_completed = latest.steps_completed if latest else 0
        is_complete = self._open_complete(trial, config, steps_completed if latest else None)
        observers = [each.entry.name for each in self._plugins.observers()]
        run_id = database.start_run(trial.id, observers=observers)
        if is_complete:
            database.set_trial_state(trial.id, TrialState.COMPLETED)
        return TrialInfo(
            experiment_id=trial.experiment_id,
            trial_id=trial.id,
            run_id=run_id,
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
            best_validation=database.best_until(trial.id, script.settings, steps_completed),
            is_complete=is_complete,
            settings=script.settings,
        )

    def _open_complete(
        self, trial: TrialRecord, config: Mapping[str, Any], steps_completed: int | None
    ) -> bool:
        """Return whether a run that was taken over is complete and stays so.

        A complete run is trained further if it lacks a checkpoint of its last step, or if the
        script has another length now.

        Args:
            trial: Its trial.
            config: The present configuration.
            steps_completed: Steps of its latest checkpoint; None without one.
        """
        database, number = self._database, trial.experiment_id
        record = database.get_experiment(number)
        before, now = (
            (each.get("searcher") or {}).get("max_length") for each in (record.config, config)
        )
        if before != now:
            searcher = {**(record.config.get("searcher") or {}), "max_length": now}
            database.change_config(
                number,
                config={**record.config, "searcher": searcher},
                changes={"searcher.max_length": [before, now]},
            )
        if record.state is not ExperimentState.COMPLETED:
            return False
        summaries = database.summarize_trials(number, metric=None, trial_ids=[trial.id])
        has_end = (
            steps_completed is not None and steps_completed >= summaries[trial.id].steps_completed
        )
        if has_end and before == now:
            return True
        database.claim_experiment(number, states=[ExperimentState.COMPLETED])
        return False

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
        from detcore.checkpoint import find_whole_checkpoint
        from detcore.core._source import recover_trial
        from detcore.database import ingest_event_logs

        Path(str(trial.trial_dir)).mkdir(parents=True, exist_ok=True)
        if trial.current_run is None:
            return None
        ingest_event_logs(self._database, self._environment.home, trial_id=trial.id)
        recover_trial(self._database, storage, trial)
        return find_whole_checkpoint(self._database, storage, trial.id)

    def _follow(self, log: Path) -> None:
        """Start to move the log into the records, and to notify observers."""
        from detcore.database import LogFollower

        follower = LogFollower(self._database)
        self._stack.callback(follower.close, _FLUSH_TIMEOUT_S)
        follower.follow(log)
        observers = self._plugins.observers()
        if observers:
            from detcore.hooks.delivery import Delivery

            self._delivery = Delivery(
                self._database,
                self._environment.home,
                observers,
                experiment_id=self._info.experiment_id,
            )

    def _answer(self, question: str, fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Answer a question about the records, as a runner does."""
        from detcore.database import answer_question

        return answer_question(
            self._database, self._environment.home, self._info.trial_id, question, fields
        )

    def _report_damage(
        self, records: TrialRecords | None, channel: Channel, uuid: str, error: str
    ) -> None:
        """Record that the next start resumes from the checkpoint before."""
        if records is not None:
            records.record_checkpoint(CheckpointDamaged(uuid=uuid))
            _say(
                self._info,
                f"checkpoint {uuid} is recorded as damaged. Start the script again: it resumes "
                "from the one before",
            )

    def _settle_own_storage(self, records: TrialRecords, storage: StorageBackend) -> None:
        """Do nothing: earlier runs are settled before the trial is made."""

    def _finish(self, records: TrialRecords) -> None:
        """Record how the script ended; its reports are in the records then.

        Raises:
            StorageFullError: If the database has no room for it.
        """
        info, outcome = self._info, self.outcome
        database = self._database.waiting(logging.getLogger("detcore").warning)
        try:
            if not info.is_complete:  # else it stays so, also if its code fails now
                error = outcome.record
                database.set_trial_state(info.trial_id, outcome.state, error=error)
                database.set_experiment_state(info.experiment_id, outcome.state, error=error)
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
        super()._finish(records)
        self._announce_end()

    def _announce_end(self) -> None:
        """Deliver the remaining events to observers, and say how the script ended."""
        outcome, left = self.outcome, {}
        if self._delivery is not None:
            left = self._delivery.close(self._delivery_wait_s())
        if left:
            logging.getLogger("detcore.plugins").warning(
                "trial %d: not everything was delivered to %s; it is kept in %s and delivered "
                "later (detcore plugins deliver)",
                self._info.trial_id, ", ".join(sorted(left)), self._info.trial_dir,
            )  # fmt: skip
        text = outcome.state.value.lower()
        if outcome.record:
            text += f": {outcome.record}"
        if outcome.state is ExperimentState.PAUSED:
            found = self._database.latest_checkpoint(self._info.trial_id)
            start = "its latest checkpoint" if found else "the start: it has no checkpoint"
            how = "core.init(resume=True) resumes it"
            if self._settings.resume:
                how = "start the script again: it resumes"
            text += f"; {how} from {start}"
        elif outcome.state is ExperimentState.COMPLETED:
            text += self._describe_early_end()
        _say(self._info, text)

    def _describe_early_end(self) -> str:
        """Return how far a script came that ended before its length in batches, or ""."""
        length = self._info.settings.max_length
        if length is None or length.unit is not Unit.BATCHES:
            return ""
        summaries = self._database.summarize_trials(
            self._info.experiment_id, metric=None, trial_ids=[self._info.trial_id]
        )
        steps = summaries[self._info.trial_id].steps_completed
        has_completed = self._channel.has_sent("searcher_completed")
        if has_completed or not 0 < steps < length.count:
            return ""
        return f" at batch {steps} of {length.count}: the script ended before max_length"

    def _delivery_wait_s(self) -> float:
        """Return how long the end waits for observers; less if the process is soon killed."""
        left_s, wait_s = self._preempt.seconds_left, self._environment.delivery_wait_s
        return wait_s if left_s is None else min(wait_s, left_s / 2)


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
