"""Several workers agree with one worker: weights, metrics, data, callbacks, errors."""

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

from detcore_keras.frameworks import backend

SCRIPT = Path(__file__).parent / "worker_scenarios.py"
# The scenarios that each test runs with one worker and with two workers.
SCENARIOS = {
    "test_two_workers_equal_one_with_whole_batch": (["gradients"], ["gradients"]),
    "test_other_steps_of_two_workers_equal_one": (["more_gradients"], ["more_gradients"]),
    "test_aggregated_batches_equal_one_large_batch": (["aggregated"], ["aggregated"]),
    "test_validation_ignores_worker_count": (["validation"], ["validation"]),
    "test_batch_mean_losses_equal_keras": ([], ["batch_means"]),
    "test_uneven_shards_end_together": (
        ["uneven_data"],
        ["uneven_data"],
    ),
    "test_validation_uses_chief_model_temporarily": ([], ["own_state"]),
    "test_chief_callbacks_keep_workers_in_step": (
        ["chief_only_callbacks"],
        ["chief_only_callbacks"],
    ),
    "test_plain_test_outputs_are_record_means": (
        ["plain_numbers"],
        ["plain_numbers"],
    ),
    "test_worker_errors_name_the_cause": (
        [],
        ["refused_metric", "forgotten_optimizer", "bad_data"],
    ),
    "test_compressed_gradients_train_similarly": (["compressed"], ["compressed"]),
    "test_training_resumes_with_other_worker_count": (
        ["resume_halfway"],
        ["saved_halfway", "resume_halfway"],
    ),
}
on_tensorflow = pytest.mark.skipif(
    backend.name != "tensorflow", reason="the scenario uses TensorFlow"
)
FOUR = pytest.param(4, marks=pytest.mark.soak)
pytestmark = [pytest.mark.timeout(900), pytest.mark.long(together="workers")]


def run(folder: Path, workers: int, names: Sequence[str]) -> None:
    command = [sys.executable, str(SCRIPT), str(folder), *names]
    if workers > 1:
        launcher = "horovod" if backend.keras_major == 2 else "local"
        start = ["-m", "detcore", "launch", "--launcher", launcher, "-n", str(workers), "--"]
        command = [sys.executable, *start, *command]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=800, env=os.environ)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]


def results(folder: Path, workers: int, name: str) -> list[Any]:
    """Return each worker's result, in rank order."""
    files = [folder / f"{name}-{rank}.pkl" for rank in range(workers)]
    return [pickle.loads(file.read_bytes()) for file in files]  # noqa: S301  (written by `run`)


def scenarios(session: pytest.Session, workers: int) -> list[str]:
    """Return the scenarios of the tests in this session, without repetitions and in order."""
    items = [
        item
        for item in session.items
        if item.path == Path(__file__) and not any(m.args[0] for m in item.iter_markers("skipif"))
    ]
    names = [
        SCENARIOS[str(item.originalname)] for item in items if isinstance(item, pytest.Function)
    ]
    return [*dict.fromkeys(name for name_lists in names for name in name_lists[workers - 1])]


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


def test_two_workers_equal_one_with_whole_batch(one: Path, two: Path) -> None:
    trained_names = check_weights(one, two, "gradients")
    assert trained_names >= {"sgd", "adam", "clipped", "embedding"}


@pytest.mark.soak
def test_other_steps_of_two_workers_equal_one(one: Path, two: Path) -> None:
    trained_names = check_weights(one, two, "more_gradients")
    assert trained_names >= {"scaled", "momentum", "hooks"}


def check_weights(one: Path, two: Path, scenario: str) -> set[str]:
    """Compare the weights of one and two workers. Return the names of the trained variants."""
    (expected,) = results(one, 1, scenario)
    first, second = results(two, 2, scenario)
    assert set(first) == set(expected)
    for name, weights in expected.items():
        assert_close(first[name], weights, 1e-6)
        assert_same(first[name], second[name])
    return {*expected}


@pytest.mark.soak
@on_tensorflow
def test_aggregated_batches_equal_one_large_batch(one: Path, two: Path) -> None:
    (alone,) = results(one, 1, "aggregated")
    first, second = results(two, 2, "aggregated")
    for name, (added_up, large) in alone.items():
        assert_close(added_up, large, 1e-6)
        assert_close(first[name][0], added_up, 1e-6)
        assert_same(first[name][0], second[name][0])


def check_validation(expected: Any, results_by_case: Any) -> None:
    assert results_by_case.keys() == expected.keys()
    for case, (metrics, n_records) in expected.items():
        assert results_by_case[case][1] == n_records == case[1]
        assert results_by_case[case][0].keys() == metrics.keys()
        for name, value in metrics.items():
            assert results_by_case[case][0][name] == pytest.approx(value, rel=1e-6, abs=1e-6), (
                case,
                name,
            )


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.soak), FOUR])
def test_validation_ignores_worker_count(
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


def test_batch_mean_losses_equal_keras(two: Path) -> None:
    for losses, expected in results(two, 2, "batch_means"):
        assert losses.keys() == expected.keys() == {"val_loss", "val_one_loss", "val_two_loss"}
        assert losses == pytest.approx(expected, rel=1e-6)


@pytest.mark.soak
@on_tensorflow
def test_uneven_shards_end_together(one: Path, two: Path) -> None:
    alone, first, second = (
        *results(one, 1, "uneven_data"),
        *results(two, 2, "uneven_data"),
    )
    for name in alone:
        assert first[name][0] == second[name][0]
        assert len(first[name][1]) == len(second[name][1]) == 3
        assert_same(first[name][2], second[name][2])
    # 7 and 15 records in batches of 4 are 2 and 4 batches. Each worker takes 11 steps. The last
    # batch of an epoch has 3 records.
    assert [first["own"][0], sum(first["own"][1]), sum(second["own"][1])] == [4, 39, 42]
    # 21 records in batches of 4: the shards have 11 and 10, 3 batches each, 3 epochs and 2 batches.
    assert first["sharded"][0] == 3
    assert [sum(first["sharded"][1]), sum(second["sharded"][1])] == [41, 38]
    assert first["filtered"][0] is None
    # Each batch goes to one worker. Two workers see the same batches as one worker in twice as many
    # steps.
    assert first["arrays"][0] == alone["arrays"][0]


@pytest.mark.soak
def test_validation_uses_chief_model_temporarily(two: Path) -> None:
    first, second = results(two, 2, "own_state")
    for before, after, *_ in (first, second):
        assert_same(before, after)
    assert any(not np.array_equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    assert first[2] == second[2]
    assert not np.array_equal(first[3][0], second[3][0])
    assert first[4] != second[4]


@pytest.mark.soak
def test_chief_callbacks_keep_workers_in_step(one: Path, two: Path) -> None:
    (alone,) = results(one, 1, "chief_only_callbacks")
    first, second = results(two, 2, "chief_only_callbacks")
    assert first[1] == second[1] == ["log-0.csv"]
    assert first[0] == second[0]
    for logs, expected in zip(first[0], alone[0], strict=True):
        assert logs["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert_same(first[2], second[2])


@pytest.mark.soak
@on_tensorflow
def test_plain_test_outputs_are_record_means(one: Path, two: Path) -> None:
    (alone,) = results(one, 1, "plain_numbers")
    first, second = results(two, 2, "plain_numbers")
    assert first == second
    assert first[1] == alone[1] == 12
    assert first[0]["val_error"] == pytest.approx(alone[0]["val_error"], rel=1e-6)


@pytest.mark.soak
@on_tensorflow
def test_worker_errors_name_the_cause(two: Path) -> None:
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
def test_compressed_gradients_train_similarly(one: Path, two: Path) -> None:
    (exact,) = results(one, 1, "compressed")
    first, second = results(two, 2, "compressed")
    assert_same(first, second)
    assert_close(first, exact, 2e-3)
    assert any(not np.array_equal(a, b) for a, b in zip(first, exact, strict=True))


@pytest.mark.parametrize("workers", [1, 2, FOUR])
def test_training_resumes_with_other_worker_count(
    one: Path, two: Path, workers: int, tmp_path: Path
) -> None:
    """The checkpoint contains gradients that are summed over several batches."""
    ((expected, _),) = results(one, 1, "resume_halfway")
    chief_files, worker_files = results(two, 2, "saved_halfway")
    assert "weights.npz" in chief_files
    assert "weights.npz" not in worker_files
    folder = two
    if workers != 2:
        folder = tmp_path
        shutil.copytree(two / "halfway", folder / "halfway")
        run(folder, workers, ["resume_halfway"])
    answers = results(folder, workers, "resume_halfway")
    assert sum(n_records for _, n_records in answers) == 7 * 8
    for weights, _ in answers:
        assert_close(weights, expected, 1e-6)
