# /// script
# dependencies = ["nox>=2025.2.9", "uv>=0.5"]
# ///
"""The one way to run everything; CI calls ``nox -s tests`` and nothing else.

The block above makes nox bring uv into an environment of its own, so that
``python3 -m pip install nox`` is all a fresh machine needs.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True

CORE = ["-e", "."]
STORAGE = ["-e", "plugins/storage"]
KERAS = ["-e", "plugins/keras"]
ESTIMATOR = ["-e", "plugins/estimator"]
RAY = ["-e", "plugins/ray"]
ESTIMATOR_EXAMPLES = "tests/examples/test_estimator_examples.py"


def without(test: str, *cases: str) -> list[str]:
    """Return options that leave some cases of a parametrized test out."""
    return [f"--deselect={test}[{case}]" for case in cases]


# What takes minutes and does the same with either Keras, or either TensorFlow, is run with one of
# them, and each case of it with at least one.
KERAS_KILLED = "plugins/keras/tests/test_run.py::test_killed_and_resumed_ends_bit_identical"
KERAS_WORKERS_KILLED = (
    "plugins/keras/tests/test_workers_run.py::test_killed_and_resumed_ends_bit_identical"
)
KERAS_TESTS = [
    "plugins/keras/tests", "tests/examples", f"--ignore={ESTIMATOR_EXAMPLES}",
    *without(KERAS_KILLED, "WeightedArrays-True", "Dataset-True"),
    *without(KERAS_WORKERS_KILLED, "Stops"),
]  # fmt: skip
KERAS2_TESTS = [
    "plugins/keras/tests",
    *(
        f"--ignore=plugins/keras/tests/test_{name}.py"
        for name in ("suite", "native", "migrated", "loader", "hostile_arrays")
    ),
    *without(KERAS_KILLED, "Arrays-True", "Adapter-True", "Sequence-True", "Dataset-False"),
    *without(KERAS_WORKERS_KILLED, "Adapter"),
    *without(
        "plugins/keras/tests/test_exact_resume.py::test_every_data_kind",
        "arrays-batchwise", "weighted-batchwise", "sequence-batchwise", "adapter-batchwise",
        "opaque-batchwise",
    ),
    "--deselect=plugins/keras/tests/test_run.py::"
    "test_killed_in_the_middle_of_a_write_behind_the_training",
    "tests/examples/test_examples.py::test_digits_reach_97_percent_in_a_minute",
    "plugins/ray/tests/test_horovod_on_ray.py",
]  # fmt: skip
ESTIMATOR_KILLED = "plugins/estimator/tests/test_run.py::test_killed_and_resumed_ends_bit_identical"
ESTIMATOR_TESTS = [
    "plugins/estimator/tests", ESTIMATOR_EXAMPLES, "tests/examples/test_mnist_files.py",
    *without(ESTIMATOR_KILLED, "Generated", "Repeated"),
]  # fmt: skip
ESTIMATOR_LATEST_TESTS = [
    "plugins/estimator/tests", "--ignore=plugins/estimator/tests/test_suite.py",
    "--ignore=plugins/estimator/tests/test_run_async.py",
    "--ignore=plugins/estimator/tests/test_workers_native.py",
    *without(ESTIMATOR_KILLED, "Shuffled"),
    f"{ESTIMATOR_EXAMPLES}::test_digits_reach_97_percent_in_a_minute",
]  # fmt: skip
ENVIRONMENTS = (
    "bare", "page", "ray", "keras2", "keras3", "estimator", "estimator-latest", "torch"
)  # fmt: skip
# What tests start that is on no package index of Python's: a browser, and a proxy.
DEBIAN_PROGRAMS = {"chromium": "chromium", "nginx": "nginx-light"}
# One more than there are cores, since tests wait for processes; whoever is done takes work from
# the others.
AT_ONCE = ["--numprocesses=3", "--dist=worksteal", "--durations=12"]
# Horovod has no wheels; without these settings its build looks for every framework there is.
HOROVOD = "horovod==0.28.1"
HOROVOD_BUILD = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
}
# Its CPU build is in an index of its own. A machine's configuration of pip may name one, and uv
# does not read that; what it needs is in the lock.
TORCH = "torch==2.13.0"
# The theme's advertisement of another tool, which is no warning about these pages.
PLAIN_MKDOCS = {"NO_MKDOCS_2_WARNING": "1"}
QUIET_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}

# How many tests of a session may fail the first time; see run_tests.
SECOND_CHANCES = 3

NEXT_STEPS = """
What just happened: a TFKerasTrial (examples/digits_keras/model_def.py) was trained on scans of
handwritten digits, validated as it went, and saved in checkpoints.

What to type next (detcore is installed in {bin}):

  export PATH={bin}:$PATH
  detcore experiment list                   what was run
  detcore trial describe 1                  its metrics, with a plot
  detcore run examples/digits_keras/const.yaml
                                            again; press Ctrl-C in the middle,
                                            then: detcore run --resume ID
  detcore checkpoint list                   what was saved
"""


def install_locked(session: nox.Session, lock: str, *distributions: str) -> None:
    """Install the exact versions of a lock file, then our distributions without resolving.

    Tests start TensorFlow a thousand times: where Python may not keep what it compiled, as in many
    containers, each start compiles all of it, which takes 11 seconds instead of 3.
    """
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    session.install("-r", f"locks/{lock}.txt")
    session.install("--no-deps", *distributions)


def run_tests(session: nox.Session, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Run pytest; what failed, if it is no more than three tests, once more and one by one.

    Thousands of tests race real processes, servers and kills for two cores. One that fails among
    the others and passes alone is a defect of the test or of detcore; it is shown with its
    traceback, and does not keep everybody else from knowing where they stand.
    """
    cache = Path(session.virtualenv.location) / "pytest_cache"
    shutil.rmtree(cache, ignore_errors=True)
    options = ["-o", f"cache_dir={cache}", *arguments]
    try:
        session.run("pytest", *options, env=env)
    except CommandFailed:
        failed = cache / "v/cache/lastfailed"
        names = list(json.loads(failed.read_text())) if failed.exists() else []
        if not 0 < len(names) <= SECOND_CHANCES or any("::" not in name for name in names):
            raise
        session.warn(f"failed among the others, now alone: {', '.join(names)}")
        session.run("pytest", *options, "--last-failed", "--numprocesses=0", "-rfEp", env=env)
        session.warn(f"passed only when run alone, to be looked into: {', '.join(names)}")


def install_horovod(session: nox.Session) -> None:
    """Build Horovod against the TensorFlow of the session, once; needs cmake and a C++ compiler."""
    session.install("--no-deps", "--no-build-isolation", HOROVOD, env=HOROVOD_BUILD)


@nox.session
def quickstart(session: nox.Session) -> None:
    """Install detcore with Keras and train the digits example."""
    install_locked(session, "keras3", *CORE, *STORAGE, *KERAS)
    session.run(
        "detcore", "run", "examples/digits_keras/const.yaml", env=QUIET_TENSORFLOW, silent=False
    )
    print(NEXT_STEPS.format(bin=session.bin))


@nox.session
def tests(session: nox.Session) -> None:
    """Everything: lint, types, and the tests of each environment."""
    for name in ("lint", "types", "docs", *ENVIRONMENTS):
        session.notify(name)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: rules and layout."""
    session.install("-r", "locks/lint.txt")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict on the core, the plugins and the core's tests."""
    install_locked(session, "types", *CORE, *STORAGE, *KERAS, *ESTIMATOR, *RAY)
    session.run("mypy", "src/detcore")
    session.run("mypy", "plugins/storage/src/detcore_storage")
    session.run("mypy", "plugins/keras/src/detcore_keras")
    session.run("mypy", "plugins/estimator/src/detcore_estimator")
    session.run("mypy", "plugins/ray/src/detcore_ray")
    session.run(
        "mypy", "tests", "--exclude", "tests/examples",
        env={"MYPYPATH": "src:tests/support:tests/toy_plugin"},
    )  # fmt: skip


@nox.session
def bare(session: nox.Session) -> None:
    """The core and the storage plugin, with no framework installed."""
    install_locked(session, "bare", *CORE, *STORAGE)
    run_tests(
        session, *AT_ONCE, "tests", "plugins/storage/tests", "--ignore=tests/examples",
        "--ignore=tests/loops", "--ignore=tests/example_plugins", "--ignore=tests/browser",
        "--ignore=tests/with_debian", *session.posargs,
    )  # fmt: skip


@nox.session
def page(session: nox.Session) -> None:
    """The server's page in a real Chromium, and the server behind a real nginx."""
    for program, package in DEBIAN_PROGRAMS.items():
        if not any(shutil.which(program, path=path) for path in (None, "/usr/sbin")):
            session.run("apt-get", "update", "-qq", external=True)
            session.run(
                "apt-get", "install", "-qq", "-y", "--no-install-recommends", package,
                external=True, env={"DEBIAN_FRONTEND": "noninteractive"},
            )  # fmt: skip
    install_locked(session, "page", *CORE, *STORAGE)
    run_tests(session, *AT_ONCE, "tests/browser", "tests/with_debian", *session.posargs)


@nox.session
def ray(session: nox.Session) -> None:
    """The Ray plugin on a cluster of several nodes, with no framework installed."""
    install_locked(session, "ray", *CORE, *STORAGE, *RAY)
    # Its tests wait for Ray most of the time; each file has a cluster of its own.
    run_tests(
        session, "--numprocesses=3", "--dist=loadfile", "--durations=12", "plugins/ray/tests",
        "--ignore=plugins/ray/tests/test_horovod_on_ray.py",
        "--ignore=plugins/ray/tests/test_torch_on_ray.py", *session.posargs,
    )  # fmt: skip


@nox.session
def keras2(session: nox.Session) -> None:
    """The Keras plugin on TensorFlow 2.15 with Keras 2, and Horovod."""
    install_locked(session, "keras2", *CORE, *STORAGE, *KERAS, *RAY)
    install_horovod(session)
    run_tests(session, *AT_ONCE, *KERAS2_TESTS, *session.posargs, env=QUIET_TENSORFLOW)


@nox.session
def keras3(session: nox.Session) -> None:
    """The Keras plugin on the newest TensorFlow with Keras 3."""
    install_locked(session, "keras3", *CORE, *STORAGE, *KERAS)
    run_tests(
        session, *AT_ONCE, *KERAS_TESTS, "tests/docs/test_pages.py", *session.posargs,
        env=QUIET_TENSORFLOW,
    )  # fmt: skip


@nox.session
def estimator(session: nox.Session) -> None:
    """The Estimator plugin on TensorFlow 2.15 with tensorflow-estimator, and Horovod."""
    install_locked(session, "estimator", *CORE, *STORAGE, *ESTIMATOR)
    install_horovod(session)
    run_tests(
        session, *AT_ONCE, *ESTIMATOR_TESTS, "tests/docs/test_pages.py", *session.posargs,
        env=QUIET_TENSORFLOW,
    )  # fmt: skip


@nox.session(name="estimator-latest")
def estimator_latest(session: nox.Session) -> None:
    """The Estimator plugin on the newest TensorFlow, which has no ``tf.estimator``."""
    install_locked(session, "estimator-latest", *CORE, *STORAGE, *ESTIMATOR)
    run_tests(
        session, *AT_ONCE, *ESTIMATOR_LATEST_TESTS, "tests/docs/test_pages.py", *session.posargs,
        env=QUIET_TENSORFLOW,
    )  # fmt: skip


@nox.session(name="torch")
def loops_and_plugins(session: nox.Session) -> None:
    """Loops of one's own, and the example plugins: PyTorch, JAX, scikit-learn, Keras on JAX."""
    install_locked(session, "torch", *CORE, *STORAGE, *RAY)
    session.run_install("python", "-m", "pip", "install", "--quiet", "--no-deps", TORCH)
    run_tests(
        session, *AT_ONCE, "tests/loops", "tests/example_plugins", "tests/docs/test_pages.py",
        "plugins/ray/tests/test_torch_on_ray.py", *session.posargs,
    )  # fmt: skip


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site in build/site, warnings as errors; ``-- serve`` shows it."""
    install_locked(session, "docs", *CORE)
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
