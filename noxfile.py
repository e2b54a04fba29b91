# /// script
# dependencies = ["nox>=2025.2.9", "uv>=0.5"]
# ///
"""The one way to run everything; CI calls ``nox -s tests`` and nothing else.

The block above makes nox install uv into a separate environment, so that a fresh machine needs
only ``python3 -m pip install nox``.
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
from collections.abc import Iterator, Sequence
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
SLURM = ["-e", "plugins/slurm"]
DETERMINED = ["-e", "plugins/determined"]
TESTING = ["-e", "plugins/testing"]
# Installed in every test environment.
FRAMEWORK_FREE = [
    *CORE, *STORAGE, *DETERMINED, *HOROVOD_PLUGIN, *REPLAY, *REPORT, *SERVER, *SLURM, *TESTING,
]  # fmt: skip
ESTIMATOR_EXAMPLES = "tests/examples/test_estimator_examples.py"
TORCH_EXAMPLES = "tests/examples/test_torch_examples.py"
ENVIRONMENTS = ("bare", "torch", "tensorflow-2.15", "tensorflow")
# Output of sessions that run in the background.
LOGS = Path("build/logs")
TORCH_REPLAY = (
    "plugins/replay/tests/test_torch_check_resume.py", "plugins/replay/tests/test_torch_faults.py",
)  # fmt: skip
# Tests that need a framework.
FRAMEWORK_TESTS = (
    "tests/corpus", "tests/examples", "tests/loops", "tests/example_plugins",
    "plugins/horovod/tests/with_horovod", *TORCH_REPLAY,
)  # fmt: skip
DURATIONS = Path("build/durations")
NUM_SLOWEST = 30
# Programs that tests start and that PyPI does not have: a browser, a reverse proxy and Slurm.
DEBIAN_PROGRAMS = {
    "chromium": "chromium", "nginx": "nginx-light", "slurmctld": "slurm-wlm", "munged": "munge",
}  # fmt: skip
# More processes than cores, because tests wait for other processes.
PARALLEL = ["--numprocesses=4", "--dist=worksteal"]
# Temporary files are in memory, because tests spend a third of their time in fsync on a disk.
MEMORY_FILES = Path("/dev/shm")
MIN_MEMORY_BYTES = 8 << 30
# Horovod has no wheels. Without these settings its build looks for every framework.
HOROVOD = "horovod==0.28.1"
HOROVOD_BUILD = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    # The build's default is eight compilers on any machine.
    "MAKEFLAGS": f"-j{os.cpu_count()}",
    "CMAKE_TOOLCHAIN_FILE": str(Path("tools/horovod.cmake").absolute()),
}
# PyTorch's CPU builds are in a separate index. pip's configuration may name that index, and uv does
# not read pip's configuration. The dependencies of PyTorch are in the lock file.
PYTORCH = (
    "torch==2.13.0", "torchdata==0.11.0", "accelerate==1.15.0", "lightning==2.6.6",
    "torchmetrics==1.9.0",
)  # fmt: skip
# Packages for all back ends that `locks/tensorflow.txt` lacks; pip installs PyTorch.
BACKEND_NEEDS = (
    "jax", "jaxlib", "pip", "filelock", "mpmath", "networkx", "sympy", "grain",
    "array-record", "etils", "portpicker",
)  # fmt: skip
# The theme prints a notice about MkDocs 2, which --strict would count as a warning.
MKDOCS_ENVIRONMENT = {"NO_MKDOCS_2_WARNING": "1"}
DISTRIBUTIONS = Path("build/dist")
# Requirements of the examples.
FRAMEWORK_FREE_EXTRAS = "determined,horovod,optuna,replay,report,server,slurm,storage,testing"
WHEEL_REQUIREMENTS = {
    "core_api": [f"detcore[{FRAMEWORK_FREE_EXTRAS}]", "scikit-learn"],
    "digits_keras": ["detcore[keras,estimator]", "tensorflow", "scikit-learn"],
    "digits_torch": ["detcore[torch]", PYTORCH[0], "scikit-learn"],
}
# Where JAX keeps the programs that it compiles, for tests that compile the same program again.
JAX_CACHE = {
    "JAX_COMPILATION_CACHE_DIR": str(Path("build/jax").absolute()),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
QUIET_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}

NEXT_STEPS = """
A {trial} (examples/{example}/model_def.py) was trained on scans of handwritten digits,
validated during training, and saved in checkpoints. The first line of its output names the
experiment and the trial.

Next commands (detcore is installed in {bin}):

  export PATH={bin}:$PATH
  detcore experiment list                   list the experiments
  detcore trial describe TRIAL              show its metrics, with a plot
  detcore run examples/{example}/const.yaml
                                            train again, press Ctrl-C, and resume
                                            with: detcore run --resume ID
  detcore checkpoint list                   list the checkpoints
"""


def install_locked(session: nox.Session, lock: str, *distributions: str) -> None:
    """Install the exact versions of a lock file, then our distributions without resolving.

    Python writes its bytecode cache even where PYTHONDONTWRITEBYTECODE is set. Without the cache,
    TensorFlow starts in 11 seconds instead of 3.
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
        name: Name of the file under ``build/durations`` that receives the test durations.
        arguments: Command-line arguments of pytest.
        env: Environment variables of pytest.
        log: Receives the output of pytest. Default: the terminal.
    """
    durations = DURATIONS / f"{name}.jsonl"
    durations.parent.mkdir(parents=True, exist_ok=True)
    durations.unlink(missing_ok=True)
    options = ["-p", "no:cacheprovider", f"--durations-file={durations}", *arguments]
    if not any(argument.startswith("--soak") for argument in arguments):
        options.append("--soak=none")
    with temporary_directory() as folder:
        session.run("pytest", *options, env={"TMPDIR": folder, **(env or {})}, stdout=log)


@contextlib.contextmanager
def run_tests_in_background(
    session: nox.Session, name: str, *arguments: str, env: dict[str, str] | None = None
) -> Iterator[None]:
    """Run tests concurrently with the block, and print their output at its end."""
    path = LOGS / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as log, ThreadPoolExecutor(max_workers=1) as pool:
            running = pool.submit(run_tests, session, name, *arguments, env=env, log=log)
            yield
            running.result()
    finally:
        print(path.read_text(errors="replace"))


@contextlib.contextmanager
def temporary_directory() -> Iterator[str]:
    """Yield a temporary directory, in memory if enough memory is free, and remove it."""
    memory = os.statvfs(MEMORY_FILES) if MEMORY_FILES.is_dir() else None
    large = memory and memory.f_bavail * memory.f_frsize >= MIN_MEMORY_BYTES
    usable = large and not memory.f_flag & os.ST_NOEXEC and os.access(MEMORY_FILES, os.W_OK)
    with tempfile.TemporaryDirectory(dir=MEMORY_FILES if usable else None, prefix="t") as folder:
        # Servers that do not run as root read their files below this directory.
        os.chmod(folder, 0o711)
        yield folder


def half_option(session: nox.Session, index: int) -> str:
    """Return the option that splits the tests of a plugin between two TensorFlows or back ends.

    ``nox -s tests`` runs each test with one of them, and ``nox -s soak`` with the other.
    """
    is_chosen = session.posargs and "--soak=only" not in session.posargs
    return "--half=all" if is_chosen else f"--half={index}/2"


def install_pytorch(session: nox.Session, packages: Sequence[str] = PYTORCH) -> None:
    """Install PyTorch's CPU build with pip, which reads the index from its configuration."""
    session.run_install("python", "-m", "pip", "install", "--quiet", "--no-deps", *packages)


def install_horovod(session: nox.Session) -> None:
    """Build Horovod for the session's TensorFlow and cmake. Requires a C++ compiler."""
    session.install("--no-deps", "--no-build-isolation", HOROVOD, env=HOROVOD_BUILD)


@nox.session
def quickstart(session: nox.Session) -> None:
    """Install detcore with Keras and train the digits example."""
    install_locked(session, "tensorflow", *CORE, *STORAGE, *KERAS, *REPORT)
    session.run(
        "detcore", "run", "examples/digits_keras/const.yaml", env=QUIET_TENSORFLOW, silent=False
    )
    print(NEXT_STEPS.format(bin=session.bin, trial="KerasTrial", example="digits_keras"))


@nox.session(name="quickstart-torch")
def quickstart_torch(session: nox.Session) -> None:
    """Install detcore with PyTorch and train the digits example."""
    install_locked(session, "torch", *CORE, *STORAGE, *TORCH, *REPORT)
    install_pytorch(session)
    session.run("detcore", "run", "examples/digits_torch/const.yaml", silent=False)
    print(NEXT_STEPS.format(bin=session.bin, trial="PyTorchTrial", example="digits_torch"))


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run everything that a commit must pass: lint, types, docs and all environments."""
    first, *later = ENVIRONMENTS
    start_preparing(later)
    for name in ("lint", "types", "docs", first, "prepared", *later, "slowest"):
        session.notify(name)


# The process that `tests` starts and that `prepared` waits for.
preparing: list[subprocess.Popen[bytes]] = []


def start_preparing(environments: list[str]) -> None:
    """Install environments in the background, with low priority."""
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
    """Wait for the environments that ``tests`` installs in the background."""
    if preparing and preparing.pop().wait():
        print((LOGS / "prepare.log").read_text(errors="replace"))
        session.warn("installing an environment failed; its session installs it again")


@nox.session(venv_backend="none")
def soak(session: nox.Session) -> None:
    """Run the remaining tests: storms, kills at every point, the other TensorFlow."""
    for name in (*ENVIRONMENTS, "backends"):
        session.notify(name, posargs=["--soak=only", *session.posargs])
    session.notify("slowest")


@nox.session(venv_backend="none")
def slowest(session: nox.Session) -> None:
    """Print the durations of the last run by environment, and its slowest tests."""
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
    """Check rules and layout with ruff, and the names of changelog fragments."""
    session.install("-r", "locks/lint.txt")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("towncrier", "build", "--draft", "--version", "next", silent=True)


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy --strict: the core, the plugins and most tests."""
    install_locked(session, "types", *FRAMEWORK_FREE, *KERAS, *ESTIMATOR, *OPTUNA, *RAY, *TORCH)
    session.run("mypy", "src/detcore", *map(str, sorted(Path("plugins").glob("*/src/detcore_*"))))
    session.run(
        "mypy", "tests", "plugins/determined/tests/routes", "plugins/server/tests",
        "plugins/horovod/tests", "plugins/testing/tests", "plugins/replay/tests",
        "--exclude", "tests/examples", "--exclude", "tests/corpus/scripts",
        env={"MYPYPATH": "src:tests/support:tests/toy_plugin:plugins/replay/tests"},
    )  # fmt: skip
    session.run(
        "mypy", "plugins/slurm/tests", env={"MYPYPATH": "src:tests/support:plugins/slurm/tests"}
    )


@nox.session
def bare(session: nox.Session) -> None:
    """Test the core and the plugins without a framework, and the page in a browser."""
    for program, package in DEBIAN_PROGRAMS.items():
        if not any(shutil.which(program, path=path) for path in (None, "/usr/sbin")):
            session.run("apt-get", "update", "-qq", external=True)
            session.run(
                "apt-get", "install", "-qq", "-y", "--no-install-recommends", package,
                external=True, env={"DEBIAN_FRONTEND": "noninteractive"},
            )  # fmt: skip
    install_locked(session, "bare", *FRAMEWORK_FREE, *OPTUNA)
    # These tests share one cluster and wait for it most of the time.
    with run_tests_in_background(session, "slurm", "plugins/slurm/tests", *session.posargs):
        run_tests(
            session, "bare", *PARALLEL, "tests", "plugins/storage/tests", "plugins/testing/tests",
            "plugins/determined/tests", "plugins/horovod/tests", "plugins/replay/tests",
            "plugins/report/tests", "plugins/server/tests",
            *(f"--ignore={folder}" for folder in FRAMEWORK_TESTS), *session.posargs,
        )  # fmt: skip


@nox.session
def torch(session: nox.Session) -> None:
    """Test PyTorch trials, Keras on JAX and PyTorch, Ray clusters, loops and example plugins."""
    install_locked(session, "torch", *FRAMEWORK_FREE, *KERAS, *RAY, *TORCH)
    install_pytorch(session)
    with contextlib.ExitStack() as stack:
        # Each test file of Ray starts a cluster and waits for it most of the time.
        stack.enter_context(run_tests_in_background(
            session, "ray", "--numprocesses=2", "--dist=loadfile", "plugins/ray/tests",
            "--ignore=plugins/ray/tests/test_horovod_on_ray.py", *session.posargs,
        ))  # fmt: skip
        for index, backend in enumerate(("jax", "torch")):
            stack.enter_context(run_tests_in_background(
                session, f"keras-{backend}", "plugins/keras/tests/test_backend_models.py",
                "plugins/keras/tests/test_workers.py", half_option(session, index),
                *session.posargs, env={"KERAS_BACKEND": backend, **JAX_CACHE},
            ))  # fmt: skip
        run_tests(
            session, "torch", *PARALLEL, "plugins/torch/tests", *TORCH_REPLAY, TORCH_EXAMPLES,
            "tests/corpus", "tests/loops", "tests/example_plugins", "tests/docs/test_pages.py",
            "tests/benchmarks", "plugins/keras/tests/test_backends.py", *session.posargs,
        )  # fmt: skip


@nox.session(name="tensorflow-2.15")
def tensorflow_old(session: nox.Session) -> None:
    """Test Keras 2 and ``tf.estimator`` on TensorFlow 2.15, with Horovod."""
    install_locked(session, "tensorflow-2.15", *FRAMEWORK_FREE, *KERAS, *ESTIMATOR, *RAY)
    install_horovod(session)
    run_tests(
        session, "keras-2", *PARALLEL, "plugins/keras/tests", half_option(session, 0),
        "tests/benchmarks", "tests/corpus", "plugins/horovod/tests/with_horovod",
        "plugins/ray/tests/test_horovod_on_ray.py", *session.posargs, env=QUIET_TENSORFLOW,
    )  # fmt: skip
    run_tests(
        session, "estimator-2.15", *PARALLEL, "plugins/estimator/tests", half_option(session, 0),
        ESTIMATOR_EXAMPLES, "tests/docs/test_pages.py", *session.posargs, env=QUIET_TENSORFLOW,
    )  # fmt: skip


@nox.session
def tensorflow(session: nox.Session) -> None:
    """Test Keras 3 and estimators without ``tf.estimator`` on the newest TensorFlow."""
    install_locked(session, "tensorflow", *FRAMEWORK_FREE, *KERAS, *ESTIMATOR)
    run_tests(
        session, "keras-3", *PARALLEL, "plugins/keras/tests", half_option(session, 1),
        "tests/corpus", "tests/examples", "tests/benchmarks", "tests/docs/test_pages.py",
        f"--ignore={ESTIMATOR_EXAMPLES}", f"--ignore={TORCH_EXAMPLES}",
        *session.posargs, env=QUIET_TENSORFLOW,
    )  # fmt: skip
    run_tests(
        session, "estimator", *PARALLEL, "plugins/estimator/tests", half_option(session, 1),
        f"{ESTIMATOR_EXAMPLES}::test_digits_reach_97_percent_in_a_minute", *session.posargs,
        env=QUIET_TENSORFLOW,
    )  # fmt: skip


@nox.session
def backends(session: nox.Session) -> None:
    """Test Keras trials whose data are another framework's than their back end, in the soak."""
    install_locked(session, "tensorflow", *FRAMEWORK_FREE, *KERAS, *TORCH)
    session.install("--no-deps", "--constraint", "locks/torch.txt", *BACKEND_NEEDS)
    install_pytorch(session, PYTORCH[:2])
    run_tests(
        session, "backends", "plugins/keras/tests/test_backends.py", *session.posargs,
        env=QUIET_TENSORFLOW,
    )  # fmt: skip


@nox.session
def gpu(session: nox.Session) -> None:
    """Compare killed PyTorch trials with uninterrupted trials on one CUDA device."""
    session.install(*CORE, *TORCH, "torch")
    session.run("python", "tests/corpus/corpus_runs.py", "--gpu", *session.posargs)


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Regenerate the tables of docs/benchmarks.md and benchmarks/RESULTS.md on a quiet machine."""
    sys.path.append("benchmarks")
    import _report

    defined = [table.name for table in _report.TABLES]
    names = session.posargs or defined
    chosen = {name: table for table in _report.TABLES if (name := table.name) in names}
    if unknown := {*names} - {*chosen}:
        session.error(f"unknown tables {', '.join(unknown)}; defined: {', '.join(defined)}")
    peers = {}
    for option in sorted({table.peer for table in chosen.values() if table.peer}):
        folder = Path(f".nox/bench{option}")
        session.run(sys.executable, "-m", "venv", str(folder), external=True)
        packages = _report.PEERS[option].split()
        session.run(f"{folder}/bin/pip", "install", "--quiet", *packages, external=True)
        peers[option] = str(folder.absolute() / "bin/python")
    peer_options = [word for option, python in peers.items() for word in (option, python)]
    for name in sorted({table.environment for table in chosen.values()}):
        session.run(sys.executable, "-m", "nox", "--install-only", "-s", name, external=True)
        python = f".nox/{name.replace('.', '-')}/bin/python"
        table_names = [table.name for table in chosen.values() if table.environment == name]
        session.run(python, "benchmarks/_report.py", *table_names, *peer_options, external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation in build/site. ``-- serve`` serves it. Warnings are errors."""
    install_locked(session, "docs", *FRAMEWORK_FREE)
    session.run("mkdocs", *(session.posargs or ["build", "--strict"]), env=MKDOCS_ENVIRONMENT)
    if not session.posargs:
        session.run("pytest", "tools/test_built_site.py")


@nox.session
def lock(session: nox.Session) -> None:
    """Update the lock files to the newest versions."""
    session.install("uv")
    for name in ("lint", "types", "docs", "release", *ENVIRONMENTS):
        session.run(
            "uv", "pip", "compile", "--quiet", "--upgrade", "--python-version", "3.11",
            "--no-emit-index-url", "--no-header", "--no-annotate",
            f"locks/{name}.in", "-o", f"locks/{name}.txt",
        )  # fmt: skip


def build_distributions(session: nox.Session) -> list[str]:
    """Build all distributions in build/dist, check their metadata, and return their paths."""
    session.install("-r", "locks/release.txt")
    shutil.rmtree(DISTRIBUTIONS, ignore_errors=True)
    for project in (Path(), *sorted(Path("plugins").iterdir())):
        session.run("uv", "build", "--quiet", "--out-dir", str(DISTRIBUTIONS), str(project))
    paths = [str(path) for path in sorted(DISTRIBUTIONS.glob("detcore*"))]
    session.run("twine", "check", "--strict", *paths)
    return paths


@nox.session
def wheels(session: nox.Session) -> None:
    """Build all distributions in build/dist, and check their metadata."""
    build_distributions(session)


@nox.session(reuse_venv=False)
@nox.parametrize(
    ("python", "example"),
    [
        ("3.10", "core_api"), ("3.12", "core_api"), ("3.13", "core_api"), ("3.14", "core_api"),
        ("3.11", "digits_keras"), ("3.11", "digits_torch"),
    ],
)  # fmt: skip
def installed(session: nox.Session, example: str) -> None:
    """Install the wheels of ``nox -s wheels`` without the sources, and run the quick start."""
    root = Path(__file__).parent
    # pip instead of uv, because it reads the index of PyTorch's CPU builds from its configuration.
    session.run_install("uv", "pip", "install", "--quiet", "pip", external=True)
    session.run_install(
        "python", "-m", "pip", "install", "--quiet", "--find-links", str(root / DISTRIBUTIONS),
        *WHEEL_REQUIREMENTS[example],
    )  # fmt: skip
    with temporary_directory() as folder:
        session.chdir(folder)
        session.run("python", str(root / "tools/check_wheels.py"), example, env=QUIET_TENSORFLOW)


@nox.session
def bump(session: nox.Session) -> None:
    """Set the version of all distributions, and write the changelog: ``nox -s bump -- 0.2.0``."""
    session.install("-r", "locks/release.txt")
    session.run("python", "tools/set_version.py", *session.posargs)
    session.run("towncrier", "build", "--yes", "--version", *session.posargs)


@nox.session
def release(session: nox.Session) -> None:
    """Publish all distributions and tag the version; ``-- --dry-run`` only shows them."""
    if session.posargs not in ([], ["--dry-run"]):
        session.error(f"unknown arguments {session.posargs}; the only option is --dry-run")
    is_dry_run = bool(session.posargs)
    if not is_dry_run and list(Path("changes").glob("+*.md")):
        session.error("changes/ has fragments; run first: nox -s bump -- VERSION")
    paths = build_distributions(session)
    session.run("towncrier", "build", "--draft", "--version", "unreleased changes")
    version = nox.project.load_toml("pyproject.toml")["project"]["version"]
    for path in paths:
        print(f"publish {path} ({os.path.getsize(path):,} bytes)")
    print(f"tag v{version}")
    if is_dry_run:
        return
    session.run("twine", "upload", *paths)
    session.run("git", "tag", f"v{version}", external=True)
