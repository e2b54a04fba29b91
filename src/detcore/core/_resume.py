"""Settles the experiments of scripts that were killed, and resumes those that were interrupted."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import DetcoreError, RunError
from detcore.contract.values import ExperimentState

if TYPE_CHECKING:
    from detcore.core._modes import ScriptExperiment
    from detcore.core._script_calls import ScriptCall
    from detcore.database import Database, ExperimentRecord, TrialRecord
    from detcore.environment import Environment
    from detcore.hooks import PluginManager


_INVALID_HP = "INVALID_HP"
_ARGUMENTS = "script_arguments"
_POLL_S = 0.05
# Settling takes a moment; if the storage is slow, a message names the process that is waited for.
_PATIENCE_S = 2.0
_KILLED = "the script ended without saying how (killed, or the machine went down)"


class InterruptedScripts:
    """The experiments of scripts by themselves that were killed or paused, or that failed.

    Args:
        database: The records.
        environment: Its `home` holds the trials' folders.
        plugins: Open their storages.
    """

    def __init__(
        self, database: Database, environment: Environment, plugins: PluginManager
    ) -> None:
        self._database = database
        self._environment = environment
        self._plugins = plugins

    def settle(self) -> None:
        """Settle the killed scripts of this machine: their checkpoints, and their state.

        Other scripts may start at the same time and take over settled experiments at once, so those
        that a live process holds are not touched.
        """
        database = self._database
        for experiment in database.list_experiments(states=[ExperimentState.RUNNING]):
            if experiment.config.get("is_standalone"):
                self._settle_if_killed(experiment.id)
        # A script that ended while a checkpoint was being saved has recorded its end itself.
        active: dict[int, set[str]] = {}
        for record in database.list_checkpoints(states=["ACTIVE"]):
            active.setdefault(record.experiment_id, set()).add(record.uuid)
        for experiment_id, uuids in sorted(active.items()):
            experiment = database.get_experiment(experiment_id)
            is_over = experiment.state is not ExperimentState.RUNNING
            is_script = experiment.config.get("is_standalone")
            if is_script and is_over and database.experiment_is_alive(experiment_id) is False:
                self._try_settle(experiment, uuids=uuids)

    def claim(self, script: ScriptExperiment, call: ScriptCall) -> TrialRecord | None:
        """Take over the run that a call of the script continues.

        The first call of a start continues the newest start whose first call had the same settings,
        unless that start finished. The same are: name, folder, configuration (with the storage),
        hyperparameters and seed. The length may differ, so that an interrupted script can be
        trained longer. Starts that are in progress are skipped, and processes that start
        concurrently take different ones. The n-th call continues the n-th run of that start.

        ``script_arguments`` in the configuration are a library's arguments that the script did not
        name as hyperparameters. If an unfinished start differs in these alone, the user decides
        whether to continue it.

        Args:
            script: The experiment to record, with its name, folder and whole configuration.
            call: The call.

        Returns:
            The trial of the run, which may be complete. None where a new run begins: there is
            none, or the last one was canceled or had hyperparameters that the script rejected.

        Raises:
            RunError: If the run to continue has other settings, or cannot be determined.
        """
        if call.first is not None:
            return self._claim_later_run(script, call)
        runs = self._list_runs(script)
        matches = _select_runs(runs, script)
        for experiment, trial in self._find_unfinished(matches, call):
            _refuse_ambiguous(experiment, matches)
            if self._take_over(experiment):
                return trial
        if not call.session:
            self._refuse_other_order(matches)
            if not matches:
                self._refuse_other_arguments(runs, script, call)
        return None

    def _find_unfinished(
        self, matches: list[tuple[ExperimentRecord, TrialRecord]], call: ScriptCall
    ) -> Iterator[tuple[ExperimentRecord, TrialRecord]]:
        """Yield the first runs of unfinished starts, up to a start that is not to be continued."""
        for experiment, trial in matches:
            if experiment.script_call != 1:
                continue
            experiment = self._wait_and_settle(experiment)
            if experiment.state is ExperimentState.RUNNING:
                continue
            if _is_rejected(experiment):
                return
            later = self._database.list_script_runs(experiment.id)[1:]
            is_complete = experiment.state is ExperimentState.COMPLETED
            if is_complete and (call.session or experiment.process is None):
                return
            if (is_complete or later) and self._is_in_progress(experiment, later):
                continue
            yield experiment, trial

    def _list_runs(self, script: ScriptExperiment) -> list[tuple[ExperimentRecord, TrialRecord]]:
        """Return the experiments of scripts with the same name, newest first."""
        found = self._database.list_experiments(
            name=str(script.name), archived=False, newest_first=True
        )
        pairs = [
            (experiment, _only_trial(self._database, experiment))
            for experiment in found
            if experiment.name == script.name
        ]
        return [(experiment, trial) for experiment, trial in pairs if trial is not None]

    def _claim_later_run(self, script: ScriptExperiment, call: ScriptCall) -> TrialRecord | None:
        """Take over the run of a call after the first one."""
        runs = self._database.list_script_runs(call.first)
        former = [run for run in runs if run.script_call == call.number and not run.archived]
        trial = _only_trial(self._database, former[-1]) if former else None
        if trial is None:
            return None
        experiment = self._wait_and_settle(former[-1])
        wanted, recorded = _identity(script), _recorded(experiment, trial)
        if experiment.name != script.name or wanted != recorded:
            changes = _describe_changes([experiment.name, *recorded], [script.name, *wanted])
            raise RunError(
                f"call {call.number} of core.init() would continue experiment {experiment.id}, "
                f"which has other settings: {changes}.\n"
                f"This start of the script continues the start that began with experiment "
                f"{call.first} and did not finish. Its n-th call continues the n-th run.\n"
                "Make the same calls in the same order. To train all runs again instead: "
                f"detcore experiment archive {call.first}"
            )
        return trial if not _is_rejected(experiment) and self._take_over(experiment) else None

    def _take_over(self, experiment: ExperimentRecord) -> bool:
        """Take over a run that has ended; return whether no other process did so before."""
        database = self._database
        if experiment.state is not ExperimentState.COMPLETED:
            return database.claim_experiment(experiment.id)
        process = experiment.process
        return process is not None and database.adopt_complete_experiment(experiment.id, process)

    def _wait_and_settle(self, experiment: ExperimentRecord) -> ExperimentRecord:
        """Settle the run if its script was killed; return its record."""
        if experiment.state is not ExperimentState.RUNNING:
            return experiment
        _wait_until_settled(self._database, experiment.id)
        self._settle_if_killed(experiment.id)
        return self._database.get_experiment(experiment.id)

    def _is_in_progress(self, first: ExperimentRecord, later: list[ExperimentRecord]) -> bool:
        """Whether the process of a start may open further runs."""
        is_alive = first.process is not None and self._database.process_is_alive(first.process)
        if is_alive is not None:
            return is_alive
        # The process was on another machine. A run that stopped early shows that it has ended.
        return [first, *later][-1].state in (ExperimentState.RUNNING, ExperimentState.COMPLETED)

    def _refuse_other_order(self, matches: list[tuple[ExperimentRecord, TrialRecord]]) -> None:
        """Check that the first call was not a later one in a start that did not finish.

        Raises:
            RunError: If it was.
        """
        for experiment, _ in matches:
            if experiment.script_call == 1:
                continue
            runs = self._database.list_script_runs(experiment.config["script_start"]["first"])
            first = runs[0]
            if first.archived or first.process is None:
                continue
            if not self._is_in_progress(first, runs[1:]):
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
        script: ScriptExperiment,
        call: ScriptCall,
    ) -> None:
        """Check that no unfinished start differs in the arguments alone.

        A run without a checkpoint has nothing to continue.

        Raises:
            RunError: If one does.
        """
        matches = _select_runs(runs, script, ignored=[_ARGUMENTS])
        for experiment, trial in self._find_unfinished(matches, call):
            checkpoint = self._database.latest_checkpoint(trial.id)
            if checkpoint is not None:
                changes = _describe_changes(
                    [experiment.name, *_recorded(experiment, trial)],
                    [script.name, *_identity(script)],
                )
                raise RunError(
                    f"experiment {experiment.id} of this script did not finish (its latest "
                    f"checkpoint is from step {checkpoint.steps_completed}), and the script has "
                    f"other arguments now: {changes}.\n"
                    "A run continues only with the arguments that it started with.\n"
                    "Change them back. To start a new run instead: "
                    f"detcore experiment archive {experiment.id}"
                )

    def _settle_if_killed(self, experiment_id: int) -> None:
        """Settle the experiment of a script that was killed, unless another process does so now."""
        database = self._database
        experiment, is_alive = database.observe_experiment(experiment_id)
        # None: it runs on another machine, and the next script there settles it.
        if is_alive is not False or experiment.state is not ExperimentState.RUNNING:
            return
        # One of those that start now.
        if database.adopt_experiment(experiment_id):
            self._try_settle(experiment, error=_KILLED)
            assert experiment.process is not None  # it was adopted from one
            database.disown_experiment(experiment_id, experiment.process)

    def _try_settle(
        self,
        experiment: ExperimentRecord,
        *,
        uuids: Collection[str] | None = None,
        error: str | None = None,
    ) -> bool:
        """Settle checkpoints, or some, and with an error the state; return whether that worked."""
        try:
            self._settle(experiment, uuids, error)
        except (DetcoreError, OSError) as failure:
            # A storage that is away today must not keep an unrelated script from starting; the
            # records stay as they are, and the next start looks again.
            logging.getLogger("detcore").warning(
                "the leftovers of experiment %s could not be settled yet: %s",
                experiment.id, failure,
            )  # fmt: skip
            return False
        return True

    def _settle(
        self, experiment: ExperimentRecord, uuids: Collection[str] | None, error: str | None
    ) -> None:
        from detcore.core._source import recover_trial
        from detcore.database import ingest_event_logs, restore_secrets
        from detcore.hooks.delivery import report_end_of_killed
        from detcore.storage import open_storage

        database, home = self._database, self._environment.home
        ingest_event_logs(database, home, experiment_id=experiment.id)
        restored = restore_secrets(home, experiment.id, experiment.config)
        spec = restored.config.get("checkpoint_storage")
        state = ExperimentState.ERROR
        with contextlib.closing(open_storage(spec, home=home, plugins=self._plugins)) as storage:
            for trial in database.list_trials(experiment.id):
                recover_trial(database, storage, trial, uuids=uuids)
                if error is None:
                    continue
                database.set_trial_state(trial.id, state, error=error)
                if trial.trial_dir is not None:
                    report_end_of_killed(
                        database, Path(trial.trial_dir), trial_id=trial.id, run_id=trial.run_id,
                        state=state.value, error=error,
                    )  # fmt: skip
        if error is not None:
            database.set_experiment_state(experiment.id, state, error=error)


def _wait_until_settled(database: Database, experiment_id: int) -> None:
    """Wait while another process of this machine settles the experiment of a killed script.

    That process holds the experiment then, and has no run of its trial. The same is true for a
    moment when a process takes the experiment over.
    """
    tell_at = time.monotonic() + _PATIENCE_S
    while True:
        experiment, is_alive = database.observe_experiment(experiment_id)
        trial = _only_trial(database, experiment)
        run = None if trial is None else trial.current_run
        if not is_alive or run is None or run.process == experiment.process:
            return
        if time.monotonic() >= tell_at and experiment.process is not None:
            tell_at = math.inf
            logging.getLogger("detcore").warning(
                "waiting for process %s, which settles what a killed run of experiment %s left",
                experiment.process.pid, experiment_id,
            )  # fmt: skip
        time.sleep(_POLL_S)


def _only_trial(database: Database, experiment: ExperimentRecord) -> TrialRecord | None:
    """Return the trial of a script; None if a runner ran the experiment, or without a trial."""
    if not experiment.config.get("is_standalone"):
        return None
    trials = database.list_trials(experiment.id)
    return trials[0] if trials and trials[0].trial_dir is not None else None


def _is_rejected(experiment: ExperimentRecord) -> bool:
    """Whether a run was canceled, or its script rejected its hyperparameters."""
    is_invalid = (experiment.error or "").startswith(_INVALID_HP)
    return experiment.state is ExperimentState.CANCELED or is_invalid


def _refuse_ambiguous(
    experiment: ExperimentRecord, matches: list[tuple[ExperimentRecord, TrialRecord]]
) -> None:
    """Check that no other run of the same session has the settings of a run.

    Raises:
        RunError: If one has.
    """
    start = experiment.config.get("script_start") or {}
    if not start.get("session"):
        return
    same = sorted(
        match.id for match, _ in matches if (match.config.get("script_start") or {}) == start
    )
    if len(same) > 1:
        numbers = ", ".join(str(number) for number in same)
        raise RunError(
            f"experiments {numbers} have the same settings, and it is unknown which of them "
            "continues here.\n"
            "They ran in child processes of one script, or in one interactive session, where calls "
            "of core.init() have no fixed order.\n"
            'Give each run a hyperparameter of its own, such as hparams={"fold": 0}. To train '
            f"again instead: detcore experiment archive {same[-1]}"
        )


def _describe_changes(recorded: list[Any], wanted: list[Any]) -> str:
    """Return the settings that differ, with both values."""
    names = ("name", "folder", "config", "hparams", "seed")
    before, now = dict(zip(names, recorded, strict=True)), dict(zip(names, wanted, strict=True))
    for values in (before, now):
        values |= values["config"].pop(_ARGUMENTS, {})
        for name in ("config", "hparams"):
            values |= {f"{name}.{key}": value for key, value in values.pop(name).items()}
    return ", ".join(
        f"{name} is {now.get(name)!r} instead of {before.get(name)!r}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    )


def _select_runs(
    runs: list[tuple[ExperimentRecord, TrialRecord]],
    script: ScriptExperiment,
    *,
    ignored: Collection[str] = (),
) -> list[tuple[ExperimentRecord, TrialRecord]]:
    """Return the runs with the settings of a script.

    Args:
        runs: The runs.
        script: The settings.
        ignored: Keys of the configuration that may differ.
    """
    identity = _identity(script, ignored)
    return [
        (experiment, trial)
        for experiment, trial in runs
        if _recorded(experiment, trial, ignored) == identity
    ]


def _identity(script: ScriptExperiment, ignored: Collection[str] = ()) -> list[Any]:
    from detcore.database import hide_secrets

    config, _ = hide_secrets(script.config, None)
    config = _comparable(config, ignored)
    return _plain([str(script.model_dir), config, script.hparams, script.seed])


def _recorded(
    experiment: ExperimentRecord,
    trial: TrialRecord,
    ignored: Collection[str] = (),
) -> list[Any]:
    config = _comparable(experiment.config, ignored)
    return _plain([experiment.model_dir, config, trial.hparams, trial.seed])


def _comparable(config: Mapping[str, Any], ignored: Collection[str]) -> dict[str, Any]:
    """Return a configuration without its length and its call."""
    searcher = dict(config.get("searcher") or {})
    searcher.pop("max_length", None)
    plain = {**config, "searcher": searcher}
    return {key: value for key, value in plain.items() if key not in ("script_start", *ignored)}


def _plain(values: list[Any]) -> list[Any]:
    """Return values as a record holds them: lists for tuples, and so on."""
    plain: list[Any] = json.loads(json.dumps(values, default=_plain_value))
    return plain


def _plain_value(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)
