"""Runner of a submitted experiment: ``python -m detcore_server.jobs.submission_runner ID``.

The server starts it as a separate process in a new session, so that it outlives the server. It
reads its instructions as a JSON object from standard input. Workers inherit its environment, which
must not contain the database URL.
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
    """Instructions for the runner of a submitted experiment.

    Attributes:
        experiment_id: Id of the experiment.
        home: Directory of the records.
        database_url: URL of the record store.
        test_mode: Whether the experiment is a smoke test.
        allowed_plugins: The only enabled plugins, or None.
        disabled_plugins: Disabled plugins.
    """

    experiment_id: int
    home: str
    database_url: str
    test_mode: bool = False
    allowed_plugins: list[str] | None = None
    disabled_plugins: list[str] = dataclasses.field(default_factory=list)


def main() -> int:
    """Run an experiment to its end, and return the process's exit code."""
    instructions = RunnerInstructions(**json.load(sys.stdin))
    try:
        result = _run(instructions)
    except DetcoreError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_ERROR
    print(f"experiment {result.experiment_id}: {result.state.value}", flush=True)
    return EXIT_TEMPFAIL if result.state is ExperimentState.RUNNING else 0


def _run(instructions: RunnerInstructions) -> ExperimentResult:
    from detcore.client.http.journal import JournalListener, journal_path
    from detcore.plugins import PluginManager
    from detcore.run import RunSettings, get_experiment_dir, resume_experiment

    environment = read_environment(
        child_environment(
            {"DETCORE_HOME": instructions.home, "DETCORE_DB": instructions.database_url}
        )
    )
    allowed = instructions.allowed_plugins
    plugins = PluginManager(
        environment,
        disabled=frozenset(instructions.disabled_plugins),
        allowed=None if allowed is None else frozenset(allowed),
    )
    listener = JournalListener(
        journal_path(get_experiment_dir(environment, instructions.experiment_id))
    )
    settings = RunSettings(
        environment=environment, plugins=plugins, listener=listener, is_server_managed=True
    )
    try:
        return resume_experiment(
            instructions.experiment_id, settings, test_mode=instructions.test_mode
        )
    except DetcoreError as error:
        listener.notice(f"error: {error}")
        raise
    finally:
        listener.close()


if __name__ == "__main__":
    sys.exit(main())
