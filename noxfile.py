# /// script
# dependencies = ["nox>=2025.2.9", "uv>=0.5"]
# ///
"""The one way to run everything; CI calls ``nox -s tests`` and nothing else.

The block above makes nox bring uv into an environment of its own, so that
``python3 -m pip install nox`` is all a fresh machine needs.
"""

from __future__ import annotations

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True

CORE = ["-e", "."]
STORAGE = ["-e", "plugins/storage"]
KERAS = ["-e", "plugins/keras"]
ESTIMATOR = ["-e", "plugins/estimator"]
ESTIMATOR_EXAMPLES = "tests/examples/test_estimator_examples.py"
KERAS_TESTS = ["plugins/keras/tests", "tests/examples", f"--ignore={ESTIMATOR_EXAMPLES}"]
# Searches and scripts that do the same with either Keras; they take minutes.
ONCE = [
    "--ignore=tests/examples/test_digits_searches.py", "--ignore=tests/examples/test_python_docs.py"
]  # fmt: skip
ESTIMATOR_TESTS = [
    "plugins/estimator/tests", ESTIMATOR_EXAMPLES, "tests/examples/test_mnist_files.py"
]  # fmt: skip
ENVIRONMENTS = ("bare", "keras2", "keras3", "estimator", "estimator-latest")
# A process for each of two cores; whoever is done takes work from the other.
TWO_AT_ONCE = ["--numprocesses=2", "--dist=worksteal", "--durations=12"]
# Horovod has no wheels; without these settings its build looks for every framework there is.
HOROVOD = "horovod==0.28.1"
HOROVOD_BUILD = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
}
QUIET_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}

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
    """Install the exact versions of a lock file, then our distributions without resolving."""
    session.install("-r", f"locks/{lock}.txt")
    session.install("--no-deps", *distributions)


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
    for name in ("lint", "types", *ENVIRONMENTS):
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
    install_locked(session, "types", *CORE, *STORAGE, *KERAS, *ESTIMATOR)
    session.run("mypy", "src/detcore")
    session.run("mypy", "plugins/storage/src/detcore_storage")
    session.run("mypy", "plugins/keras/src/detcore_keras")
    session.run("mypy", "plugins/estimator/src/detcore_estimator")
    session.run(
        "mypy", "tests", "--exclude", "tests/examples",
        env={"MYPYPATH": "src:tests/support:tests/toy_plugin"},
    )  # fmt: skip


@nox.session
def bare(session: nox.Session) -> None:
    """The core and the storage plugin, with no framework installed."""
    install_locked(session, "bare", *CORE, *STORAGE)
    session.run(
        "pytest", *TWO_AT_ONCE, "tests", "plugins/storage/tests", "--ignore=tests/examples",
        *session.posargs,
    )  # fmt: skip


@nox.session
def keras2(session: nox.Session) -> None:
    """The Keras plugin on TensorFlow 2.15 with Keras 2, and Horovod."""
    install_locked(session, "keras2", *CORE, *STORAGE, *KERAS)
    install_horovod(session)
    session.run("pytest", *TWO_AT_ONCE, *KERAS_TESTS, *ONCE, *session.posargs, env=QUIET_TENSORFLOW)


@nox.session
def keras3(session: nox.Session) -> None:
    """The Keras plugin on the newest TensorFlow with Keras 3."""
    install_locked(session, "keras3", *CORE, *STORAGE, *KERAS)
    session.run("pytest", *TWO_AT_ONCE, *KERAS_TESTS, *session.posargs, env=QUIET_TENSORFLOW)


@nox.session
def estimator(session: nox.Session) -> None:
    """The Estimator plugin on TensorFlow 2.15 with tensorflow-estimator, and Horovod."""
    install_locked(session, "estimator", *CORE, *STORAGE, *ESTIMATOR)
    install_horovod(session)
    session.run("pytest", *TWO_AT_ONCE, *ESTIMATOR_TESTS, *session.posargs, env=QUIET_TENSORFLOW)


@nox.session(name="estimator-latest")
def estimator_latest(session: nox.Session) -> None:
    """The Estimator plugin on the newest TensorFlow, which has no ``tf.estimator``."""
    install_locked(session, "estimator-latest", *CORE, *STORAGE, *ESTIMATOR)
    session.run("pytest", *TWO_AT_ONCE, *ESTIMATOR_TESTS, *session.posargs, env=QUIET_TENSORFLOW)


@nox.session
def lock(session: nox.Session) -> None:
    """Write the lock files anew; run it to move to newer versions, and commit the result."""
    session.install("uv")
    for name in ("lint", "types", *ENVIRONMENTS):
        session.run(
            "uv", "pip", "compile", "--quiet", "--upgrade", "--python-version", "3.11",
            "--no-emit-index-url", "--no-header", "--no-annotate",
            f"locks/{name}.in", "-o", f"locks/{name}.txt",
        )  # fmt: skip
