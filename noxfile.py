# /// script
# dependencies = ["nox>=2025.2.9", "uv>=0.5"]
# ///
"""The one way to run everything; CI calls ``nox -s tests`` and nothing else.

The block above makes nox bring uv into an environment of its own, so that
``python3 -m pip install nox`` is all a fresh machine needs.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True

CORE = ["-e", "."]
STORAGE = ["-e", "plugins/storage"]
KERAS = ["-e", "plugins/keras"]
ESTIMATOR = ["-e", "plugins/estimator"]
HOROVOD_PLUGIN = ["-e", "plugins/horovod"]
OPTUNA = ["-e", "plugins/optuna"]
RAY = ["-e", "plugins/ray"]
TORCH = ["-e", "plugins/torch"]
REPORT = ["-e", "plugins/report"]
REPLAY = ["-e", "plugins/replay"]
SERVER = ["-e", "plugins/server"]
DETERMINED = ["-e", "plugins/determined"]
TESTING = ["-e", "plugins/testing"]
# Installed in every environment of tests: the core, and what stands beside it.
HOUSE = [
    *CORE, *STORAGE, *DETERMINED, *HOROVOD_PLUGIN, *REPLAY, *REPORT, *SERVER, *TESTING,
]  # fmt: skip
ESTIMATOR_EXAMPLES = "tests/examples/test_estimator_examples.py"
TORCH_EXAMPLES = "tests/examples/test_torch_examples.py"
ENVIRONMENTS = ("bare", "torch", "tensorflow-2.15", "tensorflow")
# Where a session that runs beside others writes.
LOGS = Path("build/logs")
# Each environment has folders of tests of its own.
TORCH_FAULTS = "plugins/replay/tests/test_torch_faults.py"
NOT_BARE = (
    "tests/examples", "tests/loops", "tests/example_plugins", "plugins/horovod/tests/with_horovod",
    TORCH_FAULTS,
)  # fmt: skip
DURATIONS = Path("build/durations")
NUM_SLOWEST = 30
# What tests start that is on no package index of Python's: a browser, and a proxy.
DEBIAN_PROGRAMS = {"chromium": "chromium", "nginx": "nginx-light"}
# More than there are cores, since tests wait for processes; a process that is done takes tests
# from the others.
AT_ONCE = ["--numprocesses=4", "--dist=worksteal"]
# Files in memory, for tests that wait for fsync a third of their time on a disk.
MEMORY_FILES = Path("/dev/shm")
MIN_MEMORY_BYTES = 8 << 30
# Horovod has no wheels; without these settings its build looks for every framework there is.
HOROVOD = "horovod==0.28.1"
HOROVOD_BUILD = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    # Its own choice is eight compilers, on any machine.
    "MAKEFLAGS": f"-j{os.cpu_count()}",
    "CMAKE_TOOLCHAIN_FILE": str(Path("tools/horovod.cmake").absolute()),
}
# Its CPU build is in an index of its own. A machine's configuration of pip may name one, and uv
# does not read that; what it needs is in the lock.
PYTORCH = (
    "torch==2.13.0", "torchdata==0.11.0", "accelerate==1.15.0", "lightning==2.6.6",
    "torchmetrics==1.9.0",
)  # fmt: skip
# The theme's advertisement of another tool, which is no warning about these pages.
PLAIN_MKDOCS = {"NO_MKDOCS_2_WARNING": "1"}
QUIET_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}

NEXT_STEPS = """
A {trial} (examples/{example}/model_def.py) was trained on scans of handwritten digits,
validated during training, and saved in checkpoints. The first line of its output names the
experiment and the trial.

Next commands (detcore is installed in {bin}):

  export PATH={bin}:$PATH
  detcore experiment list                   what was run
  detcore trial describe TRIAL              its metrics, with a plot
  detcore run examples/{example}/const.yaml
                                            again; press Ctrl-C in the middle,
                                            then: detcore run --resume ID
  detcore checkpoint list                   what was saved
"""


def install_locked(session: nox.Session, lock: str, *distributions: str) -> None:
    """Install the exact versions of a lock file, then our distributions without resolving.

    Python keeps what it compiled in all sessions, whatever the machine's settings are: each cold
    start of TensorFlow takes 11 seconds instead of 3 where it may not.
    """
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    session.install("-r", f"locks/{lock}.txt")
    session.install("--no-deps", *distributions)


def run_tests(
    session: nox.Session,
    name: str,
    *arguments: str,
    env: dict[str, str] | None = None,
    log: BinaryIO | None = None,
) -> None:
    """Run pytest.

    Args:
        session: The session.
        name: Names the file under ``build/durations`` that gets the duration of each test.
        arguments: Of pytest.
        env: Variables of its process.
        log: Gets what it prints, instead of the terminal.
    """
    durations = DURATIONS / f"{name}.jsonl"
    durations.parent.mkdir(parents=True, exist_ok=True)
    durations.unlink(missing_ok=True)
    options = ["-p", "no:cacheprovider", f"--durations-file={durations}", *arguments]
    if not any(argument.startswith("--soak") for argument in arguments):
        options.append("--soak=none")
    with temporary_folder() as folder:
        session.run("pytest", *options, env={"TMPDIR": folder, **(env or {})}, stdout=log)


@contextlib.contextmanager
def tests_beside(session: nox.Session, name: str, *arguments: str) -> Iterator[None]:
    """Run tests that wait most of the time beside those of the block, and show their output."""
    path = LOGS / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as log, ThreadPoolExecutor(max_workers=1) as pool:
            running = pool.submit(run_tests, session, name, *arguments, log=log)
            yield
            running.result()
    finally:
        print(path.read_text(errors="replace"))


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield a folder for temporary files, in memory where there is enough of it, and remove it."""
    memory = os.statvfs(MEMORY_FILES) if MEMORY_FILES.is_dir() else None
    large = memory and memory.f_bavail * memory.f_frsize >= MIN_MEMORY_BYTES
    usable = large and not memory.f_flag & os.ST_NOEXEC and os.access(MEMORY_FILES, os.W_OK)
    with tempfile.TemporaryDirectory(dir=MEMORY_FILES if usable else None, prefix="t") as folder:
        # A server that does not run as root looks for its files in there.
        os.chmod(folder, 0o711)
        yield folder


def half(session: nox.Session, index: int) -> str:
    """Return the option that divides the tests of a plugin between two versions of TensorFlow.

    ``nox -s tests`` runs each test with one of them, and ``nox -s soak`` with the other.
    """
    is_chosen = session.posargs and "--soak=only" not in session.posargs
    return "--half=all" if is_chosen else f"--half={index}/2"


def install_pytorch(session: nox.Session) -> None:
    """Install PyTorch's CPU build with pip, which reads where this machine gets it from."""
    session.run_install("python", "-m", "pip", "install", "--quiet", "--no-deps", *PYTORCH)


def install_horovod(session: nox.Session) -> None:
    """Build Horovod against the session's TensorFlow, with its cmake; needs a C++ compiler."""
    session.install("--no-deps", "--no-build-isolation", HOROVOD, env=HOROVOD_BUILD)


@nox.session
def quickstart(session: nox.Session) -> None:
    """Install detcore with Keras and train the digits example."""
    install_locked(session, "tensorflow", *CORE, *STORAGE, *KERAS, *REPORT)
    session.run(
        "detcore", "run", "examples/digits_keras/const.yaml", env=QUIET_TENSORFLOW, silent=False
    )
    print(NEXT_STEPS.format(bin=session.bin, trial="TFKerasTrial", example="digits_keras"))


@nox.session(name="quickstart-torch")
def quickstart_torch(session: nox.Session) -> None:
    """Install detcore with PyTorch and train the digits example."""
    install_locked(session, "torch", *CORE, *STORAGE, *TORCH, *REPORT)
    install_pytorch(session)
    session.run("detcore", "run", "examples/digits_torch/const.yaml", silent=False)
    print(NEXT_STEPS.format(bin=session.bin, trial="PyTorchTrial", example="digits_torch"))


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Everything that a commit must pass: lint, types, the site, and each environment's tests."""
    first, *later = ENVIRONMENTS
    start_preparing(later)
    for name in ("lint", "types", "docs", first, "prepared", *later, "slowest"):
        session.notify(name)


# The process that `tests` starts and `prepared` waits for.
preparing: list[subprocess.Popen[bytes]] = []


def start_preparing(environments: list[str]) -> None:
    """Install environments beside the sessions of one process, in the time that those leave."""
    LOGS.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "nox", "--install-only", "-s", *environments]
    with (LOGS / "prepare.log").open("wb") as log:
        preparing.append(
            subprocess.Popen(
                ["nice", "-n", "19", *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
    atexit.register(preparing[-1].terminate)


@nox.session(venv_backend="none")
def prepared(session: nox.Session) -> None:
    """Wait for the environments that ``tests`` installs beside its first sessions."""
    if preparing and preparing.pop().wait():
        print((LOGS / "prepare.log").read_text(errors="replace"))
        session.warn("an environment could not be installed; its session tries again")


@nox.session(venv_backend="none")
def soak(session: nox.Session) -> None:
    """All that ``tests`` leaves out: storms, kills at every point, the other TensorFlow."""
    for name in ENVIRONMENTS:
        session.notify(name, posargs=["--soak=only", *session.posargs])
    session.notify("slowest")


@nox.session(venv_backend="none")
def slowest(session: nox.Session) -> None:
    """Print what the tests of the last run took, by environment, and the slowest ones."""
    tests = []
    for path in sorted(DURATIONS.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        seconds, cpu = (sum(line[key] for line in lines) for key in ("seconds", "cpu"))
        print(f"{path.stem:24} {len(lines):5} tests {seconds:8.1f} s {cpu:8.1f} s of CPU")
        tests += [(line["seconds"], line["cpu"], path.stem, line["test"]) for line in lines]
    for seconds, cpu, name, test in sorted(tests, reverse=True)[:NUM_SLOWEST]:
        print(f"{seconds:7.1f} s {cpu:7.1f} s of CPU  {name}: {test}")


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: rules and layout."""
    session.install("-r", "locks/lint.txt")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict on the core, the plugins, the core's tests, the server's and the suites'."""
    install_locked(session, "types", *HOUSE, *KERAS, *ESTIMATOR, *OPTUNA, *RAY, *TORCH)
    session.run("mypy", "src/detcore", *map(str, sorted(Path("plugins").glob("*/src/detcore_*"))))
    session.run(
        "mypy", "tests", "plugins/determined/tests/routes", "plugins/server/tests",
        "plugins/horovod/tests", "plugins/testing/tests", "plugins/replay/tests",
        "--exclude", "tests/examples",
        env={"MYPYPATH": "src:tests/support:tests/toy_plugin:plugins/replay/tests"},
    )  # fmt: skip


@nox.session
def bare(session: nox.Session) -> None:
    """The core, the storage and the server with no framework; the page in a browser."""
    for program, package in DEBIAN_PROGRAMS.items():
        if not any(shutil.which(program, path=path) for path in (None, "/usr/sbin")):
            session.run("apt-get", "update", "-qq", external=True)
            session.run(
                "apt-get", "install", "-qq", "-y", "--no-install-recommends", package,
                external=True, env={"DEBIAN_FRONTEND": "noninteractive"},
            )  # fmt: skip
    install_locked(session, "bare", *HOUSE, *OPTUNA)
    run_tests(
        session, "bare", *AT_ONCE, "tests", "plugins/storage/tests", "plugins/testing/tests",
        "plugins/determined/tests", "plugins/horovod/tests", "plugins/replay/tests",
        "plugins/report/tests", "plugins/server/tests",
        *(f"--ignore={folder}" for folder in NOT_BARE), *session.posargs,
    )  # fmt: skip


@nox.session
def torch(session: nox.Session) -> None:
    """PyTorch trials; Ray clusters of several nodes; loops and example plugins."""
    install_locked(session, "torch", *HOUSE, *RAY, *TORCH)
    install_pytorch(session)
    # Tests of Ray wait for Ray most of the time; each file has a cluster of its own.
    with tests_beside(
        session, "ray", "--numprocesses=2", "--dist=loadfile", "plugins/ray/tests",
        "--ignore=plugins/ray/tests/test_horovod_on_ray.py", *session.posargs,
    ):  # fmt: skip
        run_tests(
            session, "torch", *AT_ONCE, "plugins/torch/tests", TORCH_FAULTS, TORCH_EXAMPLES,
            "tests/loops", "tests/example_plugins", "tests/docs/test_pages.py", "tests/benchmarks",
            *session.posargs,
        )  # fmt: skip


@nox.session(name="tensorflow-2.15")
def tensorflow_old(session: nox.Session) -> None:
    """Keras 2 and ``tf.estimator`` on TensorFlow 2.15, with Horovod."""
    install_locked(session, "tensorflow-2.15", *HOUSE, *KERAS, *ESTIMATOR, *RAY)
    install_horovod(session)
    run_tests(
        session, "keras-2", *AT_ONCE, "plugins/keras/tests", half(session, 0), "tests/benchmarks",
        "plugins/horovod/tests/with_horovod", "plugins/ray/tests/test_horovod_on_ray.py",
        *session.posargs, env=QUIET_TENSORFLOW,
    )  # fmt: skip
    run_tests(
        session, "estimator-2.15", *AT_ONCE, "plugins/estimator/tests", half(session, 0),
        ESTIMATOR_EXAMPLES, "tests/docs/test_pages.py", *session.posargs, env=QUIET_TENSORFLOW,
    )  # fmt: skip


@nox.session
def tensorflow(session: nox.Session) -> None:
    """Keras 3 and estimators without ``tf.estimator`` on the newest TensorFlow."""
    install_locked(session, "tensorflow", *HOUSE, *KERAS, *ESTIMATOR)
    run_tests(
        session, "keras-3", *AT_ONCE, "plugins/keras/tests", half(session, 1), "tests/examples",
        "tests/benchmarks", f"--ignore={ESTIMATOR_EXAMPLES}", f"--ignore={TORCH_EXAMPLES}",
        "tests/docs/test_pages.py", *session.posargs, env=QUIET_TENSORFLOW,
    )  # fmt: skip
    run_tests(
        session, "estimator", *AT_ONCE, "plugins/estimator/tests", half(session, 1),
        f"{ESTIMATOR_EXAMPLES}::test_digits_reach_97_percent_in_a_minute", *session.posargs,
        env=QUIET_TENSORFLOW,
    )  # fmt: skip


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Regenerate the tables of docs/benchmarks.md and benchmarks/RESULTS.md on a quiet machine."""
    sys.path.append("benchmarks")
    import _report

    names = session.posargs or [table.name for table in _report.TABLES]
    chosen = {name: table for table in _report.TABLES if (name := table.name) in names}
    if unknown := {*names} - {*chosen}:
        session.error(f"no table {', '.join(unknown)}: {', '.join(t.name for t in _report.TABLES)}")
    peers = {}
    for option in sorted({table.peer for table in chosen.values() if table.peer}):
        folder = Path(f".nox/bench{option}")
        session.run(sys.executable, "-m", "venv", str(folder), external=True)
        packages = _report.PEERS[option].split()
        session.run(f"{folder}/bin/pip", "install", "--quiet", *packages, external=True)
        peers[option] = str(folder.absolute() / "bin/python")
    given = [word for option, python in peers.items() for word in (option, python)]
    for name in sorted({table.environment for table in chosen.values()}):
        session.run(sys.executable, "-m", "nox", "--install-only", "-s", name, external=True)
        python = f".nox/{name.replace('.', '-')}/bin/python"
        mine = [table.name for table in chosen.values() if table.environment == name]
        session.run(python, "benchmarks/_report.py", *mine, *given, external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site in build/site, warnings as errors; ``-- serve`` shows it."""
    install_locked(session, "docs", *HOUSE)
    session.run("mkdocs", *(session.posargs or ["build", "--strict"]), env=PLAIN_MKDOCS)
    if not session.posargs:
        session.run("pytest", "tools/test_built_site.py")


@nox.session
def lock(session: nox.Session) -> None:
    """Write the lock files anew; run it to move to newer versions, and commit the result."""
    session.install("uv")
    for name in ("lint", "types", "docs", *ENVIRONMENTS):
        session.run(
            "uv", "pip", "compile", "--quiet", "--upgrade", "--python-version", "3.11",
            "--no-emit-index-url", "--no-header", "--no-annotate",
            f"locks/{name}.in", "-o", f"locks/{name}.txt",
        )  # fmt: skip
