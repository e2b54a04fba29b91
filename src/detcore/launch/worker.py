"""The worker's entry point: ``python -m detcore.launch.worker``, started by a launcher.

With the number of a socket as its argument it forks workers, and with ``early`` and modules it
waits for its trial; see `detcore.launch._warm`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import logging
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from detcore._signals import find_stop_signals
from detcore.contract.errors import (
    ConfigError,
    InvalidExperimentError,
    InvalidHP,
    NotANumberError,
    PeerLostError,
    PluginConflictError,
    PluginNotFoundError,
    RunError,
    ScheduleError,
)
from detcore.environment import child_environment, read_environment, read_variables
from detcore.launch._exit_codes import (
    EXIT_COME_BACK,
    EXIT_CONFIG,
    EXIT_ERROR,
    EXIT_INVALID_HP,
    EXIT_PEER_LOST,
)

if TYPE_CHECKING:
    from detcore.contract.values import TrialInfo
    from detcore.core import Context
    from detcore.distributed import DistributedContext
    from detcore.environment import Environment
    from detcore.hooks import PluginManager

__all__ = [
    "EXIT_COME_BACK",
    "EXIT_CONFIG",
    "EXIT_ERROR",
    "EXIT_INVALID_HP",
    "is_trial_class",
    "main",
]

# Of PyTorch and TensorFlow, whose full disk has the same class.
_OUT_OF_MEMORY = ("OutOfMemoryError", "ResourceExhaustedError")
_NO_SPACE = "No space left"
# PyTorch has no class for the memory of the machine, nor for all faults of CUDA, and JAX one class
# for all that its compiler says.
_NO_MEMORY = re.compile("can't allocate memory|out of memory|RESOURCE_EXHAUSTED")
_LEASH = "detcore-leash"
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


def main(plugins: PluginManager | None = None) -> int:
    """Run the trial that the environment names; return the process's exit code.

    Args:
        plugins: The plugins, if they are loaded already.
    """
    environment = read_environment()
    if environment.channel_fd is not None:
        _end_with_runner(environment.channel_fd)
    return _run(environment, plugins)


def _main_early(modules: Sequence[str]) -> int:
    """Import modules, then run the trial that the runner names."""
    channel_fd = read_environment().channel_fd
    assert channel_fd is not None
    _end_with_runner(channel_fd)
    from detcore.launch._warm import wait_for_trial

    wait_for_trial(modules, channel_fd)
    return _run(read_environment())


def _run(environment: Environment, plugins: PluginManager | None = None) -> int:
    from detcore import core
    from detcore.core._context import init_with_plugins

    # A trial of a script opens its own context; this process only watches over it.
    info = core.read_trial_info(environment)
    entrypoint = info.config["entrypoint"]
    if not is_trial_class(entrypoint):
        return _run_script(entrypoint)
    model_dir = Path(info.model_dir)
    sys.path.insert(0, str(model_dir))
    _show_messages()
    for problem in () if plugins is None else plugins.problems():
        logging.getLogger("detcore.plugins").warning("plugin %s", problem)
    opened: list[Context] = []
    try:
        with init_with_plugins(_place(environment), plugins) as context:
            opened.append(context)
            code = _run_trial_class(context, info, entrypoint)
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


def _end(code: int) -> NoReturn:
    """End this process as Python does, but leave the imported modules as they are.

    Finalizing them costs a forked worker half of its CPU time. Objects of the user's modules are
    finalized, and open files are flushed. While another thread is alive, Python does it all.
    """
    import ctypes

    from detcore.core import read_trial_info

    # As Py_FinalizeEx does.
    threading._shutdown()  # type: ignore[attr-defined]  # typeshed does not have it
    atexit._run_exitfuncs()
    if any(each.name != _LEASH for each in threading.enumerate()[1:]):
        sys.exit(code)
    folder = os.path.join(read_trial_info(read_environment()).model_dir, "")
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if str(names.get("__file__")).startswith(folder):
            names.clear()
    gc.collect()
    for each in gc.get_objects():
        if issubclass(type(each), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with contextlib.suppress(OSError, ValueError):
                each.flush()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        sys.exit(code)
    # Unlike os._exit, this runs what libraries written in C have registered.
    ctypes.PyDLL(None).exit(code)
    raise AssertionError


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


def is_trial_class(entrypoint: object) -> bool:
    """Whether an entrypoint names a class rather than a command.

    That is ``module:Class``, or ``folder/file.py:Class``.
    """
    if not isinstance(entrypoint, str):
        return False
    module, colon, name = entrypoint.rpartition(":")
    if not colon or not name.isidentifier():
        return False
    if module.endswith(".py") and not _SHELL_CHARACTERS & set(module) and " " not in module:
        return True
    return all(map(str.isidentifier, module.split(".")))


def _run_trial_class(context: Context, info: TrialInfo, entrypoint: str) -> int:
    from detcore.trial import import_trial_class, run_trial

    if info.settings is None:
        raise RunError(
            "the trial's file has no settings.\n"
            "A launcher hands on the whole TrialInfo that it is given."
        )
    trial_class = import_trial_class(entrypoint, Path(info.model_dir))
    outcome = run_trial(context, trial_class, info.settings)
    return EXIT_COME_BACK if outcome.is_preempted else 0


def _tell_error(error: Exception, info: TrialInfo, *, has_begun: bool) -> int:
    from detcore.launch._traceback import error_chain, format_user_error

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

    threading.Thread(target=wait, name=_LEASH, daemon=True).start()


if __name__ == "__main__":
    # Until the trial's context heeds it there is nothing to save, and nothing to tell: without a
    # handler the process ends as it would by KeyboardInterrupt, but for the traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["early"]:
        _end(_main_early(sys.argv[2:]))
    if len(sys.argv) > 1:
        from detcore.launch._warm import serve

        _end(main(serve(int(sys.argv[1]))))  # it returns in the workers that it forks
    _end(main())
