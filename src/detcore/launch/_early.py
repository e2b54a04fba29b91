"""A worker that is started before the experiment is checked.

While the command checks the experiment file, the worker imports the modules that the trial will
need: no code of the user, no framework's runtime. `detcore.launch._warm` runs inside it. As every
worker, it ends when the other end of its channel closes, however this process ends.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.contract.errors import DetcoreError
from detcore.launch._job import LocalJob, framework_variables
from detcore.launch._local import WORKER, start_worker, worker_variables
from detcore.launch._user_imports import find_preload
from detcore.launch._warm import own_variables, send_message, shared_variables
from detcore.launch._warm_parent import WORKER_MODULES
from detcore.launch._workers import start_process

if TYPE_CHECKING:
    from typing_extensions import Self

    from detcore.environment import Environment
    from detcore.hooks import PluginManager

__all__ = ["EarlyWorker", "early_worker", "start_early"]

# A longer file takes some tenths of a second to read.
_MOST_BYTES = 20_000
# Settings that decide how the worker starts.
_DECIDING = frozenset(
    {
        "entrypoint",
        "launcher",
        "launcher.name",
        "resources",
        "resources.slots_per_trial",
        "searcher",
        "searcher.name",
    }
)


class EarlyWorker:
    """A worker process that waits for its trial.

    It takes a trial only if the trial's worker would have been started in the same way: for the
    same entrypoint in the same folder, with the same variables except those that no import reads.
    As a context manager, it ends the process at the end of the block, unless that has a trial.

    Args:
        entrypoint: The experiment's.
        cwd: The folder that it runs in.
        environment: All of its variables but ``DETCORE_CHANNEL_FD``.
        modules: Its imports: ``"module"``, or ``"module:attribute"`` if the access to the
            attribute imports.

    Attributes:
        process: The process.
        channel: The runner's end of its channel.

    Raises:
        OSError: If it cannot be started.
    """

    def __init__(
        self,
        entrypoint: str,
        cwd: Path,
        environment: Mapping[str, str],
        modules: Sequence[str],
    ) -> None:
        self._entrypoint = entrypoint
        self._cwd = cwd
        self._environment = shared_variables(environment)
        self._is_over = False
        start = functools.partial(start_process, (*WORKER, "early", *modules), cwd=cwd)
        self.process, self.channel = start_worker(environment, (), start)

    def take(
        self,
        entrypoint: object,
        cwd: Path,
        environment: Mapping[str, str],
        keep_open: Sequence[int],
    ) -> bool:
        """Give it a trial; return whether it has taken it. If not, the process is ended.

        Args:
            entrypoint: The experiment's.
            cwd: The folder that the trial runs in.
            environment: All of the trial's variables but ``DETCORE_CHANNEL_FD``.
            keep_open: Descriptors that it inherits.
        """
        if self._is_over:
            return False
        wanted = (entrypoint, cwd, shared_variables(environment))
        is_fit = wanted == (self._entrypoint, self._cwd, self._environment)
        if is_fit and self.process.poll() is None:
            with contextlib.suppress(OSError):
                send_message(self.channel, own_variables(environment), keep_open)
                self._is_over = True
                return True
        self.close()
        return False

    def close(self) -> None:
        """End it at once, unless it has taken a trial; closing it again is fine."""
        if self._is_over:
            return
        self._is_over = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr, self.channel):
            assert stream is not None
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_early(
    entrypoint: str,
    model_dir: Path,
    *,
    home: Path,
    plugins: PluginManager,
    variables: Mapping[str, str] | None = None,
) -> EarlyWorker | None:
    """Start the worker of an experiment's trial early; None where that would change the trial.

    Args:
        entrypoint: The experiment's; a trial class.
        model_dir: Folder of the user's code.
        home: The folder of records and default checkpoints.
        plugins: Provide frameworks.
        variables: More variables; default: those that frameworks need.
    """
    try:
        modules, _ = find_preload(entrypoint, model_dir, plugins)
        if variables is None:
            variables = framework_variables(plugins)
    except DetcoreError:  # the check of the experiment reports it
        return None
    if modules is None:
        return None
    told = worker_variables(
        home, plugins.disabled, plugins.allowed, variables=variables, trial_info=""
    )
    with contextlib.closing(LocalJob(1)) as job:
        environment = job.environment(0, told)
    try:
        return EarlyWorker(entrypoint, model_dir, environment, (*WORKER_MODULES, *modules))
    except OSError:  # the start of the trial reports it
        return None


@contextlib.contextmanager
def early_worker(
    config: Path,
    model_dir: Path,
    *,
    settings: Sequence[str],
    environment: Environment,
    plugins: PluginManager,
    is_verbose: bool,
) -> Iterator[EarlyWorker | None]:
    """Start a worker for the trial of an experiment file; None if it may not fit that trial.

    At the end of the block the worker is ended, unless it has taken a trial.

    Args:
        config: The experiment file, which may be wrong.
        model_dir: Folder of the user's code.
        settings: The settings of the command line, ``NAME=VALUE``.
        environment: The settings of this process.
        plugins: Provide frameworks.
        is_verbose: Whether the messages of frameworks at every start are displayed, too.
    """
    names = [setting.partition("=")[0].strip() for setting in settings]
    names += [name.partition("__")[2].replace("__", ".") for name in environment.config_overrides]
    is_changed = any(name.lower() in _DECIDING for name in names)
    entrypoint = None if is_changed else _read_entrypoint(config)
    early = None
    if entrypoint is not None:
        early = start_early(
            entrypoint,
            model_dir,
            home=environment.home,
            plugins=plugins,
            variables={} if is_verbose else None,
        )
    with early or contextlib.nullcontext():
        yield early


def _read_entrypoint(config: Path) -> str | None:
    """Return the trial class of a file with one trial, of one worker on this machine, or None."""
    import yaml

    try:
        # A pipe could not be read a second time.
        if not config.is_file() or config.stat().st_size > _MOST_BYTES:
            return None
        # All scalars are text, so that no value is a mistake here.
        found = yaml.load(config.read_bytes(), Loader=yaml.BaseLoader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):  # the check names the mistake
        return None
    if not isinstance(found, Mapping):
        return None
    is_single = _section(found, "searcher").get("name") == "single"
    is_one_worker = _section(found, "resources").get("slots_per_trial", "1") == "1"
    entrypoint = found.get("entrypoint")
    if not (is_single and is_one_worker and found.get("launcher", "local") == "local"):
        return None
    return entrypoint if isinstance(entrypoint, str) else None


def _section(found: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = found.get(name)
    return section if isinstance(section, Mapping) else {}
