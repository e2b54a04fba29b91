"""The runner of a script by itself, in a thread of the script's own process.

The script is the one worker of the one trial of its experiment. Everything else is as for the
experiment of a file: the same loop records it, answers its questions, tells observers of it, and
deletes the checkpoints that it does not keep.
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
    """A group of one worker, which is this process; see `WorkerGroup`.

    Args:
        ask_to_stop: Called where a runner sends its workers a signal; from the runner's thread.

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
        """Let go of the script: it outlives its runner, and its log has its reports."""
        self._here.shutdown(socket.SHUT_RDWR)

    def end(self, code: int) -> None:
        """Say that the script has left its context; called by the script's thread."""
        self._code = code
        self._has_ended.set()
        with contextlib.suppress(OSError):  # the runner has let go
            # Forked children may have the socket open, too.
            self._there.shutdown(socket.SHUT_RDWR)

    def close(self) -> int:
        self._has_ended.wait()
        self._here.close()
        self._there.close()
        return self._code


class ScriptLauncher:
    """Hands the trial to the script that waits for it; see `Launcher`.

    Args:
        workers: The group that `start` returns.
        started: Gets the trial.
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
    """Prints the messages of a script's runner to stderr; stdout is the script's own."""

    def __init__(self, records: str) -> None:
        self._records = records
        self._info: TrialInfo | None = None

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        self._info = info
        start = describe_start(info)
        if info.is_complete:
            start = (
                f"completed by an earlier start of this script, restored {start}, not trained again"
            )
        self.notice(
            f"{start}; records in {self._records}; look at it: "
            f"detcore trial describe {info.trial_id}"
        )

    def notice(self, text: str) -> None:
        info = self._info
        prefix = "" if info is None else f"experiment {info.experiment_id}, trial {info.trial_id}: "
        own = "" if info is None else f"trial {info.trial_id}: "
        # A closed terminal, or a reader that has gone, must not end the runner.
        with contextlib.suppress(OSError, ValueError):
            if sys.stderr is not None:
                print(f"{prefix}{text.removeprefix(own)}", file=sys.stderr)


class ScriptRun:
    """A run of a script, and its runner.

    Args:
        settings: The arguments of the script's context.
        preempt: Asked for a stop, from another thread, where a runner sends a signal.
        plugins: Search methods, storages and observers.
        open_storage: Opens the script's storage, once its home is there.

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
        self._script, self._num_workers = _named(settings.script), settings.distributed.size
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
            run = self._choose(stack)
            self._workers = ScriptWorkers(preempt.request)
            self.channel_fd = self._workers.channel_fd
            self._thread = threading.Thread(
                target=self._run, args=(run,), name="detcore-runner", daemon=True
            )
            self._thread.start()
            try:
                found = self._started.get()
            except BaseException:  # the user interrupts it
                self._workers.end(1)
                self._thread.join(_JOIN_S)
                raise
            if isinstance(found, Exception):
                self._workers.end(1)
                self._workers.close()
                raise found
            # As the script gave them: the records hold lists for tuples, and texts for paths.
            self.info = dataclasses.replace(found, hparams=self._script.hparams)
            self._stack = stack.pop_all()

    def _choose(self, stack: contextlib.ExitStack) -> ExperimentRun:
        """Record an experiment, or take over one that an earlier start of the script left."""
        database, environment, script = self._database, self._settings.environment, self._script
        if environment.master is not None:
            logging.getLogger("detcore").warning(
                "this script is recorded in DETCORE_HOME or DETCORE_DB, and not by %s of the "
                "environment: a server records submissions (detcore run --master)",
                environment.master,
            )
        runs = ScriptRuns(database, environment, self._settings.plugins)
        runs.recover_killed_scripts()
        config = _configure(script, self._checkpoint_storage)
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
        call = ScriptCall.find(database)
        recorded = _document(script, config, call)
        found = runs.claim_run(script, recorded, call, stack) if self._resumes else None
        if found is None:
            experiment_id, lock = self._create(recorded, call, stack)
        else:
            experiment_id, lock = found.experiment_id, found.lock
            runs.change_length(experiment_id, recorded)
        lock.close_in_children()
        if call.session is None:
            record_end_at_exit(environment.database_url, call.start)
            # While this process may open further runs, its start is not taken over: it holds the
            # lock of the first one until it ends.
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

    def _create(
        self, recorded: Mapping[str, Any], call: ScriptCall, stack: contextlib.ExitStack
    ) -> tuple[int, RunnerLock]:
        """Record an experiment with one trial; return its id, and its lock, which is held."""
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

    def _run(self, run: ExperimentRun) -> None:
        """Run the experiment to its end; in the runner's thread."""
        try:
            run.run(ScriptLauncher(self._workers, self._started), self.storage)
        except BaseException as error:  # noqa: BLE001  (raised in the script)
            self._failure = error if isinstance(error, Exception) else RunError(repr(error))
            self._started.put(self._failure)
        else:
            self._started.put(RunError("the experiment was asked to end before its script began"))
        finally:
            with contextlib.suppress(OSError):  # it is closed already
                self._workers.kill()

    def end(self, outcome: ScriptOutcome) -> None:
        """Record how the script ended, once everything that it reported is recorded.

        Raises:
            StorageFullError: If the records have no room for it.
            DetcoreError: If it cannot be recorded.
        """
        with self._stack:
            if self._first_lock is not None and outcome.state is ExperimentState.COMPLETED:
                self._first_lock.keep()
            self._workers.end(outcome.exit_code)
            self._thread.join()
            if isinstance(self._failure, DetcoreError):
                self._record(outcome)
            if isinstance(self._failure, StorageFullError):
                raise self._no_room(outcome, self._failure) from self._failure
            if self._failure is not None:
                raise self._failure
            self._announce_end(outcome)

    def _record(self, outcome: ScriptOutcome) -> None:
        """Record the end of a script whose runner has failed, as far as that is possible."""
        with contextlib.suppress(DetcoreError):
            state, error = outcome.state, outcome.error
            self._database.set_trial_state(self.info.trial_id, state, error=error)
            self._database.set_experiment_state(self.info.experiment_id, state, error=error)

    def _no_room(self, outcome: ScriptOutcome, full: StorageFullError) -> StorageFullError:
        how = f"{outcome.label}: {outcome.error}" if outcome.error else outcome.label
        return StorageFullError(
            f"no room in {self._database.url} to record how trial {self.info.trial_id} ended "
            f"({how}).\n"
            f"Its reports are kept in {self.info.trial_dir}, its checkpoints in "
            f"{self.storage.url}.\n"
            "Free some space. The next detcore command takes the reports in, and the next "
            "script that calls core.init() settles the trial.",
            missing_bytes=full.missing_bytes,
        )

    def _announce_end(self, outcome: ScriptOutcome) -> None:
        record = self._database.get_experiment(self.info.experiment_id)
        text = record.state.value.lower()
        if record.error:
            text += f": {record.error}"
        if record.state is ExperimentState.PAUSED:
            found = self._database.latest_checkpoint(self.info.trial_id)
            begin = "its latest checkpoint" if found else "the start: it has no checkpoint"
            how = "core.init(resume=True) resumes it"
            if self._resumes:
                how = "start the script again: it resumes"
            text += f"; {how} from {begin}"
        self._settings.listener.notice(text)


def _keep_lock(lock: RunnerLock) -> None:
    """Hold a lock until this process ends, unless it is held already."""
    if lock.acquire():
        lock.keep()
        lock.close_in_children()
    lock.close()


def _named(script: ScriptExperiment) -> ScriptExperiment:
    """Return a script's experiment with its name and its folder."""
    file = script_file()
    name = script.name or (file.name if file is not None else "interactive")
    folder = script.model_dir or (file.parent if file is not None else Path.cwd())
    return dataclasses.replace(script, name=name, model_dir=folder)


def _configure(
    script: ScriptExperiment, storage: str | Mapping[str, object] | None
) -> ExperimentConfig:
    """Return the configuration of a script's experiment.

    Raises:
        ConfigError: If the script's own configuration has fields that an experiment file has not.
    """
    given = copy.deepcopy(dict(script.config))
    searcher = dict(given.get("searcher") or {})
    if searcher.get("name", "single") != "single":
        raise ConfigError(
            f"searcher.name is {searcher['name']!r}, but a script by itself trains one trial.\n"
            "Set it to 'single', or search with the script as the entrypoint of an experiment "
            "file: detcore run CONFIG.yaml"
        )
    given |= {
        "name": script.name,
        # Not the URL of the default, which changes when the home is moved.
        "checkpoint_storage": None if storage is None else _plain(storage),
        "searcher": {"name": "single", "metric": "-", "max_length": 1, **searcher},
        "reproducibility": {
            "step_digests": 1,
            **(given.get("reproducibility") or {}),
            "experiment_seed": script.seed,
        },
        # A script cannot be started again from within.
        "max_restarts": 0,
        "hang_timeout_s": None,
    }
    try:
        config = ExperimentConfig.model_validate(given, context={RULES_LATER: True})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"the configuration of the script cannot be used: {place}: {first['msg']}\n"
            "It has the fields of an experiment file; settings of your own belong into 'data'."
        ) from error
    # A script need not say how far it trains, nor what counts.
    missing = {name: value for name, value in _NOT_SAID.items() if name not in searcher}
    return config.model_copy(update={"searcher": config.searcher.model_copy(update=missing)})


_NOT_SAID = {"metric": "", "max_length": None}


def _document(
    script: ScriptExperiment, config: ExperimentConfig, call: ScriptCall
) -> dict[str, Any]:
    """Return the configuration as it is recorded, with what tells the runs of a script apart."""
    document = config.model_dump(mode="json")
    document |= {"is_standalone": True, "script_start": call.record}
    if script.arguments:
        document["script_arguments"] = dict(script.arguments)
    return document


def _has_retention(storage: str | Mapping[str, object] | None, config: ExperimentConfig) -> bool:
    """Whether a script says which of its checkpoints are kept; else all are."""
    if not isinstance(storage, Mapping) or not any(name in storage for name in _RETENTION):
        return False
    # Without a metric none is the best.
    return bool(config.searcher.metric) or "save_trial_latest" in storage


def _plain(spec: str | Mapping[str, object]) -> str | dict[str, object]:
    """Return a specification as JSON values; pydantic's secrets hide theirs."""
    if isinstance(spec, str):
        return spec
    return {
        key: value.get_secret_value() if hasattr(value, "get_secret_value") else value
        for key, value in spec.items()
    }
