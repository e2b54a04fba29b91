"""The runner of a submitted experiment: ``python -m detcore_server.jobs.submission_runner ID``.

A server starts it as a separate process in a new session, so that it continues when the server
ends, however that happens. Its instructions come as a JSON object on standard input, so that no
environment variable names the database: the workers inherit its environment.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from detcore.environment import child_environment, read_environment
from detcore.errors import DetcoreError
from detcore.launch.worker import EXIT_ERROR, EXIT_TEMPFAIL
from detcore.types import ExperimentState

if TYPE_CHECKING:
    from detcore.run import ExperimentResult


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunnerInstructions:
    """The instructions for the runner of a submitted experiment.

    Attributes:
        experiment_id: Which experiment.
        home: The folder of records.
        database_url: The record store.
        test_mode: Whether it is a smoke run.
        allowed_plugins: The only ones that are on, or None.
        disabled_plugins: Those that are off.
    """

    experiment_id: int
    home: str
    database_url: str
    test_mode: bool = False
    allowed_plugins: list[str] | None = None
    disabled_plugins: list[str] = dataclasses.field(default_factory=list)


def main() -> int:
    """Run an experiment to its end; return the process's exit code."""
    told = RunnerInstructions(**json.load(sys.stdin))
    try:
        result = _run(told)
    except DetcoreError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_ERROR
    print(f"experiment {result.experiment_id}: {result.state.value}", flush=True)
    return EXIT_TEMPFAIL if result.state is ExperimentState.RUNNING else 0


def _run(told: RunnerInstructions) -> ExperimentResult:
    from detcore.client.http.journal import JournalListener, journal_path
    from detcore.plugins import PluginManager
    from detcore.run import RunSettings, get_experiment_dir, resume_experiment

    environment = read_environment(
        child_environment({"DETCORE_HOME": told.home, "DETCORE_DB": told.database_url})
    )
    allowed = told.allowed_plugins
    plugins = PluginManager(
        environment,
        disabled=frozenset(told.disabled_plugins),
        allowed=None if allowed is None else frozenset(allowed),
    )
    listener = JournalListener(journal_path(get_experiment_dir(environment, told.experiment_id)))
    settings = RunSettings(
        environment=environment, plugins=plugins, listener=listener, is_server_managed=True
    )
    try:
        return resume_experiment(told.experiment_id, settings, test_mode=told.test_mode)
    except DetcoreError as error:
        listener.notice(f"error: {error}")
        raise
    finally:
        listener.close()


if __name__ == "__main__":
    sys.exit(main())
