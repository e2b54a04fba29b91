"""A process that has imported the modules that trials need, and forks a worker for each trial.

It imports modules and asks plugins what they register. It runs no code of the user, and no
framework's runtime. `serve` is what runs inside it; `detcore.launch._warm_parent` is the runner's
side. They speak over a socket that keeps messages apart: JSON objects, with descriptors along. The
runner asks, this process answers:

``{"import": ["module" | "module:attribute", ...]}``
    ``{"unfit": null | reason}``, once they are there.
``{"set": {name: value}, "unset": [name], "cwd": folder, "descriptors": [number]}``, with standard
output, standard error, and the descriptors that have these numbers in the runner
    ``{"pid": number}``, or ``{"error": reason}``. The worker waits for ``{"go": true}``, which is
    not answered, and ends if it does not come.
``{"reap": pid}``
    ``{"code": number}``, of a worker that has ended; negative: the signal that killed it.

A worker that was started early (`detcore.launch._early`) does not fork: `wait_for_trial` imports
the modules and becomes the worker of the trial that the runner names.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.environment import change_environment, read_environment
from detcore.launch._exit_codes import EXIT_ERROR

if TYPE_CHECKING:
    from detcore.hooks import PluginManager

__all__ = [
    "MAX_MESSAGE_BYTES",
    "own_variables",
    "send_message",
    "serve",
    "shared_variables",
    "wait_for_trial",
]

MAX_MESSAGE_BYTES = 1 << 17
# Its value is the number of a descriptor.
_CHANNEL = "DETCORE_CHANNEL_FD"
# They differ by trial. Variables read only once a framework's runtime starts may differ as well.
_OWN_VARIABLES = frozenset(
    {
        _CHANNEL,
        "DETCORE_TRIAL_INFO",
        "DETCORE_JOB_KEY",
        "DETCORE_TOKEN",
        "CUDA_VISIBLE_DEVICES",
    }
)

_MAX_DESCRIPTORS = 64
_STDOUT, _STDERR = 1, 2
_DEVICES = Path("/dev")
# Open in every process, or of no matter.
_HARMLESS_DEVICES = frozenset({"null", "zero", "full", "random", "urandom", "tty"})


def serve(fd: int) -> PluginManager:
    """Fork workers until the runner is gone. Returns in each worker, and only there.

    Args:
        fd: This process's end of the socket.

    Returns:
        The plugins, loaded before the fork; their problems are not reported yet.
    """
    link = socket.socket(fileno=fd)
    try:
        message, _ = _receive(link)
        unfit, plugins = _prepare(message["import"])
        _answer(link, unfit=unfit)
        while True:
            message, descriptors = _receive(link)
            if "reap" in message:
                _answer(link, code=_reap(message["reap"]))
            elif _fork_worker(link, message, descriptors):
                return plugins
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # Exit handlers of the imported modules run in the workers, not here.
        os._exit(0)


def _receive(link: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, descriptors, flags, _ = socket.recv_fds(link, MAX_MESSAGE_BYTES, _MAX_DESCRIPTORS)
    if not data:
        raise EOFError
    if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        raise BrokenPipeError  # the runner sees this process end, and starts workers by itself
    message: dict[str, Any] = json.loads(data)
    return message, descriptors


def _answer(link: socket.socket, **fields: object) -> None:
    link.send(json.dumps(fields).encode())


def _prepare(names: Sequence[str]) -> tuple[str | None, PluginManager]:
    """Import modules and load plugins; return why this process must not fork, or None, and them."""
    from detcore.hooks import PluginManager

    plugins = PluginManager(read_environment())
    failed = _import(names)
    if failed is not None:
        return failed, plugins
    plugins.frameworks()
    plugins.storage_types()
    # Libraries that know how to fork, such as OpenBLAS, end their idle threads before a fork and
    # start them again where they are needed. Those whose threads are still there do not.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    gc.collect()
    gc.freeze()  # or the collector of each worker would copy all pages it looks at
    return _why_unfit(), plugins


def _import(names: Sequence[str]) -> str | None:
    """Import modules; return why one of them cannot be imported, or None."""
    gc.disable()  # an import makes many objects, and next to no garbage
    try:
        for name in names:
            module, colon, attribute = name.partition(":")
            try:
                found = importlib.import_module(module)
                if colon:
                    getattr(found, attribute)
            except Exception as error:  # noqa: BLE001  (the worker that imports it by itself tells)
                return f"{name} cannot be imported: {type(error).__name__}: {error}"
    finally:
        gc.enable()
    return None


def wait_for_trial(names: Sequence[str], channel_fd: int) -> None:
    """Import modules, and become the worker of the trial that the runner names then.

    Args:
        names: The modules.
        channel_fd: This process's end of its channel.
    """
    failed = _import(names)
    # The collector has to look at the trial's objects only. Modules stay to the end, where looking
    # at all objects of TensorFlow's would take most of the last second.
    gc.freeze()
    with socket.socket(fileno=os.dup(channel_fd)) as link:
        try:
            message, descriptors = _receive(link)
        except (EOFError, ConnectionResetError):  # the runner is gone
            os._exit(EXIT_ERROR)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    change_environment({**message["set"], _CHANNEL: str(channel_fd)}, message["unset"])
    if failed is not None:
        # The trial's own import tells the error, in a process that has imported nothing.
        os.execv(sys.executable, [sys.executable, "-m", "detcore.launch.worker"])
    del sys.argv[1:]


def own_variables(environment: Mapping[str, str]) -> dict[str, object]:
    """Return the changes that make variables shared by trials those of one trial, as a message."""
    return {
        "set": {name: environment[name] for name in _OWN_VARIABLES & set(environment)},
        "unset": sorted(_OWN_VARIABLES - set(environment)),
    }


def shared_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that all trials of an experiment have."""
    return {name: value for name, value in environment.items() if name not in _OWN_VARIABLES}


def send_message(
    link: socket.socket, message: Mapping[str, object], descriptors: Sequence[int] = ()
) -> None:
    """Send a message, with descriptors."""
    socket.send_fds(link, [json.dumps(message).encode()], descriptors)


def _why_unfit() -> str | None:
    """Return why a forked worker might not work, or None."""
    threads = [_thread_name(task) for task in Path("/proc/self/task").iterdir()]
    if len(threads) > 1 or threading.active_count() > 1:
        return f"it has {len(threads)} threads: {', '.join(threads)}"
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = entry.readlink()
            if target.is_relative_to(_DEVICES) and not _is_harmless(target):
                return f"{target} is open"
    return None


def _is_harmless(device: Path) -> bool:
    folders = ("pts", "shm")
    return device.name in _HARMLESS_DEVICES or device.relative_to(_DEVICES).parts[0] in folders


def _thread_name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has just ended
        return "?"


def _fork_worker(
    link: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int]
) -> bool:
    """Fork a worker; return whether this is the worker."""
    unfit = _why_unfit()
    if unfit is not None:
        _close(descriptors)
        _answer(link, error=unfit)
        return False
    go_read, go_write = os.pipe()
    ready_read, ready_write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError as error:
        _close([*descriptors, go_read, go_write, ready_read, ready_write])
        _answer(link, error=str(error))
        return False
    if pid == 0:
        link.close()
        _close([go_write, ready_read])
        _become_worker(message, descriptors, ready_write, go_read)
        return True
    _close([*descriptors, go_read, ready_write])
    os.read(ready_read, 1)  # returns nothing, once the worker leads a separate session
    _close([ready_read])
    _answer(link, pid=pid)
    try:
        answer, _ = _receive(link)
        if answer.get("go"):
            with contextlib.suppress(BrokenPipeError):
                os.write(go_write, b"g")
    finally:
        _close([go_write])
    return False


def _become_worker(
    message: Mapping[str, Any], descriptors: Sequence[int], ready_fd: int, go_fd: int
) -> None:
    """Make this process equivalent to a worker that was started directly."""
    os.setsid()
    _close([ready_fd])
    if os.read(go_fd, 1) != b"g":
        os._exit(0)  # the runner gave it up, or is gone
    _close([go_fd])
    stdout, stderr, *others = descriptors
    os.dup2(stdout, _STDOUT)
    os.dup2(stderr, _STDERR)
    _close([stdout, stderr])
    for descriptor in others:
        os.set_inheritable(descriptor, True)
    here = dict(zip(message["descriptors"], others, strict=True))
    variables = dict(message["set"])
    if variables.get(_CHANNEL):
        variables[_CHANNEL] = str(here[int(variables[_CHANNEL])])
    change_environment(variables, message["unset"])
    os.chdir(message["cwd"])
    del sys.argv[1:]
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _reap(pid: int) -> int:
    # Until its status is collected, its number belongs to no other group.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
