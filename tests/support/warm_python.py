"""Python processes that start in milliseconds, forked from a process with the required imports.

Most tests that start a process would wait for imports: 0.6 s of CPU for a worker, 3 s for
TensorFlow. `install` makes `subprocess.Popen` ask a *zygote* for each Python process that it can
provide: a process that has imported detcore, its plugins and the framework, runs nothing else, and
forks. The forked process has the parent, process id, descriptors, session, variables, command line
and exit code of a process that was started as usual. If its command starts processes in turn, such
as the workers of ``detcore run``, it forks a zygote for them first. It ends as soon as its program
and what that left to run at exit have ended: Python would take all imported modules apart, which
costs 0.13 s of CPU, and 0.6 s with PyTorch.

Started as usual ("cold") are other programs; Python with options other than ``-W error``, ``-c``
included; processes on a terminal; processes with variables that change how Python or a framework
starts, or with a ``PYTHONPATH`` that holds other versions of imported packages; and all processes
of a test with the marker ``cold``. Users start their processes cold, so each plugin keeps tests
with that marker.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import random
import resource
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Zygote", "cold", "install", "uninstall", "warm_commands"]

# Python, the C library and frameworks read these only when they start or are imported.
_READ_AT_START = (
    "PYTHON", "LD_", "LC_", "LANG", "TZ", "TF_", "KERAS_", "XLA_", "OMP_", "MKL_", "OPENBLAS_",
    "CUDA_", "NUMEXPR_", "GRPC_", "MALLOC_", "JAX_",
)  # fmt: skip
# TensorFlow reads its number of threads when it runs first; `_share_cores` applies the others.
_ALLOWED_TO_DIFFER = frozenset({
    "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
})  # fmt: skip
# The programs and commands that start further processes.
_PARENT_MODULES = (
    "detcore.launch.worker",
    "detcore_horovod.worker_agent",
    "detcore_server.jobs.submission_runner",
)
_WARM_PACKAGES = frozenset({"detcore", "detcore_replay"})
_PARENT_SCRIPTS = ("doc_driver.py",)
_PARENT_COMMANDS = frozenset({"run", "launch", "serve", "replay", "diverge", "check-resume"})
# Imports that the zygote has made are not checked; tests with ``-c`` check those.
_STRICT = ["-W", "error"]
_PR_SET_CHILD_SUBREAPER = 36
_MAX_MESSAGE_BYTES = 1 << 20
_MAX_DESCRIPTORS = 60
# Size of the memory in which /proc finds the variables and the command line of a forked process.
_ROOM_BYTES = 16384
_ROOM_VARIABLE = "ZYGOTE_ROOM"
_ANSWER_TIMEOUT_S = 60.0
# Importing TensorFlow on a busy machine.
_START_TIMEOUT_S = 300.0
# Descriptors from here on are free in every test.
_AWAY = 600
_LIMITS = (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CORE)


class Zygote:
    """Connection of this process to its child process, the zygote.

    Args:
        link: The socket.
        variables: The variables that the zygote was started with.
        imported: Packages that it has imported; a process whose path holds other packages of these
            names is started cold.
    """

    def __init__(
        self, link: socket.socket, variables: Mapping[str, str], imported: Sequence[str]
    ) -> None:
        self.link: socket.socket | None = link
        self.variables = dict(variables)
        self.imported = list(imported)
        self.session = os.getsid(0)
        self.parent = os.getpid()
        self.lock = threading.Lock()

    def fork(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> int | None:
        """Return the process id of a new child process, or None if the zygote has exited."""
        with self.lock:
            if self.link is None:
                return None
            # The intermediate process exits immediately, which makes the new process our child.
            _be_subreaper(True)
            try:
                socket.send_fds(self.link, [json.dumps(message).encode()], descriptors)
                answer = self.link.recv(64)
            except OSError:
                answer = b""
            finally:
                _be_subreaper(False)
            if not answer:
                self.link.close()
                self.link = None
                return None
            return int(answer)


_zygote: Zygote | None = None
_begin_lock = threading.Lock()
_preload: list[str] = []
_is_cold = False
_cold_start = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def install(preload: Sequence[str]) -> None:
    """Make `subprocess.Popen` of this process ask a zygote, which is started when it is needed.

    Args:
        preload: Modules that it imports; those that cannot be imported are left out.
    """
    _preload[:] = preload
    subprocess.Popen._execute_child = _start  # type: ignore[attr-defined]


def uninstall() -> None:
    """Restore normal process starts, and end the zygote."""
    global _zygote
    subprocess.Popen._execute_child = _cold_start  # type: ignore[attr-defined]
    if _zygote is not None and _zygote.link is not None:
        _zygote.link.close()
    _zygote = None
    _preload.clear()


def _begin() -> Zygote:
    ours, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, __file__, str(child_socket.fileno())]
    with child_socket, cold():
        subprocess.Popen(
            [*command, "-" * _ROOM_BYTES],
            env={**variables, _ROOM_VARIABLE: "-" * _ROOM_BYTES},
            pass_fds=(child_socket.fileno(),),
            stdin=subprocess.DEVNULL,
        ).returncode = 0  # the zygote exits with this process
    ours.settimeout(_START_TIMEOUT_S)
    ours.send(json.dumps(_preload).encode())
    imported = json.loads(ours.recv(_MAX_MESSAGE_BYTES))
    ours.settimeout(_ANSWER_TIMEOUT_S)
    return Zygote(ours, variables, imported)


@contextlib.contextmanager
def cold() -> Iterator[None]:
    """Start all processes normally in this block, including their child processes."""
    global _is_cold
    before, _is_cold = _is_cold, True
    try:
        yield
    finally:
        _is_cold = before


def _start(
    self: subprocess.Popen[Any], args: Any, executable: Any, preexec_fn: Any, close_fds: bool,
    pass_fds: Any, cwd: Any, env: Any, startupinfo: Any, creationflags: Any, shell: bool,
    p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
    restore_signals: bool, gid: Any, gids: Any, uid: Any, umask: int, start_new_session: bool,
    process_group: int,
) -> None:  # fmt: skip
    """Stand in for `subprocess.Popen._execute_child` of Python 3.11."""
    global _zygote
    is_usual = (
        not _is_cold and executable is None and preexec_fn is None and close_fds and not shell
        and gid is None and gids is None and uid is None and umask == -1 and process_group == -1
    )  # fmt: skip
    if is_usual and _zygote is None and _preload and _kind(_words(args)[0], *_place_of(cwd, env)):
        with _begin_lock:
            _zygote = _zygote or _begin()
    streams = [
        0 if p2cread == -1 else p2cread,
        1 if c2pwrite == -1 else c2pwrite,
        2 if errwrite == -1 else errwrite,
    ]
    pid = None
    if is_usual and _zygote is not None:
        message = _message(_zygote, args, cwd, env, streams, start_new_session)
        if message is not None:
            message["descriptors"] = [int(fd) for fd in pass_fds]
            pid = _zygote.fork(message, [*streams, *message["descriptors"]])
    if pid is None:
        _cold_start(
            self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
            creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
            restore_signals, gid, gids, uid, umask, start_new_session, process_group,
        )  # fmt: skip
        return
    self._child_created = True  # type: ignore[attr-defined]
    self.pid = pid
    self._close_pipe_fds(  # type: ignore[attr-defined]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
    )


def _message(
    zygote: Zygote, args: Any, cwd: Any, env: Any, streams: list[int], start_new_session: bool
) -> dict[str, Any] | None:
    """Return the request to the zygote, or None if the process must be started as usual."""
    words, is_strict = _words(args)
    variables, folder = _place_of(cwd, env)
    kind = _kind(words, variables, folder)
    if kind is None or not os.path.isdir(folder) or len(words) > 500:
        return None
    read_at_start = {
        name
        for name in {*variables, *zygote.variables}
        if name.startswith(_READ_AT_START) and name not in _ALLOWED_TO_DIFFER
    }
    if any(variables.get(name) != zygote.variables.get(name) for name in read_at_start):
        return None
    path = [entry for entry in variables.get("PYTHONPATH", "").split(os.pathsep) if entry]
    first = os.path.dirname(os.path.realpath(os.path.join(folder, words[1])))
    path_entries = [*path, folder if kind == "module" else first]
    if any(_shadows(entry, zygote.imported) for entry in path_entries):
        return None
    if any(os.isatty(stream) for stream in streams):
        return None
    # In a fork of its parent: its processes would be the parent's children.
    if os.getpid() != zygote.parent:
        return None
    if not start_new_session and os.getsid(0) != zygote.session:
        return None
    limits = [resource.getrlimit(limit) for limit in _LIMITS]
    return {
        "kind": kind, "words": words, "is_strict": is_strict, "cwd": folder,
        "variables": variables, "path": path, "setsid": start_new_session,
        "group": os.getpgrp(), "limits": limits,
        "ignored": [
            number for number in signal.valid_signals()
            if signal.getsignal(number) is signal.SIG_IGN
        ],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }  # fmt: skip


def _place_of(cwd: Any, env: Any) -> tuple[dict[str, str], str]:
    """Return the variables and the folder that a process is started with."""
    variables = {
        os.fsdecode(name): os.fsdecode(value) for name, value in (env or os.environ).items()
    }
    return variables, os.path.abspath(os.fsdecode(cwd or "."))


def _words(args: Any) -> tuple[list[str], bool]:
    """Return the words of a command without ``-W error``, and whether it had that option."""
    if isinstance(args, (str, bytes, os.PathLike)):
        return [os.fsdecode(args)], False
    words = [os.fsdecode(word) for word in args]
    is_strict = words[1:3] == _STRICT
    return ([words[0], *words[3:]] if is_strict else words), is_strict


def _kind(words: list[str], variables: Mapping[str, str], folder: str) -> str | None:
    if len(words) < 2 or not os.path.basename(words[0]).startswith("python"):
        return None
    program = shutil.which(words[0], path=variables.get("PATH", os.defpath))
    if program is None or os.path.dirname(program) != os.path.dirname(sys.executable):
        return None
    # Ray's processes start threads of gRPC, whose state no other process may have touched.
    # Programs of detcore_testing are never warm, because they check imported modules.
    if words[1] == "-m" and len(words) > 2 and words[2].split(".")[0] in _WARM_PACKAGES:
        return "module"
    is_script = words[1].endswith(".py") and os.path.isfile(os.path.join(folder, words[1]))
    return "script" if is_script else None


def _shadows(entry: str, imported: Sequence[str]) -> bool:
    try:
        names = {name.partition(".")[0] for name in os.listdir(entry)}
    except OSError:
        return False
    return not names.isdisjoint(imported)


def _be_subreaper(on: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


@contextlib.contextmanager
def warm_commands(folder: Path) -> Iterator[None]:
    """Provide warm ``detcore`` and ``python`` commands for shells in this block.

    A shell starts programs, not `subprocess.Popen`. It finds small stand-ins first on its path,
    which ask this process to start the command with their streams, variables and folder, and end
    as it ends.

    Args:
        folder: Where the stand-ins and the socket go; made if it does not exist.
    """
    if _zygote is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    address = str(folder / "warm.sock")
    for name, words in (("detcore", ["-m", "detcore"]), ("python", []), ("python3", [])):
        stand_in = folder / name
        command = [sys.executable, *words]
        stand_in.write_text(_STAND_IN.format(python=sys.executable, address=address, words=command))
        stand_in.chmod(0o755)
    path = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{folder}{os.pathsep}{path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        threading.Thread(target=_accept, args=(listening,), daemon=True).start()
        try:
            yield
        finally:
            os.environ["PATH"] = path
            listening.shutdown(socket.SHUT_RDWR)


_STAND_IN = """#!{python} -IS
import json, os, signal, socket, sys
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect({address!r})
words = [*{words!r}, *sys.argv[1:]]
message = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(link, [message], [0, 1, 2])
pid = int(link.recv(64))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = int(link.recv(64))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def _accept(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            link, _ = listening.accept()
            threading.Thread(target=_run_for, args=(link,), daemon=True).start()


def _run_for(link: socket.socket) -> None:
    """Run the command that a stand-in requests. Kill it if the stand-in is killed."""
    with link:
        data, streams, _, _ = socket.recv_fds(link, _MAX_MESSAGE_BYTES, 3)
        words, folder, variables = json.loads(data)
        stdin, stdout, stderr = streams
        process = subprocess.Popen(
            words, cwd=folder, env=variables, stdin=stdin, stdout=stdout, stderr=stderr
        )
        for stream in streams:
            os.close(stream)
        link.send(str(process.pid).encode())
        threading.Thread(target=_kill_with, args=(link, process), daemon=True).start()
        code = process.wait()
        with contextlib.suppress(OSError):
            link.send(str(code).encode())


def _kill_with(link: socket.socket, process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if not link.recv(1):
            process.kill()


# The functions below run inside a zygote.


def main() -> None:
    """Import, and fork; return in each forked process after its program has ended."""
    atexit.register(_end)
    link = socket.socket(fileno=int(sys.argv[1]))
    base = sys.path[1:]
    _import(json.loads(link.recv(_MAX_MESSAGE_BYTES)))
    standard = {*sys.stdlib_module_names, "__main__", "sitecustomize"}
    imported = {name.partition(".")[0] for name in sys.modules} - standard - {"warm_python"}
    link.send(json.dumps(sorted({*imported, "sitecustomize", "usercustomize"})).encode())
    _serve(link, base, sorted(imported))


def _import(names: Sequence[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            # FastAPI raises RuntimeError where python-multipart is not installed, and detcore_keras
            # a LookupError where Keras's back end is not.
            with contextlib.suppress(ImportError, RuntimeError, LookupError):
                importlib.import_module(name)
        # OpenBLAS ends its idle threads before a fork, and starts them where they are needed.
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    gc.collect()
    gc.freeze()


def _serve(link: socket.socket, base: list[str], imported: list[str]) -> None:
    """Fork until the other end is closed. Returns in the forked processes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(link, _MAX_MESSAGE_BYTES, _MAX_DESCRIPTORS)
        if not data:
            os._exit(0)
        message = json.loads(data)
        ready_read, ready_write = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid == 0:
                link.close()
                os.close(ready_read)
                _become(message, descriptors, ready_write, base, imported)
                return
            os.write(ready_write, str(pid).encode())
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
        os.close(ready_write)
        os.waitpid(between, 0)
        pid_text = os.read(ready_read, 32)
        os.read(ready_read, 1)  # returns when the process has its session and its descriptors
        os.close(ready_read)
        try:
            link.send(pid_text)
        except OSError:
            os._exit(0)


def _become(
    message: dict[str, Any],
    descriptors: list[int],
    ready: int,
    base: list[str],
    imported: list[str],
) -> None:
    """Turn this process into the requested one, and run its program."""
    global _nested, _zygote
    if message["setsid"]:
        os.setsid()
    else:
        with contextlib.suppress(OSError):
            os.setpgid(0, message["group"])
    ready = _place(descriptors, message["descriptors"], ready)
    for limit, values in zip(_LIMITS, message["limits"], strict=True):
        with contextlib.suppress(ValueError):
            resource.setrlimit(limit, values)
    os.chdir(message["cwd"])
    os.environ.clear()
    os.environ.update(message["variables"])
    _show(message["words"], message["variables"])
    words = message["words"][2:] if message["kind"] == "module" else message["words"][1:]
    if message["kind"] == "module":
        first = message["cwd"]
    else:
        first = os.path.dirname(os.path.realpath(words[0]))
    sys.path[:] = [first, *message["path"], *base]
    sys.argv[:] = words
    importlib.invalidate_caches()
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    _share_cores(message["variables"].get("OMP_NUM_THREADS", ""))
    _zygote = None
    is_parent = words[0] in _PARENT_MODULES or os.path.basename(words[0]) in _PARENT_SCRIPTS
    if is_parent or (words[0] == "detcore" and set(words[1:2]) <= _PARENT_COMMANDS):
        ours, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _nested = os.fork()
        if _nested == 0:
            ours.close()
            os.close(ready)
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            _close_all_but({child_socket.fileno()})
            _serve(child_socket, base, imported)
            return
        child_socket.close()
        ours.settimeout(_ANSWER_TIMEOUT_S)
        _zygote = Zygote(ours, message["variables"], imported)
        subprocess.Popen._execute_child = _start  # type: ignore[attr-defined]
    else:
        subprocess.Popen._execute_child = _cold_start  # type: ignore[attr-defined]
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number in message["ignored"]:
            signal.signal(number, signal.SIG_IGN)
        elif number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        elif signal.getsignal(number) is signal.SIG_IGN and number not in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, message["blocked"])
    os.close(ready)
    if message["is_strict"]:
        sys.warnoptions.append("error")
        warnings.simplefilter("error")
    _run_and_note(message["kind"], words)


_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def _share_cores(num_threads: str) -> None:
    """Give the numeric libraries the number of threads that they read when they were loaded."""
    if not num_threads.isdecimal():
        return
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(int(num_threads))
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if "openblas" in os.path.basename(path):
            library = ctypes.CDLL(f"/{path}")
            for name in _SET_NUM_THREADS:
                if hasattr(library, name):
                    getattr(library, name)(int(num_threads))
            return


# OpenBLAS in NumPy 2, in NumPy 1.26, and without a prefix.
_SET_NUM_THREADS = (
    "scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads",
)  # fmt: skip


def _place(descriptors: list[int], numbers: list[int], ready: int) -> int:
    """Renumber descriptors as the process expects, and return the new number of `ready`."""
    # First out of the way of each other, then where they belong.
    away = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _AWAY) for fd in (*descriptors, ready)]
    for number, fd in zip((0, 1, 2, *numbers), away, strict=False):
        os.dup2(fd, number)
    _close_all_but({*numbers, away[-1]})
    return away[-1]


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _show(words: Sequence[str], variables: Mapping[str, str]) -> None:
    """Write command line and variables where Linux reads them for ``/proc``."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arg_start, arg_end, env_start, env_end = (int(field) for field in fields[45:49])
    text = "".join(f"{word}\0" for word in words)
    _write(arg_start, arg_end, text)
    # The marks of tests come first, in case the rest does not fit.
    ordered = sorted(variables.items(), key=lambda item: not item[0].startswith("DETCORE_"))
    _write(env_start, env_end, "".join(f"{name}={value}\0" for name, value in ordered))


def _write(start: int, end: int, text: str) -> None:
    data = os.fsencode(text)[: end - start - 1]
    ctypes.memmove(start, data.ljust(end - start, b"\0"), end - start)


# With which `_end` ends a forked process, when its program has ended.
_exit_code: int | None = None
# The zygote that a forked process started for its own processes.
_nested = 0


def _run_and_note(kind: str, words: list[str]) -> None:
    global _exit_code
    try:
        _run(kind, words)
    except SystemExit as error:
        code = 0 if error.code is None else error.code
        _exit_code = code & 0xFF if isinstance(code, int) else 1
        raise
    except Exception:
        _exit_code = 1
        raise
    _exit_code = 0


def _end() -> None:
    """End a forked process before Python takes the imported modules apart.

    Registered first, it runs last: after all other threads and functions that run at exit. What
    the program still holds is finalized, which shows files that it left open. An interrupt, and
    streams that cannot be flushed, are left to Python.
    """
    if _nested:
        # Left alone, it would become a child of a process that forks now, and stay a zombie.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, _nested, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            os.kill(_nested, signal.SIGKILL)
            os.waitpid(_nested, 0)
    if _exit_code is None:
        return
    if threading.active_count() == 1:
        sys.modules["__main__"].__dict__.clear()
    gc.collect()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return
    ctypes.CDLL(None).fflush(None)
    os._exit(_exit_code)


def _run(kind: str, words: list[str]) -> None:
    name = words[0]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    module.__dict__["__builtins__"] = __builtins__
    if kind == "module":
        sys.modules.pop(name, None)
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]
        return
    module.__dict__["__file__"] = name
    exec(compile(Path(name).read_bytes(), name, "exec"), module.__dict__)


if __name__ == "__main__":
    # Forked processes replace __main__, and this module's functions need its globals.
    sys.modules["warm_python"] = sys.modules["__main__"]
    main()
