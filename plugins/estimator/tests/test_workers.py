"""Train and validate on several workers, with the checks of `worker_jobs`."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_folder import shared_folder

JOB = Path(__file__).parent / "worker_jobs.py"
VALIDATION = ("check_validation", "check_no_validation_data", "check_metrics_that_cannot_be_added")
SHARDS = ("check_uneven_shards", "check_epoch_is_agreed", "check_other_number_of_workers")
TRAINING = (
    "check_equals_one_worker",
    "check_adding_up",
    "check_sums_of_gradients",
    "check_compression",
    "check_unwrapped_optimizer",
    "check_values_come_from_the_chief",
    "check_dropout_differs",
    "check_exact_resume",
)
ALONE = ("check_adding_up", "check_sums_of_gradients", "check_exact_resume", "check_validation")
CHECKS = {1: ALONE, 2: (*TRAINING, *SHARDS, *VALIDATION), 3: (*SHARDS, *VALIDATION), 4: VALIDATION}

# Checks that run on each commit. The others run with the soak tests. `test_suite` also trains two
# workers on each commit.
ALWAYS = ("check_exact_resume", "check_other_number_of_workers")

HAS_HOROVOD = importlib.util.find_spec("horovod") is not None

pytestmark = [pytest.mark.timeout(900), pytest.mark.each_version]


def marks_of(num_workers: int, name: str) -> list[pytest.MarkDecorator]:
    long = pytest.mark.long(together=f"{num_workers} workers")
    if num_workers != 2:
        return [long, pytest.mark.soak]
    return [long] if name in ALWAYS else [long, pytest.mark.soak]


@pytest.fixture(scope="module")
def run_job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], dict[str, str]]:
    """Return a function that runs the session's checks on a number of workers, once."""
    calls = [item.callspec.params for item in request.session.items if item.path == request.path]

    @functools.cache
    def run(num_workers: int) -> dict[str, str]:
        folder = shared_folder(
            tmp_path_factory, f"workers-{num_workers}", functools.partial(make, num_workers)
        )
        problems: dict[str, str] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        return problems

    def make(num_workers: int, folder: Path) -> None:
        launch = [sys.executable, "-m", "detcore", "launch"]
        launch += ["--launcher", "horovod" if num_workers > 1 else "local"]
        job = [sys.executable, str(JOB), str(folder / "results.json"), str(folder / "work")]
        checks = [call["name"] for call in calls if call["num_workers"] == num_workers]
        finished = subprocess.run(
            [*launch, "-n", str(num_workers), "--", *job, *checks],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr

    return run


@pytest.mark.parametrize(
    ("num_workers", "name"),
    [
        pytest.param(count, name, marks=marks_of(count, name))
        for count, names in CHECKS.items()
        for name in names
    ],
)
def test_on_workers(run_job: Callable[[int], dict[str, str]], num_workers: int, name: str) -> None:
    if num_workers > 1 and not HAS_HOROVOD:
        pytest.skip("Horovod does not support this TensorFlow")
    problem = run_job(num_workers)[name]
    assert not problem, problem
