"""The worker's entry point: ``python -m detcore.launch.worker``, started by a launcher.

With ``--fork-server`` it forks the workers of other trials; see `detcore.launch.fork_server`.
"""

from __future__ import annotations

import logging
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import (
    ConfigError,
    InexactResumeError,
    InvalidExperimentError,
    InvalidHP,
    NotANumberError,
    PeerLostError,
    PluginConflictError,
    PluginNotFoundError,
    ScheduleError,
)
from detcore.environment import child_environment, read_environment, read_prefixed, read_variables
from detcore.launch.exit_codes import (
    EXIT_CONFIG,
    EXIT_ERROR,
    EXIT_INVALID_HP,
    EXIT_PEER_LOST,
    EXIT_TEMPFAIL,
)
from detcore.stop_signals import find_stop_signals

if TYPE_CHECKING:
    from detcore.contract.values import TrialInfo
    from detcore.core import Context
    from detcore.distributed import DistributedContext
    from detcore.environment import Environment
    from detcore.launch.fork_server import ForkedStart
    from detcore.plugins import PluginManager

__all__ = [
    "EXIT_CONFIG",
    "EXIT_ERROR",
    "EXIT_INVALID_HP",
    "EXIT_TEMPFAIL",
    "main",
]

# Classes of PyTorch and TensorFlow. TensorFlow also uses its class for a full disk.
_OUT_OF_MEMORY = ("OutOfMemoryError", "ResourceExhaustedError")
_NO_SPACE = "No space left"
# PyTorch has no class for host memory and for some CUDA errors, and JAX has a single class for all
# compiler errors.
_NO_MEMORY = re.compile("can't allocate memory|out of memory|RESOURCE_EXHAUSTED")
# Before training has started, these errors occur again at every start.
_PERMANENT_ERRORS = (
    ConfigError,
    InvalidExperimentError,
    PluginConflictError,
    PluginNotFoundError,
    ScheduleError,
    ImportError,
    SyntaxError,
)
_SHELL_CHARACTERS = frozenset("|&;<>()$`\\\"'*?[]#~{}!\n")


def main() -> int:
    """Run the trial that the environment names, and return the exit code of the process."""
    environment = read_environment()
    if environment.channel_fd is not None:
        _end_with_runner(environment.channel_fd)
    return _run_trial(environment)


def _run_forked(start: ForkedStart) -> int:
    """Run the trial in a forked worker, or execute a new worker if its imports would have differed.

    A framework reads some environment variables during its import. If this trial has other values
    for them, or its code sets them, the process executes a new worker before it builds anything.
    """
    from detcore import core
    from detcore.trial import import_trial_class

    environment = read_environment()
    assert environment.channel_fd is not None
    _end_with_runner(environment.channel_fd)
    start_environment = child_environment({})
    info = core.read_trial_info(environment)
    try:
        import_trial_class(str(info.settings.entrypoint), Path(info.model_dir))
        is_same = read_prefixed(start.prefixes) == start.variables
    except Exception:  # noqa: BLE001  (the new worker reports the error)
        is_same = False
    if not is_same:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(
            sys.executable, [sys.executable, "-m", "detcore.launch.worker"], start_environment
        )
    return _run_trial(environment, start.plugins)


def _run_trial(environment: Environment, plugins: PluginManager | None = None) -> int:
    from detcore import core
    from detcore.core.core_context import init_with_plugins

    # A script opens its own context. This process only supervises the script.
    info = core.read_trial_info(environment)
    if not info.settings.is_trial_class:
        return _run_script(info.settings.entrypoint)
    model_dir = Path(info.model_dir)
    sys.path.insert(0, str(model_dir))
    _show_log_messages()
    for problem in () if plugins is None else plugins.problems():
        logging.getLogger("detcore.plugins").warning("plugin %s", problem)
    contexts: list[Context] = []
    try:
        with init_with_plugins(_join_workers(environment), plugins) as context:
            contexts.append(context)
            code = _run_trial_class(context, info)
    except Exception as error:  # noqa: BLE001  (the process boundary reports every error)
        has_started = bool(contexts) and contexts[0].channel.has_sent("started")
        code = _report_error(error, info, has_started=has_started)
    if contexts and contexts[0].checkpoint.abandon():
        _exit_now(code)
    return code


def _exit_now(code: int) -> None:
    """Exit without waiting for threads, because an abandoned save may wait for the storage.

    Python waits for pool threads at exit, and the process may be killed soon.
    """
    for handler in logging.getLogger("detcore").handlers:
        handler.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _join_workers(environment: Environment) -> DistributedContext:
    """Connect to the trial's other workers, and ignore the variables of other launchers."""
    from detcore.distributed import DistributedContext

    if environment.num_workers == 1:
        return DistributedContext()
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    values = read_variables(f"DETCORE_{name.upper()}" for name in names)
    numbers: dict[str, Any] = {name: int(values[f"DETCORE_{name.upper()}"]) for name in names}
    return DistributedContext(
        **numbers,
        # Set if the workers are on several machines.
        chief_ip=read_variables(("DET_CHIEF_IP",)).get("DET_CHIEF_IP"),
    )


def _run_trial_class(context: Context, info: TrialInfo) -> int:
    from detcore.trial import import_trial_class, run_trial

    trial_class = import_trial_class(str(info.settings.entrypoint), Path(info.model_dir))
    outcome = run_trial(context, trial_class)
    return EXIT_TEMPFAIL if outcome.is_preempted else 0


def _report_error(error: Exception, info: TrialInfo, *, has_started: bool) -> int:
    from detcore.launch.user_traceback import format_user_error, iter_error_chain

    rank = read_variables(("DETCORE_RANK",)).get("DETCORE_RANK", "0")
    full = Path(info.trial_dir) / f"traceback-run{info.run_id}-rank{rank}.txt"
    print(format_user_error(error, Path(info.model_dir), full=full), file=sys.stderr)
    if isinstance(error, PeerLostError):
        return EXIT_PEER_LOST
    if isinstance(error, InvalidHP):
        return EXIT_INVALID_HP
    if any(map(_is_out_of_memory, iter_error_chain(error))):
        print(_make_out_of_memory_hint(info), file=sys.stderr)
        return EXIT_CONFIG
    if isinstance(error, NotANumberError | ConfigError | InexactResumeError):
        return EXIT_CONFIG
    return EXIT_CONFIG if not has_started and isinstance(error, _PERMANENT_ERRORS) else EXIT_ERROR


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether a framework ran out of memory; each has a different error class."""
    name = type(error).__name__
    is_memory_error = isinstance(error, MemoryError) or name in _OUT_OF_MEMORY
    is_memory_error = is_memory_error or (
        isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None
    )
    return is_memory_error and _NO_SPACE not in str(error)


def _make_out_of_memory_hint(info: TrialInfo) -> str:
    size = info.hparams.get("global_batch_size")
    batch_size_hint = "" if size is None else f" with hyperparameters.global_batch_size {size}"
    return (
        f"The memory was not enough{batch_size_hint}. Set a smaller batch size. "
        "optimizations.aggregation_frequency adds up the gradients of several small batches."
    )


def _run_script(entrypoint: str | list[str]) -> int:
    """Run a command as the trial, and pass signals on to it."""
    environment = read_environment()
    inherited_fds = () if environment.channel_fd is None else (environment.channel_fd,)
    # "python3 train.py" means the Python of this environment, even if it is not activated.
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment.search_path}"
    command = _split_command(entrypoint, path) if isinstance(entrypoint, str) else list(entrypoint)
    process = subprocess.Popen(
        command, pass_fds=inherited_fds, env=child_environment({"PATH": path})
    )
    for number in find_stop_signals():
        signal.signal(number, lambda received, _frame: process.send_signal(received))
    code = process.wait()
    return code if code >= 0 else 128 - code


def _split_command(command: str, path: str) -> list[str]:
    """Return the arguments for a shell command, without a shell if none is needed.

    A signal would kill the shell, and the program would not receive it and save a checkpoint.
    """
    needs_shell = _SHELL_CHARACTERS & set(command) or "=" in command.partition(" ")[0]
    words = [] if needs_shell else command.split()
    # A word that does not name a program may be a shell builtin.
    return words if words and shutil.which(words[0], path=path) else ["sh", "-c", command]


def _show_log_messages() -> None:
    """Show the log messages of detcore and its plugins, without changing the user's logging."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("detcore")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False


def _end_with_runner(channel_fd: int) -> None:
    """Kill this process group when the runner's end of the channel closes.

    A worker that outlived its runner would keep writing while another worker resumes its trial.
    The thread polls the channel and does not read from it, because other code reads the replies.
    """
    poll = select.poll()
    poll.register(channel_fd, select.POLLRDHUP)

    def kill_group() -> None:
        poll.poll()
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=kill_group, name="detcore-parent-death", daemon=True).start()


if __name__ == "__main__":
    # Until the trial's context handles SIGINT, there is nothing to save or report. Without a
    # handler the process exits as with KeyboardInterrupt, but without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["--fork-server"]:
        from detcore.launch.fork_server import serve

        # serve() returns only in the forked workers.
        sys.exit(_run_forked(serve(int(sys.argv[2]), sys.argv[3:])))
    sys.exit(main())
