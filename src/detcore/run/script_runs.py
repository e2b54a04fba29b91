"""The runs of a standalone script, and which run a call of `core.init` continues.

Resuming works per start of a script: if a start did not finish, the n-th call of the next start
continues the n-th run. The runs that a process has opened are derived from the records.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from detcore.contract.errors import DetcoreError, RunError
from detcore.contract.values import ExperimentState
from detcore.records import Database, hide_secrets
from detcore.run.experiment_control import hold_experiment_lock, recover_killed_script

if TYPE_CHECKING:
    from detcore.core import ScriptExperiment
    from detcore.environment import Environment
    from detcore.plugins import PluginManager
    from detcore.records import ExperimentRecord, RunnerLock, TrialRecord


_POLL_INTERVAL_S = 0.05
# Maximum wait for another script to recover a killed run; slow storages take longer.
_RECOVERY_TIMEOUT_S = 60.0
_ARGUMENTS = "script_arguments"
_START = "script_start"
# Fields that may differ between two starts of the same script.
_VARIABLE_FIELDS = (_START, "name")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCall:
    """One call of `core.init` in a start of a script.

    Attributes:
        number: Number of the call in the start, from 1.
        first: Experiment of the start's first call; None in the first call.
        start: Identifies the calling process.
        session: Process in which runs have no fixed order and calls have no numbers: an interactive
            session, or the parent of a child process (multiprocessing, fork). None in the process
            of a script.
    """

    number: int = 1
    first: int | None = None
    start: str
    session: str | None = None

    @classmethod
    def find_current(cls, database: Database) -> ScriptCall:
        """Return the present call of the calling process."""
        start, session = _identify_process(os.getpid()), _find_session_pid()
        if session is not None:
            return cls(start=start, session=_identify_process(session))
        runs = database.list_script_runs(start=start)
        if not runs:
            return cls(start=start)
        first = runs[0].config[_START].get("first") or runs[0].id
        return cls(start=start, number=runs[-1].script_call + 1, first=first)

    @property
    def record(self) -> dict[str, Any]:
        """The call as recorded in the experiment's configuration, under ``script_start``."""
        return (
            {"session": self.session}
            if self.session
            else {"call": self.number, "first": self.first}
        )


def record_end_at_exit(database_url: str, start: str) -> None:
    """Record the end of this process's script when Python exits.

    A start is finished if all of its runs are complete and Python exits without an uncaught
    exception. The exit code is not known at that moment.
    """
    atexit.unregister(_record_end)
    atexit.register(_record_end, database_url, start)


def _record_end(database_url: str, start: str) -> None:
    # Python sets this attribute for an exception that ends the script.
    if _identify_process(os.getpid()) != start or getattr(sys, "last_value", None) is not None:
        return
    try:
        with Database.open(database_url) as database:
            database.finish_script(start)
    except (DetcoreError, OSError) as error:
        logging.getLogger("detcore").warning(
            "the end of this script could not be recorded, so its next start restores the "
            "completed runs instead of training them again: %s",
            error,
        )


def _find_session_pid() -> int | None:
    """Return the process id of the session to which this process belongs; None in a script."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        return parent.pid
    if hasattr(sys, "ps1"):
        return os.getpid()
    is_forked = _read_command(os.getppid()) == _read_command(os.getpid()) is not None
    return os.getppid() if is_forked else None


def _read_command(pid: int) -> bytes | None:
    """Return the command line of a process; None if the system does not provide it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() or None
    except OSError:
        return None


def _identify_process(pid: int) -> str:
    """Return a string that identifies a process uniquely across machines."""
    boot = stat = ""
    with contextlib.suppress(OSError):  # not Linux
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        boot += f" {os.readlink('/proc/self/ns/pid')}"
        # The second field is the program's name in parentheses, which may contain any character.
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        stat = text.rpartition(")")[2].split()[19]  # start time
    return f"{socket.gethostname()} {pid} {stat} {boot}"


class ClaimedRun(NamedTuple):
    """A run that a script continues and whose lock this process holds."""

    experiment_id: int
    lock: RunnerLock


class ScriptRuns:
    """The recorded runs of standalone scripts.

    Args:
        database: The records.
        environment: Its home directory contains the trials' directories.
        plugins: Provide their storages.
    """

    def __init__(
        self, database: Database, environment: Environment, plugins: PluginManager
    ) -> None:
        self._database = database
        self._environment = environment
        self._plugins = plugins

    def recover_killed_scripts(self) -> None:
        """Recover the records of local scripts that were killed or ended while saving."""
        database = self._database
        running = database.list_experiments(states=[ExperimentState.RUNNING])
        saving = database.list_checkpoints(states=["ACTIVE"])
        for number in sorted(
            {record.id for record in running} | {record.experiment_id for record in saving}
        ):
            start = database.get_experiment(number).script_start or ""
            # Scripts of another machine are recovered there.
            is_here = start.startswith(f"{socket.gethostname()} ")
            if not is_here or database.is_experiment_alive(number):
                continue
            try:
                recover_killed_script(
                    number,
                    database=database,
                    environment=self._environment,
                    plugins=self._plugins,
                )
            except RunError:
                continue  # another script was faster
            except (DetcoreError, OSError) as failure:
                # An unreachable storage must not prevent an unrelated script from starting. The
                # next start tries again.
                logging.getLogger("detcore").warning(
                    "experiment %s could not be recovered yet: %s", number, failure
                )

    def claim_run(
        self,
        script: ScriptExperiment,
        config: Mapping[str, Any],
        call: ScriptCall,
        stack: contextlib.ExitStack,
    ) -> ClaimedRun | None:
        """Claim the run that a call of the script continues.

        The first call of a start continues the newest start whose first call had the same settings,
        unless that start finished. The settings are: name, directory, configuration (with the
        storage), hyperparameters and seed. The length may differ, so that an interrupted script can
        be trained longer. Starts in progress are skipped, and processes that start concurrently
        claim different starts. The n-th call continues the n-th run of that start.

        ``script_arguments`` in the configuration are arguments of a library that the script did not
        declare as hyperparameters. If an unfinished start differs only in these, an error lets the
        user decide whether to continue it.

        Args:
            script: The experiment to record, with its name and directory.
            config: Its configuration, as it would be recorded.
            call: The call.
            stack: Holds the lock of the run.

        Returns:
            The run, which may be complete. None if a new run starts: for the first run, or if the
            last run was canceled or had hyperparameters that the script rejected.

        Raises:
            RunError: If the run to continue has different settings, or is ambiguous.
        """
        identity = _describe_identity(script, config)
        if call.first is not None:
            first = self._database.get_experiment(call.first)
            return self._take_over_later_run(identity, first, call, stack)
        runs = self._list_runs(str(script.name))
        matches = [run for run in runs if _describe_recorded(*run) == identity]
        for experiment, lock in self._find_unfinished(matches, call, stack):
            _refuse_ambiguous(experiment, matches)
            if self._claim_run(experiment, call):
                return ClaimedRun(experiment.id, lock)
        if not call.session:
            self._refuse_other_order(matches)
            if not matches:
                self._refuse_other_arguments(runs, identity, call)
        return None

    def change_length(self, experiment_id: int, config: Mapping[str, Any]) -> None:
        """Record the length of a continued run; a new length restarts its search.

        Args:
            experiment_id: The run.
            config: The present configuration.
        """
        database = self._database
        record = database.get_experiment(experiment_id)
        former = record.config.get("searcher") or {}
        before, now = former.get("max_length"), config["searcher"]["max_length"]
        if before == now:
            return
        # The search is restarted first: if this process is killed in between, the next start of the
        # script repeats it.
        database.restart_search(experiment_id)
        searcher = {**former, "max_length": now}
        database.change_config(
            experiment_id,
            config={**record.config, "searcher": searcher},
            changes={"searcher.max_length": [before, now]},
        )

    def _find_unfinished(
        self,
        matches: list[tuple[ExperimentRecord, TrialRecord]],
        call: ScriptCall,
        stack: contextlib.ExitStack,
    ) -> Iterator[tuple[ExperimentRecord, RunnerLock]]:
        """Yield the first runs of unfinished starts, until a start that must not be continued.

        This process holds the lock of a run until the next run is yielded. The lock of the last run
        is held on the stack.
        """
        for experiment, _ in matches:
            if experiment.script_call != 1:
                continue
            with contextlib.ExitStack() as lock_stack:
                lock = self._try_lock(experiment, lock_stack)
                if lock is None:
                    continue
                # Read again, after its last process has released the lock.
                experiment = self._database.get_experiment(experiment.id)
                is_over = call.session or experiment.script_start is None
                is_complete = experiment.state is ExperimentState.COMPLETED
                if self._is_rejected(experiment) or (is_complete and is_over):
                    return
                stack.push(lock_stack.pop_all())
                yield experiment, lock

    def _claim_run(self, experiment: ExperimentRecord, call: ScriptCall) -> bool:
        """Claim a run whose lock this process holds."""
        return self._database.claim_experiment(
            experiment.id, states=[experiment.state], script_start=call.start
        )

    def _try_lock(
        self, experiment: ExperimentRecord, stack: contextlib.ExitStack
    ) -> RunnerLock | None:
        """Acquire the lock of a run; return None if its process is running."""
        deadline = time.monotonic() + _RECOVERY_TIMEOUT_S
        while not self._is_in_progress(experiment):
            try:
                return stack.enter_context(
                    hold_experiment_lock(self._database, self._environment, experiment.id)
                )
            except RunError:
                # Another script is recovering the run, or has claimed it.
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_INTERVAL_S)
        return None

    def _is_in_progress(self, first: ExperimentRecord) -> bool:
        """Whether the process of a start is running and may open further runs.

        Any other holder of the lock is about to claim or recover the start.
        """
        runner = self._database.find_runner(first.id)
        start = self._database.get_experiment(first.id).script_start
        host, pid = (start or " ").split(" ")[:2]
        return (
            runner is not None
            and runner.is_alive
            and host.startswith(runner.host)  # long host names are truncated
            and pid == str(runner.pid)
        )

    def _list_runs(self, name: str) -> list[tuple[ExperimentRecord, TrialRecord]]:
        """Return the experiments of standalone scripts with a name, newest first."""
        experiments = self._database.list_experiments(name=name, archived=False, newest_first=True)
        return [
            (experiment, trial)
            for experiment in experiments
            if experiment.name == name and experiment.config.get("is_standalone")
            for trial in self._database.list_trials(experiment.id)
        ]

    def _take_over_later_run(
        self,
        identity: Mapping[str, Any],
        first: ExperimentRecord,
        call: ScriptCall,
        stack: contextlib.ExitStack,
    ) -> ClaimedRun | None:
        """Claim the run of a call after the first call."""
        runs = self._database.list_runs_after(first)
        former = [run for run in runs if run.script_call == call.number and not run.archived]
        if not former:
            return None
        experiment = former[-1]
        trials = self._database.list_trials(experiment.id)
        if not trials:  # its process was killed before recording a trial
            return None
        recorded = _describe_recorded(experiment, trials[0])
        if identity != recorded:
            raise RunError(
                f"call {call.number} of core.init() would continue experiment {experiment.id}, "
                f"which has different settings: {_describe_changes(recorded, identity)}.\n"
                "This start of the script continues the unfinished start of experiment "
                f"{first.id}. Its n-th call continues the n-th run.\n"
                "Make the same calls in the same order. To train all runs again instead: "
                f"detcore experiment archive {first.id}"
            )
        lock = self._try_lock(experiment, stack)
        if lock is None or self._is_rejected(experiment) or not self._claim_run(experiment, call):
            return None
        return ClaimedRun(experiment.id, lock)

    def _is_rejected(self, experiment: ExperimentRecord) -> bool:
        """Whether a run was canceled, or its script rejected its hyperparameters."""
        trials = self._database.list_trials(experiment.id)
        is_invalid = any((trial.error or "").startswith("InvalidHP") for trial in trials)
        return is_invalid or experiment.state is ExperimentState.CANCELED

    def _refuse_other_order(self, matches: list[tuple[ExperimentRecord, TrialRecord]]) -> None:
        """Check that the first call was not a later call of an unfinished start.

        Raises:
            RunError: If it was.
        """
        for experiment, _ in matches:
            if experiment.script_call == 1:
                continue
            first = self._database.get_experiment(experiment.config[_START]["first"])
            if first.archived or first.script_start is None:
                continue
            if not self._is_in_progress(first):
                raise RunError(
                    f"the first call of core.init() has the settings of call "
                    f"{experiment.script_call} (experiment {experiment.id}) in the last start of "
                    "this script, which did not finish.\n"
                    "The n-th call continues the n-th run, so the calls no longer correspond.\n"
                    "Make the same calls in the same order. To train all runs again instead: "
                    f"detcore experiment archive {first.id}"
                )

    def _refuse_other_arguments(
        self,
        runs: list[tuple[ExperimentRecord, TrialRecord]],
        identity: Mapping[str, Any],
        call: ScriptCall,
    ) -> None:
        """Check that no unfinished start with a checkpoint differs only in the arguments.

        Raises:
            RunError: If an unfinished start does.
        """
        matches = [
            run
            for run in runs
            if _without_arguments(_describe_recorded(*run)) == _without_arguments(identity)
        ]
        trials = {experiment.id: trial for experiment, trial in matches}
        with contextlib.ExitStack() as stack:
            for experiment, _ in self._find_unfinished(matches, call, stack):
                trial = trials[experiment.id]
                checkpoint = self._database.latest_checkpoint(trial.id)
                if checkpoint is None:
                    continue
                changes = _describe_changes(_describe_recorded(experiment, trial), identity)
                raise RunError(
                    f"experiment {experiment.id} of this script did not finish (its latest "
                    f"checkpoint is from step {checkpoint.steps_completed}), and the script now "
                    f"has different arguments: {changes}.\n"
                    "A run continues only with the arguments that it started with.\n"
                    "Change them back. To start a new run instead: "
                    f"detcore experiment archive {experiment.id}"
                )


def _refuse_ambiguous(
    experiment: ExperimentRecord, matches: list[tuple[ExperimentRecord, TrialRecord]]
) -> None:
    """Check that no other run of the same session has the same settings.

    Raises:
        RunError: If another run has.
    """
    start = experiment.config.get(_START) or {}
    if not start.get("session"):
        return
    same = sorted(match.id for match, _ in matches if (match.config.get(_START) or {}) == start)
    if len(same) > 1:
        numbers = ", ".join(str(number) for number in same)
        raise RunError(
            f"experiments {numbers} have the same settings, so the experiment to continue is "
            "ambiguous.\n"
            "They ran in child processes of one script, or in one interactive session, where calls "
            "of core.init() have no fixed order.\n"
            'Set a different hyperparameter for each run, such as hparams={"fold": 0}. To train '
            f"again instead: detcore experiment archive {same[-1]}"
        )


def _describe_identity(script: ScriptExperiment, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that identify a script's runs."""
    hidden, _ = hide_secrets(config, None)
    return _build_settings(
        str(script.name), str(script.model_dir), hidden, script.hparams, script.seed
    )


def _describe_recorded(experiment: ExperimentRecord, trial: TrialRecord) -> dict[str, Any]:
    return _build_settings(
        experiment.name, experiment.model_dir, experiment.config, trial.hparams, trial.seed
    )


def _build_settings(
    name: str,
    folder: str,
    config: Mapping[str, Any],
    hparams: Mapping[str, Any],
    seed: int,
) -> dict[str, Any]:
    """Return settings without the length and the call, in recorded form."""
    section = config.get("searcher") or {}
    searcher = {key: value for key, value in section.items() if key != "max_length"}
    fixed_fields = {key: value for key, value in config.items() if key not in _VARIABLE_FIELDS}
    arguments = fixed_fields.pop(_ARGUMENTS, {})
    # A user may accept an inexact resume after it was reported.
    settings = {**(fixed_fields.get("reproducibility") or {}), "inexact_resume": None}
    fixed_fields["reproducibility"] = settings
    values = {
        "name": name,
        "folder": folder,
        "config": {**fixed_fields, "searcher": searcher},
        "hparams": hparams,
        "seed": seed,
        _ARGUMENTS: arguments,
    }
    plain: dict[str, Any] = json.loads(json.dumps(values, default=_plain_value))
    return plain


def _without_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != _ARGUMENTS}


def _describe_changes(recorded: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    """Return the settings that differ, with both values."""
    before, current = _flatten_settings(recorded), _flatten_settings(identity)
    return ", ".join(
        f"{name} is {current.get(name)!r} instead of {before.get(name)!r}"
        for name in {**before, **current}
        if before.get(name) != current.get(name)
    )


def _flatten_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(settings)
    values |= values.pop(_ARGUMENTS)
    for name in ("config", "hparams"):
        values |= {f"{name}.{key}": value for key, value in values.pop(name).items()}
    return values


def _plain_value(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)
