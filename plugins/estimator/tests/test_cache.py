"""Cached datasets are written once in a separate session, in the order of the trial's seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_fakes import (
    FEATURES,
    LABELS,
    Classifier,
    assert_same,
    make_context,
    train,
    variables_in,
)
from test_context import Worker, read_elements

from detcore.errors import (
    CheckFailedError,
    ContextStateError,
    DataError,
    InvalidDataTypeError,
    UnsafePathError,
)
from detcore_estimator.estimator_context import EstimatorTrialContext
from detcore_estimator.tensorflow_versions import tf, tf1


class Source:
    """Creates datasets, and counts its calls."""

    def __init__(self, make: Callable[[], Any] = lambda: tf.data.Dataset.range(20)) -> None:
        self.calls = 0
        self.make = make

    def __call__(self) -> Any:
        self.calls += 1
        return self.make()


def ready_context(tmp_path: Path, **changes: Any) -> EstimatorTrialContext:
    """Return a context whose session configuration is known."""
    context = make_context(tmp_path, **changes)
    context.session_config = tf1.ConfigProto(inter_op_parallelism_threads=1)
    return context


def read_numbers(dataset_fn: Callable[[], Any]) -> list[int]:
    return [int(value) for value in read_elements(dataset_fn)]


def cache_numbers(context: EstimatorTrialContext, source: Any = None, **settings: Any) -> Any:
    """Return a function that reads the training data "numbers" through the cache."""
    cache = context.experimental.cache_train_dataset("numbers", "1", **settings)
    return cache(source or Source())


def test_dataset_is_written_once(tmp_path: Path) -> None:
    source = Source()
    for _ in range(2):
        context = ready_context(tmp_path)
        assert read_numbers(cache_numbers(context, source)) == list(range(20))
        assert context.wrapped_datasets
    assert source.calls == 1
    context = ready_context(tmp_path)
    assert read_numbers(context.experimental.cache_validation_dataset("numbers", "1")(source))
    assert source.calls == 2
    folders = sorted(p.name for p in (tmp_path / "cache" / "datasets" / "numbers").iterdir())
    assert folders == ["1_train", "1_val"]


def test_session_waits_for_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[Any] = []
    real = tf1.Session

    def spy(*args: Any, config: Any = None, **kwargs: Any) -> Any:
        configs.append(config)
        return real(*args, config=config, **kwargs)

    source = Source()
    early = make_context(tmp_path)
    cached = cache_numbers(early, source)
    monkeypatch.setattr(tf1, "Session", spy)
    with tf.Graph().as_default(), pytest.raises(ContextStateError, match="inside input_fn"):
        cached()
    assert (configs, source.calls) == ([], 0)
    early.session_config = tf1.ConfigProto(inter_op_parallelism_threads=1)
    with tf.Graph().as_default():
        cached()
    assert configs == [early.session_config]
    # Cached data is read without a session.
    with tf.Graph().as_default():
        cache_numbers(make_context(tmp_path), source)()
    assert len(configs) == 1


def test_record_keys_keep_their_order(tmp_path: Path) -> None:
    names = [f"key{number}" for number in (7, 3, 9, 1, 8, 2, 6, 4, 5, 0)]
    make = Source(lambda: tf.data.Dataset.from_tensors(({name: name for name in names}, 1)))
    for _ in range(3):
        cached = ready_context(tmp_path).experimental.cache_train_dataset("keys", "1")(make)
        with tf.Graph().as_default():
            features, label = cached().element_spec
        assert list(features) == names
        assert label.dtype == tf.int32
        assert read_elements(cached)[0][0]["key9"] == b"key9"


def test_dataset_with_table_and_generator(tmp_path: Path) -> None:
    def make() -> Any:
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), default_value=0
        )
        words = tf.data.Dataset.from_generator(
            lambda: iter("abcab"), output_signature=tf.TensorSpec((), tf.string)
        )
        return words.map(table.lookup).filter(lambda number: number > 0)

    cached = ready_context(tmp_path).experimental.cache_train_dataset("words", "1")(make)
    assert read_numbers(cached) == [1, 2, 1, 2]


def test_shuffle_depends_on_the_seed(tmp_path: Path) -> None:
    orders = []
    for skip in (False, False, True):
        cache = ready_context(tmp_path).experimental.cache_train_dataset("numbers", "1", True, skip)
        cached = cache(Source())
        order = read_numbers(lambda cached=cached: cached().repeat(2))
        orders.append((order[:20], order[20:]))
    assert orders[0] == orders[1]
    assert orders[0][0] != list(range(20))
    assert sorted(orders[0][0]) == sorted(orders[0][1]) == list(range(20))
    assert orders[0][0] != orders[0][1]
    assert orders[2][0] == orders[2][1]
    other = ready_context(tmp_path, seed=12).experimental.cache_validation_dataset(
        "numbers", "1", True
    )
    assert read_numbers(lambda: other(Source())()) != orders[0][0]


@pytest.mark.parametrize("is_kept", [True, False])
def test_shards(tmp_path: Path, is_kept: bool) -> None:
    changes = {} if is_kept else {"cache_dir": None}
    train, validation = [], []
    for rank in range(3):
        context = ready_context(tmp_path, distributed=Worker(rank, 3), **changes)
        train.append(read_numbers(context.experimental.cache_train_dataset("n", "1")(Source())))
        validation.append(
            read_numbers(context.experimental.cache_validation_dataset("n", "1")(Source()))
        )
    assert train == [list(range(18))[rank::3] for rank in range(3)]  # shards of equal size
    assert validation == [list(range(20))[rank::3] for rank in range(3)]


def test_without_cache_directory_opens_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = EstimatorTrialContext.from_config({})
    cached = cache_numbers(context, shuffle=True)
    order = read_numbers(cached)
    assert order != list(range(20))
    assert sorted(order) == list(range(20))
    monkeypatch.setattr(tf1, "Session", None)
    with tf.Graph().as_default():
        cached()


@pytest.mark.filterwarnings("ignore:Seed 11 from outer graph:UserWarning")  # expected
def test_random_numbers_ignore_the_cache(tmp_path: Path) -> None:
    def make() -> Any:
        values = [random.random(), np.random.normal()]
        return tf.data.Dataset.from_tensor_slices(np.array(values)).map(
            lambda value: value + tf.random.uniform((), dtype=tf.float64)
        )

    numbers, records = [], []
    for folder in ("a", "a", "b"):  # written, read, written to another directory
        random.seed(3)
        np.random.seed(3)
        context = ready_context(tmp_path, cache_dir=tmp_path / folder)
        cached = context.experimental.cache_train_dataset("random", "1")(make)
        records.append(read_elements(cached))
        numbers.append((random.random(), np.random.normal()))
    assert numbers[0] == numbers[1] == numbers[2]
    assert records[0] == records[1] == records[2]


def test_errors(tmp_path: Path) -> None:
    context = ready_context(tmp_path)
    for name in ("../up", "", ".hidden", "a/b", "a b"):
        with pytest.raises(UnsafePathError, match="dataset_id is"):
            context.experimental.cache_train_dataset(name, "1")
    with pytest.raises(UnsafePathError, match="dataset_version is"):
        context.experimental.cache_validation_dataset(dataset_id="a", dataset_version="1/2")
    for make, error, match in (
        (lambda: tf.data.Dataset.range(3).repeat(), DataError, "has no end"),
        (lambda: tf.data.Dataset.range(0), DataError, "is empty: it has 0 records"),
        (lambda: tf.data.Dataset.range(3).filter(lambda n: n > 3), DataError, "is empty"),
        (lambda: 3, InvalidDataTypeError, r"returned 3 \(int\)"),
        (lambda: (FEATURES, LABELS), InvalidDataTypeError, "returned .*tuple"),
    ):
        cached = context.experimental.cache_validation_dataset("wrong", "1")(make)
        with tf.Graph().as_default(), pytest.raises(error, match=match):
            cached()
    assert list((tmp_path / "cache" / "datasets" / "wrong").iterdir()) == []
    for _ in range(2):  # an input_fn that runs twice
        cache_numbers(context)
    with pytest.raises(CheckFailedError, match="used twice"):
        context.experimental.cache_train_dataset("numbers", "2")
    with pytest.raises(CheckFailedError, match="both used"):
        context.wrap_dataset(tf.data.Dataset.range(3))
    context = ready_context(tmp_path)
    context.wrap_dataset(tf.data.Dataset.range(3))
    with pytest.raises(CheckFailedError, match=r"after context\.wrap_dataset"):
        cache_numbers(context)


class CachedTrial(Classifier):
    """A trial with cached training and validation data, and one custom metric."""

    calls = 0

    def train_data(self) -> Any:
        @self.context.experimental.cache_train_dataset("classes", "1", shuffle=True)
        def make() -> Any:
            CachedTrial.calls += 1
            return self.records()

        return make().batch(8)

    def validation_data(self) -> Any:
        cache = self.context.experimental.cache_validation_dataset("classes", "1")
        return cache(lambda: self.records(20))().batch(8)

    def more_metrics(self, logits: Any) -> dict[str, Any]:
        return {"batches": self.context.make_metric(logits, len, np.int32)}


def test_trial_resumes_exactly(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    periods = {"until": 20, "validate_every": 10, "unit": 1, "save_every": 9}
    uninterrupted = train(CachedTrial, tmp_path, folder, **periods)
    expected = variables_in((folder / "20").rename(tmp_path / "end"))
    (folder / "18").rename(tmp_path / "18")
    resumed = train(CachedTrial, tmp_path, folder, resume=9, **periods)
    assert CachedTrial.calls == 1
    assert_same(variables_in(folder / "20"), expected)
    assert resumed.validations == uninterrupted.validations
    assert [metrics["batches"] for _, metrics in uninterrupted.validations] == [3, 3]
