"""Several workers agree with one: weights, validation metrics, data, callbacks, errors."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared_folder import shared_folder

from detcore_keras.frameworks import KERAS_MAJOR

SCRIPT = Path(__file__).parent / "worker_scenarios.py"
# What each test compares: of one worker, and of two.
SCENARIOS = {
    "test_two_workers_train_as_one_on_the_whole_batch": (["gradients"], ["gradients"]),
    "test_every_other_step_trains_as_one_too": (["more_gradients"], ["more_gradients"]),
    "test_added_up_batches_train_as_one_large_batch": (["aggregated"], ["aggregated"]),
    "test_validation_does_not_depend_on_the_number_of_workers": (["validation"], ["validation"]),
    "test_losses_that_are_means_of_batches_are_those_of_keras": ([], ["batch_means"]),
    "test_uneven_shards_end_together_and_count_what_was_trained": (
        ["uneven_data"],
        ["uneven_data"],
    ),
    "test_validation_uses_the_chiefs_model_and_leaves_each_its_own": ([], ["own_state"]),
    "test_callbacks_of_the_chief_do_not_part_the_workers": (
        ["chief_only_callbacks"],
        ["chief_only_callbacks"],
    ),
    "test_a_number_that_no_metric_says_is_a_mean_over_records": (
        ["plain_numbers"],
        ["plain_numbers"],
    ),
    "test_errors_name_what_cannot_work": (
        [],
        ["refused_metric", "forgotten_optimizer", "bad_data"],
    ),
    "test_compressed_gradients_train_nearly_the_same": (["compressed"], ["compressed"]),
    "test_another_number_of_workers_goes_on": (["goes_on"], ["saved_halfway", "goes_on"]),
}
FOUR = pytest.param(4, marks=pytest.mark.soak)
pytestmark = [pytest.mark.timeout(900), pytest.mark.long(together="workers")]


def run(folder: Path, workers: int, names: Sequence[str]) -> None:
    command = [sys.executable, str(SCRIPT), str(folder), *names]
    if workers > 1:
        launcher = "horovod" if KERAS_MAJOR == 2 else "local"
        start = ["-m", "detcore", "launch", "--launcher", launcher, "-n", str(workers), "--"]
        command = [sys.executable, *start, *command]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=800, env=os.environ)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]


def results(folder: Path, workers: int, name: str) -> list[Any]:
    """What each worker found, in the order of their ranks."""
    files = [folder / f"{name}-{rank}.pkl" for rank in range(workers)]
    return [pickle.loads(file.read_bytes()) for file in files]  # noqa: S301  (written by `run`)


def scenarios(session: pytest.Session, workers: int) -> list[str]:
    """Return what the tests that this session runs compare, each once and in order."""
    mine = [item for item in session.items if item.path == Path(__file__)]
    names = [
        SCENARIOS[str(item.originalname)] for item in mine if isinstance(item, pytest.Function)
    ]
    return [*dict.fromkeys(name for given in names for name in given[workers - 1])]


@pytest.fixture(scope="module")
def one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = scenarios(request.session, 1)
    return shared_folder(tmp_path_factory, "one", lambda folder: run(folder, 1, names))


@pytest.fixture(scope="module")
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = scenarios(request.session, 2)
    return shared_folder(tmp_path_factory, "two", lambda folder: run(folder, 2, names))


def assert_close(left: Sequence[np.ndarray], right: Sequence[np.ndarray], atol: float) -> None:
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


def assert_same(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> None:
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


def test_two_workers_train_as_one_on_the_whole_batch(one: Path, two: Path) -> None:
    found = check_weights(one, two, "gradients")
    assert found >= {"sgd", "adam", "clipped", "embedding"}


@pytest.mark.soak
def test_every_other_step_trains_as_one_too(one: Path, two: Path) -> None:
    found = check_weights(one, two, "more_gradients")
    assert found >= {"scaled", "momentum", "eager", "applies", "hooks"}


def check_weights(one: Path, two: Path, scenario: str) -> set[str]:
    """Compare the weights of one worker and of two; return what was trained."""
    (expected,) = results(one, 1, scenario)
    first, second = results(two, 2, scenario)
    assert set(first) == set(expected)
    for name, weights in expected.items():
        assert_close(first[name], weights, 1e-6)
        assert_same(first[name], second[name])
    return {*expected}


@pytest.mark.soak
def test_added_up_batches_train_as_one_large_batch(one: Path, two: Path) -> None:
    (alone,) = results(one, 1, "aggregated")
    first, second = results(two, 2, "aggregated")
    for name, (added_up, large) in alone.items():
        assert_close(added_up, large, 1e-6)
        assert_close(first[name][0], added_up, 1e-6)
        assert_same(first[name][0], second[name][0])


def check_validation(expected: Any, found: Any) -> None:
    assert found.keys() == expected.keys()
    for case, (metrics, n_records) in expected.items():
        assert found[case][1] == n_records == case[1]
        assert found[case][0].keys() == metrics.keys()
        for name, value in metrics.items():
            assert found[case][0][name] == pytest.approx(value, rel=1e-6, abs=1e-6), (case, name)


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.soak), FOUR])
def test_validation_does_not_depend_on_the_number_of_workers(
    one: Path, two: Path, workers: int, tmp_path: Path
) -> None:
    folder = two if workers == 2 else tmp_path
    if workers > 2:
        run(folder, workers, ["validation"])
    (expected,) = results(one, 1, "validation")
    answers = results(folder, workers, "validation")
    for answer in answers:
        check_validation(expected, answer)
        assert answer == answers[0]


def test_losses_that_are_means_of_batches_are_those_of_keras(two: Path) -> None:
    for found, expected in results(two, 2, "batch_means"):
        assert found.keys() == expected.keys() == {"val_loss", "val_one_loss", "val_two_loss"}
        assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.soak
def test_uneven_shards_end_together_and_count_what_was_trained(one: Path, two: Path) -> None:
    alone, first, second = (
        *results(one, 1, "uneven_data"),
        *results(two, 2, "uneven_data"),
    )
    for name in alone:
        assert first[name][0] == second[name][0]
        assert len(first[name][1]) == len(second[name][1]) == 3
        assert_same(first[name][2], second[name][2])
    # 7 and 15 records in batches of 4: 2 and 4 batches; 11 steps each, the last ones of epochs
    # with 3 records.
    assert [first["own"][0], sum(first["own"][1]), sum(second["own"][1])] == [4, 39, 42]
    # 21 records in batches of 4: the shards have 11 and 10, 3 batches each, 3 epochs and 2 batches.
    assert first["sharded"][0] == 3
    assert [sum(first["sharded"][1]), sum(second["sharded"][1])] == [41, 38]
    assert first["filtered"][0] is None
    # Each batch goes to one worker: together they see what one sees in twice as many steps.
    assert first["arrays"][0] == alone["arrays"][0]


@pytest.mark.soak
def test_validation_uses_the_chiefs_model_and_leaves_each_its_own(two: Path) -> None:
    first, second = results(two, 2, "own_state")
    for before, after, *_ in (first, second):
        assert_same(before, after)
    assert any(not np.array_equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    assert first[2] == second[2]
    assert not np.array_equal(first[3][0], second[3][0])
    assert first[4] != second[4]


@pytest.mark.soak
def test_callbacks_of_the_chief_do_not_part_the_workers(one: Path, two: Path) -> None:
    (alone,) = results(one, 1, "chief_only_callbacks")
    first, second = results(two, 2, "chief_only_callbacks")
    assert first[1] == second[1] == ["log-0.csv"]
    assert first[0] == second[0]
    for mine, expected in zip(first[0], alone[0], strict=True):
        assert mine["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert_same(first[2], second[2])


@pytest.mark.soak
def test_a_number_that_no_metric_says_is_a_mean_over_records(one: Path, two: Path) -> None:
    (alone,) = results(one, 1, "plain_numbers")
    first, second = results(two, 2, "plain_numbers")
    assert first == second
    assert first[1] == alone[1] == 12
    assert first[0]["val_error"] == pytest.approx(alone[0]["val_error"], rel=1e-6)


@pytest.mark.soak
def test_errors_name_what_cannot_work(two: Path) -> None:
    for answer in results(two, 2, "refused_metric"):
        assert answer.startswith("InvalidModelError: the metric 'smallest' (Smallest) keeps")
        assert "merge_state" in answer
    for answer in results(two, 2, "forgotten_optimizer"):
        assert "4 trained weight(s) of" in answer
        assert "context.wrap_optimizer" in answer
    for lengths, few in results(two, 2, "bad_data"):
        assert "different lengths (rank 0: 30, rank 1: 31)" in lengths
        assert few.startswith("CheckFailedError: the training data has 1 batch(es) for 2 workers")


@pytest.mark.soak
def test_compressed_gradients_train_nearly_the_same(one: Path, two: Path) -> None:
    (exact,) = results(one, 1, "compressed")
    first, second = results(two, 2, "compressed")
    assert_same(first, second)
    assert_close(first, exact, 2e-3)
    assert any(not np.array_equal(a, b) for a, b in zip(first, exact, strict=True))


@pytest.mark.parametrize("workers", [1, 2, FOUR])
def test_another_number_of_workers_goes_on(
    one: Path, two: Path, workers: int, tmp_path: Path
) -> None:
    """With the gradients that were added up when the checkpoint was saved."""
    ((expected, _),) = results(one, 1, "goes_on")
    chiefs, others = results(two, 2, "saved_halfway")
    assert "weights.npz" in chiefs
    assert "weights.npz" not in others
    folder = two
    if workers != 2:
        folder = tmp_path
        shutil.copytree(two / "halfway", folder / "halfway")
        run(folder, workers, ["goes_on"])
    answers = results(folder, workers, "goes_on")
    assert sum(n_records for _, n_records in answers) == 7 * 8
    for weights, _ in answers:
        assert_close(weights, expected, 1e-6)
