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

# Of PyTorch and TensorFlow, whose full disk has the same class.
_OUT_OF_MEMORY = ("OutOfMemoryError", "ResourceExhaustedError")
_NO_SPACE = "No space left"
# PyTorch has no class for the memory of the machine, nor for all faults of CUDA, and JAX one class
# for all that its compiler says.
_NO_MEMORY = re.compile("can't allocate memory|out of memory|RESOURCE_EXHAUSTED")
# Before training has begun, these come again with every start.
_CANNOT_HEAL = (
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
    """Run the trial that the environment names; return the process's exit code."""
    environment = read_environment()
    if environment.channel_fd is not None:
        _end_with_runner(environment.channel_fd)
    return _run(environment)


def _main_forked(start: ForkedStart) -> int:
    """Run the trial in a forked worker, or start plainly if its imports would have differed.

    A framework reads some environment variables when it is imported. If this trial has other values
    for them, or its code sets them, the process becomes a plain worker before it builds anything.
    """
    from detcore import core
    from detcore.trial import import_trial_class

    environment = read_environment()
    assert environment.channel_fd is not None
    _end_with_runner(environment.channel_fd)
    given = child_environment({})
    info = core.read_trial_info(environment)
    try:
        import_trial_class(str(info.settings.entrypoint), Path(info.model_dir))
        is_same = read_prefixed(start.prefixes) == start.variables
    except Exception:  # noqa: BLE001  (the plain worker reports it)
        is_same = False
    if not is_same:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, "-m", "detcore.launch.worker"], given)
    return _run(environment, start.plugins)


def _run(environment: Environment, plugins: PluginManager | None = None) -> int:
    from detcore import core
    from detcore.core.core_context import init_with_plugins

    # A trial of a script opens its own context; this process only watches over it.
    info = core.read_trial_info(environment)
    if not info.settings.is_trial_class:
        return _run_script(info.settings.entrypoint)
    model_dir = Path(info.model_dir)
    sys.path.insert(0, str(model_dir))
    _show_messages()
    for problem in () if plugins is None else plugins.problems():
        logging.getLogger("detcore.plugins").warning("plugin %s", problem)
    opened: list[Context] = []
    try:
        with init_with_plugins(_place(environment), plugins) as context:
            opened.append(context)
            code = _run_trial_class(context, info)
    except Exception as error:  # noqa: BLE001  (the border of the process: told, never dropped)
        has_begun = bool(opened) and opened[0].channel.has_sent("started")
        code = _tell_error(error, info, has_begun=has_begun)
    if opened and opened[0].checkpoint.abandon():
        _leave(code)
    return code


def _leave(code: int) -> None:
    """End now: threads of a save that was given up may wait for the storage for long.

    Python waits for threads of a pool when it ends, and the process may be killed soon.
    """
    for handler in logging.getLogger("detcore").handlers:
        handler.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _place(environment: Environment) -> DistributedContext:
    """Join the trial's other workers, ignoring variables that another launcher has set."""
    from detcore.distributed import DistributedContext

    if environment.num_workers == 1:
        return DistributedContext()
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    values = read_variables(f"DETCORE_{name.upper()}" for name in names)
    numbers: dict[str, Any] = {name: int(values[f"DETCORE_{name.upper()}"]) for name in names}
    return DistributedContext(
        **numbers,
        # Where they are on several machines.
        chief_ip=read_variables(("DET_CHIEF_IP",)).get("DET_CHIEF_IP"),
    )


def _run_trial_class(context: Context, info: TrialInfo) -> int:
    from detcore.trial import import_trial_class, run_trial

    trial_class = import_trial_class(str(info.settings.entrypoint), Path(info.model_dir))
    outcome = run_trial(context, trial_class)
    return EXIT_TEMPFAIL if outcome.is_preempted else 0


def _tell_error(error: Exception, info: TrialInfo, *, has_begun: bool) -> int:
    from detcore.launch.user_traceback import error_chain, format_user_error

    rank = read_variables(("DETCORE_RANK",)).get("DETCORE_RANK", "0")
    full = Path(info.trial_dir) / f"traceback-run{info.run_id}-rank{rank}.txt"
    print(format_user_error(error, Path(info.model_dir), full=full), file=sys.stderr)
    if isinstance(error, PeerLostError):
        return EXIT_PEER_LOST
    if isinstance(error, InvalidHP):
        return EXIT_INVALID_HP
    if any(map(_is_out_of_memory, error_chain(error))):
        print(_out_of_memory_hint(info), file=sys.stderr)
        return EXIT_CONFIG
    if isinstance(error, NotANumberError | ConfigError):
        return EXIT_CONFIG
    return EXIT_CONFIG if not has_begun and isinstance(error, _CANNOT_HEAL) else EXIT_ERROR


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether a framework ran out of memory; each has its own error class for that."""
    name = type(error).__name__
    known = isinstance(error, MemoryError) or name in _OUT_OF_MEMORY
    known = known or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None)
    return known and _NO_SPACE not in str(error)


def _out_of_memory_hint(info: TrialInfo) -> str:
    size = info.hparams.get("global_batch_size")
    given = "" if size is None else f" with hyperparameters.global_batch_size {size}"
    return (
        f"The memory was not enough{given}. Set a smaller batch size; "
        "optimizations.aggregation_frequency adds the gradients of several small batches up."
    )


def _run_script(entrypoint: str | list[str]) -> int:
    """Run a command as the trial; signals are passed on to it."""
    environment = read_environment()
    keep = () if environment.channel_fd is None else (environment.channel_fd,)
    # "python3 train.py" means this environment's Python, whether it was activated or not.
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment.search_path}"
    command = _split_command(entrypoint, path) if isinstance(entrypoint, str) else list(entrypoint)
    process = subprocess.Popen(command, pass_fds=keep, env=child_environment({"PATH": path}))
    for number in find_stop_signals():
        signal.signal(number, lambda received, _frame: process.send_signal(received))
    code = process.wait()
    return code if code >= 0 else 128 - code


def _split_command(command: str, path: str) -> list[str]:
    """Return what to start for a shell command: the program itself where a shell adds nothing.

    A shell in between would be ended by a signal that the program, which is to save a checkpoint
    first, would then not get.
    """
    needs_shell = _SHELL_CHARACTERS & set(command) or "=" in command.partition(" ")[0]
    words = [] if needs_shell else command.split()
    # A word that is no program may be built into the shell.
    return words if words and shutil.which(words[0], path=path) else ["sh", "-c", command]


def _show_messages() -> None:
    """Show what detcore and its plugins say; the user's own logging is left alone."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("detcore")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False


def _end_with_runner(channel_fd: int) -> None:
    """Kill this process group when the runner's end of the channel closes.

    A worker that outlived its runner would keep writing alongside the one that resumes its trial.
    The end of the channel is noticed without reading, because others read the runner's answers.
    """
    poll = select.poll()
    poll.register(channel_fd, select.POLLRDHUP)

    def wait() -> None:
        poll.poll()
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, name="detcore-leash", daemon=True).start()


if __name__ == "__main__":
    # Until the trial's context heeds it there is nothing to save, and nothing to tell: without a
    # handler the process ends as it would by KeyboardInterrupt, but for the traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["--fork-server"]:
        from detcore.launch.fork_server import serve

        # It returns in the workers that it forks.
        sys.exit(_main_forked(serve(int(sys.argv[2]), sys.argv[3:])))
    sys.exit(main())
