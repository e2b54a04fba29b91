"""Cached datasets are created once, shuffled by the trial's seed, and resume exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fakes import (
    FakeClock,
    SmallTrial,
    assert_same,
    fingerprint,
    make_context,
    records,
    seed_everything,
)
from tensorflow_names import tf

from detcore.errors import CheckFailedError, DataError, InvalidDataTypeError, UnsafePathError
from detcore_keras.keras_controller import KerasController


class Source:
    """Counts calls that create the dataset."""

    def __init__(self, dataset: Any = None) -> None:
        self.calls = 0
        self.dataset = dataset

    def __call__(self) -> Any:
        self.calls += 1
        return tf.data.Dataset.range(20) if self.dataset is None else self.dataset


def read(dataset: Any) -> list[int]:
    return [int(value) for value in dataset]


def test_dataset_is_created_once(tmp_path: Path) -> None:
    source = Source()
    for _ in range(2):
        context = make_context(tmp_path)
        cached = context.experimental.cache_train_dataset("numbers", "1")(source)
        assert read(cached()) == list(range(20))
        assert int(cached().cardinality()) == 20
    assert source.calls == 1
    context = make_context(tmp_path)
    assert read(context.experimental.cache_validation_dataset("numbers", "1")(source)())
    assert source.calls == 2
    folders = sorted(p.name for p in (tmp_path / "cache" / "datasets" / "numbers").iterdir())
    assert folders == ["1_train", "1_val"]


def test_record_keys_keep_their_order(tmp_path: Path) -> None:
    names = [f"key{number}" for number in (7, 3, 9, 1, 8, 2, 6, 4, 5, 0)]
    source = Source(tf.data.Dataset.from_tensors({name: name for name in names}))
    for _ in range(3):
        cached = make_context(tmp_path).experimental.cache_train_dataset("keys", "1")(source)
        assert list(cached().element_spec) == names


def test_cache_does_not_change_random_numbers(tmp_path: Path) -> None:
    numbers = []
    for _ in range(2):
        np.random.seed(3)

        def make() -> Any:
            return tf.data.Dataset.from_tensor_slices(np.random.normal(size=3))

        make_context(tmp_path).experimental.cache_train_dataset("random", "1")(make)()
        numbers.append(np.random.normal())
    assert numbers[0] == numbers[1]


def test_cached_dataset_is_shuffled_by_seed(tmp_path: Path) -> None:
    orders = []
    for skip in (False, False, True):
        context = make_context(tmp_path)
        decorate = context.experimental.cache_train_dataset("numbers", "1", True, skip)
        dataset = decorate(Source())()
        orders.append((read(dataset), read(dataset)))
    assert orders[0] == orders[1]
    assert orders[0][0] != list(range(20))
    assert sorted(orders[0][0]) == list(range(20))
    assert orders[0][0] != orders[0][1]
    assert orders[2][0] == orders[2][1]


def test_invalid_cache_uses_are_rejected(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    for name in ("../up", "", ".hidden", "a/b", "a b"):
        with pytest.raises(UnsafePathError, match="dataset_id is"):
            context.experimental.cache_train_dataset(name, "1")
    with pytest.raises(UnsafePathError, match="dataset_version is"):
        context.experimental.cache_validation_dataset("a", "1/2")
    endless = Source(tf.data.Dataset.range(3).repeat())
    with pytest.raises(DataError, match="has no end"):
        context.experimental.cache_validation_dataset("endless", "1")(endless)()
    with pytest.raises(InvalidDataTypeError, match="returned 3"):
        context.experimental.cache_validation_dataset("three", "1")(Source(3))()
    context.experimental.cache_train_dataset("numbers", "1")
    with pytest.raises(CheckFailedError, match="used twice"):
        context.experimental.cache_train_dataset("numbers", "2")
    with pytest.raises(CheckFailedError, match="both used"):
        context.wrap_dataset(tf.data.Dataset.range(3))


class CachedTrial(SmallTrial):
    def build_training_data_loader(self) -> Any:
        @self.context.experimental.cache_train_dataset("small", "1", shuffle=True)
        def make() -> Any:
            return tf.data.Dataset.from_tensor_slices(records())

        return make().batch(8)

    def build_validation_data_loader(self) -> Any:
        @self.context.experimental.cache_validation_dataset("small", "1")
        def make() -> Any:
            return tf.data.Dataset.from_tensor_slices(records())

        return make().batch(8)


def test_cached_trial_resumes_exactly(tmp_path: Path) -> None:
    ends = []
    for resume in (False, True):
        seed_everything()
        context = make_context(tmp_path)
        controller = KerasController(CachedTrial(context), context)
        step = 0
        if resume:
            step = 9
            controller.restore(tmp_path / "saved" / "step-9")
        clock = FakeClock(
            controller,
            until=20,
            unit=3,
            save_every=0 if resume else 9,
            directory=tmp_path / "saved",
            start=step,
        )
        controller.run(clock)
        ends.append(fingerprint(controller))
    assert_same(ends[0], ends[1])
