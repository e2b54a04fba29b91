"""The runner of a standalone script, in a thread of the script's process.

The script is the only worker of its experiment's only trial. The same loop as for experiment files
records the trial, answers its queries, notifies observers, and deletes checkpoints that are not
kept.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from detcore.config import RULES_LATER, ExperimentConfig
from detcore.contract.errors import ConfigError, DetcoreError, RunError, StorageFullError
from detcore.contract.values import ExperimentState, TrialInfo
from detcore.core import ScriptExperiment, script_file
from detcore.launch.local_launcher import ChannelEnd
from detcore.record_descriptions import describe_start
from detcore.records import Database, TrialDraft, save_secrets
from detcore.run.checkpoint_source import find_source
from detcore.run.experiment_control import create_locked_experiment
from detcore.run.experiment_run import ExperimentRun, ScriptTrial
from detcore.run.run_listener import RunListener, RunSettings
from detcore.run.script_runs import ScriptCall, ScriptRuns, record_end_at_exit
from detcore.run.trial_start import get_trials_dir

if TYPE_CHECKING:
    from detcore.contract.launch import WorkerEvent
    from detcore.core.context_opening import ContextSettings
    from detcore.core.preempt_context import PreemptContext
    from detcore.core.trial_outcome import ScriptOutcome
    from detcore.launch import OutputSink
    from detcore.plugins import PluginManager
    from detcore.records import RunnerLock
    from detcore.storage import StorageBackend


_JOIN_S = 5.0
_RETENTION = ("save_experiment_best", "save_trial_best", "save_trial_latest")


class ScriptWorkers:
    """A worker group whose only worker is this process; see `WorkerGroup`.

    Args:
        ask_to_stop: Called from the runner's thread instead of sending a signal.

    Attributes:
        channel_fd: The worker's end of its channel.
    """

    first_failed = None

    def __init__(self, ask_to_stop: Callable[[], None]) -> None:
        self._ask_to_stop = ask_to_stop
        self._here, self._there = socket.socketpair()
        self._channel = ChannelEnd(self._here)
        self._code = 0
        self._has_ended = threading.Event()
        self.channel_fd = self._there.fileno()
        self.pid = os.getpid()
        self.pids = [self.pid]

    @property
    def is_alive(self) -> bool:
        return self._channel.is_open

    def fileno(self) -> int:
        return self._channel.fileno()

    def poll(self) -> list[WorkerEvent]:
        return self._channel.read()

    def reply(self, **fields: Any) -> None:
        self._channel.reply(**fields)

    def signal(self, number: int = 0) -> None:
        self._ask_to_stop()

    def kill(self) -> None:
        """Disconnect from the script, which outlives its runner and has its reports in its log."""
        self._here.shutdown(socket.SHUT_RDWR)

    def end_script(self, code: int) -> None:
        """Report that the script has left its context. Called from the script's thread."""
        self._code = code
        self._has_ended.set()
        with contextlib.suppress(OSError):  # the runner has disconnected
            # Forked child processes may also have the socket open.
            self._there.shutdown(socket.SHUT_RDWR)

    def close(self) -> int:
        self._has_ended.wait()
        self._here.close()
        self._there.close()
        return self._code


class ScriptLauncher:
    """Passes the trial to the waiting script; see `Launcher`.

    Args:
        workers: The worker group that `start` returns.
        started: Receives the trial.
    """

    def __init__(self, workers: ScriptWorkers, started: queue.Queue[TrialInfo | Exception]) -> None:
        self._workers = workers
        self._started = started

    def start(self, info: TrialInfo, *, on_output: OutputSink, **settings: object) -> ScriptWorkers:
        self._started.put(info)
        return self._workers

    def close(self) -> None:
        return


class _ScriptListener(RunListener):
    """Prints the messages of a script's runner to stderr, because stdout belongs to the script."""

    def __init__(self, records: str) -> None:
        self._records = records
        self._info: TrialInfo | None = None

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        self._info = info
        start = describe_start(info)
        if info.is_complete:
            start = (
                f"completed by an earlier start of this script; restored {start}, not trained again"
            )
        self.notice(
            f"{start}; records in {self._records}; show the trial with: "
            f"detcore trial describe {info.trial_id}"
        )

    def notice(self, text: str) -> None:
        info = self._info
        prefix = "" if info is None else f"experiment {info.experiment_id}, trial {info.trial_id}: "
        own_prefix = "" if info is None else f"trial {info.trial_id}: "
        # A closed terminal or pipe must not end the runner.
        with contextlib.suppress(OSError, ValueError):
            if sys.stderr is not None:
                print(f"{prefix}{text.removeprefix(own_prefix)}", file=sys.stderr)


class ScriptRun:
    """A run of a standalone script, with its runner.

    Args:
        settings: The arguments of the script's context.
        preempt: Receives stop requests, from another thread, instead of signals.
        plugins: Provide search methods, storages and observers.
        open_storage: Opens the script's storage, after its home directory was created.

    Attributes:
        info: The trial.
        storage: The script's storage.
        channel_fd: The script's end of the channel to the runner.
    """

    info: TrialInfo

    def __init__(
        self,
        settings: ContextSettings,
        preempt: PreemptContext,
        *,
        plugins: PluginManager,
        open_storage: Callable[[], StorageBackend],
    ) -> None:
        self._script, self._num_workers = (
            _complete_description(settings.script),
            settings.distributed.size,
        )
        self._checkpoint_storage = settings.checkpoint_storage
        self._resumes = settings.resume
        self._stack = contextlib.ExitStack()
        self._first_lock: RunnerLock | None = None
        self._started: queue.Queue[TrialInfo | Exception] = queue.Queue()
        self._failure: Exception | None = None
        with contextlib.ExitStack() as stack:
            database = stack.enter_context(Database.open(settings.environment.database_url))
            self._database = database
            self.storage = open_storage()
            self._settings = RunSettings(
                environment=settings.environment,
                plugins=plugins,
                listener=_ScriptListener(database.url),
                seconds_left=lambda: preempt.seconds_left,
            )
            run = self._choose_run(stack)
            self._workers = ScriptWorkers(preempt.request)
            self.channel_fd = self._workers.channel_fd
            self._thread = threading.Thread(
                target=self._run_experiment, args=(run,), name="detcore-runner", daemon=True
            )
            self._thread.start()
            try:
                started = self._started.get()
            except BaseException:  # the user interrupts it
                self._workers.end_script(1)
                self._thread.join(_JOIN_S)
                raise
            if isinstance(started, Exception):
                self._workers.end_script(1)
                self._workers.close()
                raise started
            # The script's original values: the records convert tuples to lists, paths to strings.
            self.info = dataclasses.replace(started, hparams=self._script.hparams)
            self._stack = stack.pop_all()

    def _choose_run(self, stack: contextlib.ExitStack) -> ExperimentRun:
        """Record a new experiment, or claim an unfinished experiment of an earlier start."""
        database, environment, script = self._database, self._settings.environment, self._script
        if environment.master is not None:
            logging.getLogger("detcore").warning(
                "this script is recorded in DETCORE_HOME or DETCORE_DB, not on the server %s: a "
                "server only records submitted experiments (detcore run --master)",
                environment.master,
            )
        runs = ScriptRuns(database, environment, self._settings.plugins)
        runs.recover_killed_scripts()
        config = _build_config(script, self._checkpoint_storage)
        source = find_source(
            config.trial_settings(),
            database=database,
            storage=self.storage,
            environment=environment,
            plugins=self._settings.plugins,
        )
        if source is not None:
            searcher = config.searcher.model_copy(update=source.searcher_fields)
            config = config.model_copy(update={"searcher": searcher})
        call = ScriptCall.find_current(database)
        recorded = _build_document(script, config, call)
        claimed_run = runs.claim_run(script, recorded, call, stack) if self._resumes else None
        if claimed_run is None:
            experiment_id, lock = self._create_experiment(recorded, call, stack)
        else:
            experiment_id, lock = claimed_run.experiment_id, claimed_run.lock
            runs.change_length(experiment_id, recorded)
        lock.close_in_children()
        if call.session is None:
            record_end_at_exit(environment.database_url, call.start)
            # This process holds the lock of its first run until it ends, so that no other process
            # claims its start while it may open further runs.
            if call.first is None:
                self._first_lock = lock
            else:
                _keep_lock(database.open_lock(call.first, environment.home))
        return ExperimentRun(
            database,
            self._settings,
            experiment_id,
            lock,
            config=config,
            model_dir=Path(str(script.model_dir)),
            test_mode=script.test_mode,
            script=ScriptTrial(
                self._num_workers,
                keeps_all=not _has_retention(self._checkpoint_storage, config),
            ),
        )

    def _create_experiment(
        self, recorded: Mapping[str, Any], call: ScriptCall, stack: contextlib.ExitStack
    ) -> tuple[int, RunnerLock]:
        """Record an experiment with one trial; return its id and its held lock."""
        database, environment, script = self._database, self._settings.environment, self._script
        experiment_id, lock = stack.enter_context(
            create_locked_experiment(
                database,
                environment,
                config=recorded,
                config_text=None,
                model_dir=str(script.model_dir),
                name=str(script.name),
                script_start=call.start,
            )
        )
        save_secrets(environment.home, experiment_id, recorded)
        database.add_search_event(
            experiment_id,
            number=0,
            event=None,
            created=[TrialDraft(search_index=0, hparams=script.hparams, seed=script.seed)],
            folder=get_trials_dir(environment, experiment_id),
        )
        return experiment_id, lock

    def _run_experiment(self, run: ExperimentRun) -> None:
        """Run the experiment to its end, in the runner's thread."""
        try:
            run.run(ScriptLauncher(self._workers, self._started), self.storage)
        except BaseException as error:  # noqa: BLE001  (raised in the script)
            self._failure = error if isinstance(error, Exception) else RunError(repr(error))
            self._started.put(self._failure)
        else:
            self._started.put(
                RunError("the experiment was requested to end before its script started")
            )
        finally:
            with contextlib.suppress(OSError):  # the socket is already closed
                self._workers.kill()

    def record_end(self, outcome: ScriptOutcome) -> None:
        """Record the outcome of the script, after all of its reports.

        Raises:
            StorageFullError: If the disk is full.
            DetcoreError: If the outcome cannot be recorded.
        """
        with self._stack:
            if self._first_lock is not None and outcome.state is ExperimentState.COMPLETED:
                self._first_lock.keep()
            self._workers.end_script(outcome.exit_code)
            self._thread.join()
            if isinstance(self._failure, DetcoreError):
                self._record_outcome(outcome)
            if isinstance(self._failure, StorageFullError):
                raise self._create_full_error(outcome, self._failure) from self._failure
            if self._failure is not None:
                raise self._failure
            self._announce_end(outcome)

    def _record_outcome(self, outcome: ScriptOutcome) -> None:
        """Record the outcome of a script whose runner has failed, if possible."""
        with contextlib.suppress(DetcoreError):
            state, error = outcome.state, outcome.error
            self._database.set_trial_state(self.info.trial_id, state, error=error)
            self._database.set_experiment_state(self.info.experiment_id, state, error=error)

    def _create_full_error(
        self, outcome: ScriptOutcome, full: StorageFullError
    ) -> StorageFullError:
        how = f"{outcome.label}: {outcome.error}" if outcome.error else outcome.label
        return StorageFullError(
            f"no space left in {self._database.url} to record the end of trial "
            f"{self.info.trial_id} ({how}).\n"
            f"Its reports are kept in {self.info.trial_dir}, its checkpoints in "
            f"{self.storage.url}.\n"
            "Free some space. The next detcore command ingests the reports, and the next script "
            "that calls core.init() records the end of the trial.",
            missing_bytes=full.missing_bytes,
        )

    def _announce_end(self, outcome: ScriptOutcome) -> None:
        record = self._database.get_experiment(self.info.experiment_id)
        text = record.state.value.lower()
        if record.error:
            text += f": {record.error}"
        if record.state is ExperimentState.PAUSED:
            checkpoint = self._database.latest_checkpoint(self.info.trial_id)
            origin = "its latest checkpoint" if checkpoint else "the start: it has no checkpoint"
            advice = "core.init(resume=True) resumes it"
            if self._resumes:
                advice = "start the script again: it resumes"
            text += f"; {advice} from {origin}"
        self._settings.listener.notice(text)


def _keep_lock(lock: RunnerLock) -> None:
    """Hold a lock until this process ends, unless another process holds it."""
    if lock.acquire():
        lock.keep()
        lock.close_in_children()
    lock.close()


def _complete_description(script: ScriptExperiment) -> ScriptExperiment:
    """Return a script's experiment with its name and its directory filled in."""
    file = script_file()
    name = script.name or (file.name if file is not None else "interactive")
    folder = script.model_dir or (file.parent if file is not None else Path.cwd())
    return dataclasses.replace(script, name=name, model_dir=folder)


def _build_config(
    script: ScriptExperiment, storage: str | Mapping[str, object] | None
) -> ExperimentConfig:
    """Return the configuration of a script's experiment.

    Raises:
        ConfigError: If the script's configuration has fields that an experiment file does not have.
    """
    fields = copy.deepcopy(dict(script.config))
    searcher = dict(fields.get("searcher") or {})
    if searcher.get("name", "single") != "single":
        raise ConfigError(
            f"searcher.name is {searcher['name']!r}, but a standalone script trains one trial.\n"
            "Set it to 'single', or search with the script as the entrypoint of an experiment "
            "file:  detcore run CONFIG.yaml"
        )
    fields |= {
        "name": script.name,
        # The default is not recorded as a URL, which would change when the home is moved.
        "checkpoint_storage": None if storage is None else _reveal_secrets(storage),
        "searcher": {"name": "single", "metric": "-", "max_length": 1, **searcher},
        "reproducibility": {
            "step_digests": 1,
            **(fields.get("reproducibility") or {}),
            "experiment_seed": script.seed,
        },
        # The runner cannot start the script again.
        "max_restarts": 0,
        "hang_timeout_s": None,
    }
    try:
        config = ExperimentConfig.model_validate(fields, context={RULES_LATER: True})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"invalid configuration of the script: {location}: {first['msg']}\n"
            "Use the fields of an experiment file, and 'data' for custom settings."
        ) from error
    # The length and the metric are optional for scripts.
    missing = {
        name: value for name, value in _UNSET_SEARCHER_FIELDS.items() if name not in searcher
    }
    return config.model_copy(update={"searcher": config.searcher.model_copy(update=missing)})


_UNSET_SEARCHER_FIELDS = {"metric": "", "max_length": None}


def _build_document(
    script: ScriptExperiment, config: ExperimentConfig, call: ScriptCall
) -> dict[str, Any]:
    """Return the configuration to record, with the fields that identify a script's runs."""
    document = config.model_dump(mode="json")
    document |= {"is_standalone": True, "script_start": call.record}
    if script.arguments:
        document["script_arguments"] = dict(script.arguments)
    return document


def _has_retention(storage: str | Mapping[str, object] | None, config: ExperimentConfig) -> bool:
    """Whether a script sets a retention policy. Otherwise all checkpoints are kept."""
    if not isinstance(storage, Mapping) or not any(name in storage for name in _RETENTION):
        return False
    # Without a metric, no checkpoint is the best.
    return bool(config.searcher.metric) or "save_trial_latest" in storage


def _reveal_secrets(spec: str | Mapping[str, object]) -> str | dict[str, object]:
    """Return a specification as JSON values, including the values of pydantic secrets."""
    if isinstance(spec, str):
        return spec
    return {
        key: value.get_secret_value() if hasattr(value, "get_secret_value") else value
        for key, value in spec.items()
    }
