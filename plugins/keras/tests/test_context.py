"""The context's wrapping methods, and error messages for broken trials."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fakes import Batches, SmallTrial, functional, make_context, records, seed_everything
from tensorflow_names import KERAS_MAJOR, keras, tf

from detcore.errors import (
    CheckFailedError,
    DataError,
    InvalidDataTypeError,
    InvalidExperimentError,
    InvalidModelError,
)
from detcore_keras import SequenceAdapter
from detcore_keras.data.dataset_feed import is_wrapped
from detcore_keras.frameworks import backend
from detcore_keras.keras_controller import KerasController


def controller_of(
    tmp_path: Path, context_options: dict[str, Any] | None = None, **methods: Any
) -> Any:
    seed_everything()
    context = make_context(tmp_path, **(context_options or {}))
    return KerasController(type("Broken", (SmallTrial,), methods)(context), context)


def returning(value: Any) -> Any:
    return lambda self: value


X, Y = records()


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [
        (([[1.0]], Y), InvalidDataTypeError, r"1\.0 \(float\) as part of x"),
        ((X, "labels"), InvalidDataTypeError, r"'labels' \(str\) as part of y"),
        ([X, Y], InvalidDataTypeError, r"list.* not supported as training data"),
        ((X, Y, Y, Y), InvalidDataTypeError, r"a tuple of 4"),
        (7, InvalidDataTypeError, r"7 \(int\) is not supported"),
        ((X, Y[:-1]), CheckFailedError, r"differ in length: x: \(52, 6\), y: \(51,\)"),
        ((X[:5], Y[:5]), CheckFailedError, r"a batch of 8 records is larger .* has 5"),
        ((X[:0], Y[:0]), DataError, r"training data is empty: its arrays have 0 records"),
    ],
)
def test_invalid_training_data_is_rejected(
    tmp_path: Path, data: Any, error: Any, match: str
) -> None:
    with pytest.raises(error, match=match):
        controller_of(tmp_path, build_training_data_loader=returning(data))


def test_invalid_validation_data_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidDataTypeError, match=r"None .* is not supported as validation data"):
        controller_of(tmp_path, build_validation_data_loader=returning(None))


def test_unwrapped_dataset_is_rejected(tmp_path: Path) -> None:
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    with pytest.raises(InvalidExperimentError, match=r"training_data_loader .* was not wrapped"):
        controller_of(tmp_path, build_training_data_loader=returning(dataset))


def test_empty_datasets_are_rejected(tmp_path: Path) -> None:
    def empty(self: Any) -> Any:
        return self.context.wrap_dataset(
            tf.data.Dataset.from_tensor_slices((X, Y)).take(0).batch(8)
        )

    with pytest.raises(DataError, match=r"empty tf\.data\.Dataset: it has 0 batches"):
        controller_of(tmp_path, build_training_data_loader=empty)

    def filtered(self: Any) -> Any:
        dataset = self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices((X, Y)))
        return dataset.filter(lambda x, y: False).batch(8)

    with pytest.raises(DataError, match="validation data is empty: it has 0 batches"):
        controller_of(tmp_path, build_validation_data_loader=filtered).validate()


def test_wrap_mark_survives_transformations(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    wrapped = context.wrap_dataset(tf.data.Dataset.range(10))
    other = tf.data.Dataset.range(10)
    options = tf.data.Options()
    later = tf.data.Dataset.zip((wrapped.map(lambda v: v), other)).batch(2).with_options(options)
    assert is_wrapped(later, context.wrapped_datasets)
    assert not is_wrapped(other.batch(2), context.wrapped_datasets)


def test_invalid_models_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"build_model returned 'model' \(str\)"):
        controller_of(tmp_path, build_model=returning("model"))
    with pytest.raises(InvalidModelError, match="did not wrap"):
        controller_of(tmp_path, build_model=lambda self: functional())
    with pytest.raises(InvalidModelError, match="did not compile"):
        controller_of(tmp_path, build_model=lambda self: self.context.wrap_model(functional()))
    with pytest.raises(InvalidModelError, match="wrap_model received 'm'"):
        make_context(tmp_path).wrap_model("m")


def test_build_model_may_return_nothing(tmp_path: Path) -> None:
    def build(self: Any) -> None:
        SmallTrial.build_model(self)

    assert controller_of(tmp_path, build_model=build).batches_per_epoch() == 7


def test_missing_batch_size_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidExperimentError, match="global_batch_size is not set"):
        controller_of(tmp_path, {"batch_size": None})


def test_invalid_callbacks_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidExperimentError, match="not a Keras callback"):
        controller_of(tmp_path, callbacks=[lambda: None])


# Keras 3 passes its variables to NumPy 2, which warns about a missing argument.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")
def test_aggregating_optimizer_is_saved_unchanged(tmp_path: Path) -> None:
    options = {"config": {"optimizations": {"aggregation_frequency": 2}}}
    controller = controller_of(tmp_path, options)
    model = controller._model
    assert isinstance(model.optimizer, keras.optimizers.Adam)
    # test_workers.py tests the training. Here, the saved optimizer has its original class.
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.Adam
    assert loaded.optimizer.get_config() == model.optimizer.get_config()


def test_inner_optimizer_uses_summed_gradients(tmp_path: Path) -> None:
    inner = keras.optimizers.SGD(0.5)
    outer = keras.mixed_precision.LossScaleOptimizer(inner)
    context = make_context(tmp_path, config={"optimizations": {"aggregation_frequency": 2}})
    backend.share_gradients([outer, inner], context.setup.settings.gradients, None)
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    layer.build((None, 2))
    (kernel,) = layer.trainable_variables
    has_changed = []
    for _ in range(4):
        outer.apply_gradients([(tf.ones((2, 1)), kernel)])
        has_changed.append(bool(kernel.numpy()[0] < 1))
    assert has_changed == [False, True, True, True]


@pytest.mark.skipif(KERAS_MAJOR == 2, reason="only Keras 3 optimizers accumulate gradients")
def test_double_gradient_accumulation_is_rejected(tmp_path: Path) -> None:
    options = {"config": {"optimizations": {"aggregation_frequency": 2}}}
    adds_up = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
    with pytest.raises(InvalidExperimentError, match="gradient_accumulation_steps=3"):
        controller_of(tmp_path, options, compile_options={"optimizer": adds_up})


def test_configure_fit_merges(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    context.configure_fit(class_weight={0: 2.0}, workers=3)
    context.configure_fit(shuffle=False)
    assert context.fit_options.class_weight == {0: 2.0}
    assert (context.fit_options.workers, context.fit_options.shuffle) == (3, False)
    context.configure_fit(class_weight=None)
    assert context.fit_options.class_weight is None
    with pytest.raises(InvalidExperimentError, match=r"workers=-1 .*an integer >= 0"):
        context.configure_fit(workers=-1)


def test_wrap_optimizer_requires_optimizer_object(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    optimizer = keras.optimizers.SGD()
    assert context.wrap_optimizer(optimizer) is optimizer
    with pytest.raises(InvalidExperimentError, match="'adam'"):
        context.wrap_optimizer("adam")


def test_sequence_adapter_checks_arguments() -> None:
    class Empty(Batches):
        def __len__(self) -> int:
            return 0

    with pytest.raises(DataError, match="empty Empty"):
        SequenceAdapter(Empty(X, Y, 8))
    with pytest.raises(InvalidDataTypeError, match="int, which has no length"):
        SequenceAdapter(3)
    with pytest.raises(InvalidExperimentError, match="workers=-1"):
        SequenceAdapter(Batches(X, Y, 8), workers=-1)


def test_unmanaged_context_returns_its_arguments(tmp_path: Path) -> None:
    import dataclasses

    managed = make_context(tmp_path)
    context = type(managed)(dataclasses.replace(managed.setup, info=None))
    dataset = tf.data.Dataset.range(3)
    assert context.wrap_dataset(dataset) is dataset
    assert context.wrap_optimizer("adam") == "adam"


def test_package_import_does_not_load_tensorflow() -> None:
    code = "import sys, detcore_keras, detcore_keras.plugin; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    assert np.__version__
