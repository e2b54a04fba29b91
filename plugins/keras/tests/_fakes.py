"""A clock, a context and trials for controller tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from detcore.trial import TrialSetup
from detcore.types import GradientSettings, Length, TrialInfo, TrialSettings, Unit
from detcore_keras.frameworks import keras
from detcore_keras.keras_context import TFKerasTrialContext
from detcore_keras.keras_controller import KerasController
from detcore_keras.keras_trial import TFKerasTrial
from detcore_keras.state.training_state import capture_training_state, write_array_files
from detcore_keras.state.variables import training_variables

SEED = 11


class OneWorker:
    """The ranks of a single process."""

    rank = 0
    size = 1

    def get_rank(self) -> int:
        return 0

    def get_size(self) -> int:
        return 1


class FakeClock:
    """A clock with fixed periods that records all reports.

    Args:
        until: Batch at which training ends.
        unit: Batches between reports.
        validate_every, save_every: Batches; 0 = never.
        interrupt: Returns whether to stop the training.
        asynchronous: Whether to take snapshots, and write each while training continues.
    """

    def __init__(
        self,
        controller: KerasController,
        *,
        until: int,
        unit: int = 5,
        validate_every: int = 0,
        save_every: int = 0,
        directory: Path | None = None,
        start: int = 0,
        interrupt: Callable[[], bool] | None = None,
        context: TFKerasTrialContext | None = None,
        asynchronous: bool = False,
    ) -> None:
        self.controller = controller
        self.asynchronous = asynchronous
        self._write: Callable[[], None] | None = None
        self.context = context
        self.until, self.unit = until, unit
        self.validate_every, self.save_every = validate_every, save_every
        self.directory = directory
        self.steps_completed = start
        self.batches_per_epoch = 0
        self.interrupt = interrupt
        self.training: list[tuple[int, dict[str, float]]] = []
        self.batches: list[Mapping[str, float]] = []
        self.validations: list[tuple[int, dict[str, float]]] = []
        self.records: list[int | None] = []
        self.validated_records: list[int | None] = []
        self.next_boundary = min(until, start + unit)
        self.stopped: str | None = None

    def slowest(self, seconds: float) -> float:
        distributed = None if self.context is None else self.context.distributed
        if distributed is None or distributed.size == 1:
            return seconds
        return max(distributed.allgather(seconds))

    @property
    def interrupt_requested(self) -> bool:
        stop = self.context is not None and self.context.get_stop_requested()
        return stop or (self.interrupt is not None and self.interrupt())

    def boundary(
        self,
        steps_completed: int,
        training_metrics: Mapping[str, float],
        batch_metrics: Sequence[Mapping[str, float]] | None = None,
        *,
        n_records: int | None = None,
    ) -> bool:
        interrupted = self.interrupt_requested
        self.records.append(n_records)
        self.steps_completed = steps_completed
        self.training.append((steps_completed, dict(training_metrics)))
        self.batches.extend(batch_metrics or ())
        if self.validate_every and steps_completed % self.validate_every == 0:
            result = self.controller.validate()
            self.validations.append((steps_completed, dict(result.metrics)))
            self.validated_records.append(result.n_records)
            interrupted = self.interrupt_requested
        if self.save_every and (steps_completed % self.save_every == 0 or interrupted):
            assert self.directory is not None
            target = self.directory / f"step-{steps_completed}"
            target.mkdir(parents=True)
            if self.asynchronous:
                self._end_save()
                self._write = self.controller.snapshot(target)
            else:
                self.controller.save(target)
        self.next_boundary = min(self.until, steps_completed + self.unit)
        going = steps_completed < self.until and not interrupted
        if not going:
            self._end_save()
            self.stopped = "completed"
            if interrupted:
                has_stop = self.context is not None and self.context.get_stop_requested()
                self.stopped = "stop requested" if has_stop else "preempted"
        return going

    def save(self, state: KerasController) -> None:
        """Save again at the end, and replace the last checkpoint."""
        if self.directory is not None:
            target = self.directory / f"step-{self.steps_completed}"
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            state.save(target)

    def _end_save(self) -> None:
        """Write the previous snapshot on another thread, after training has continued."""
        if self._write is not None:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(self._write).result()
            self._write = None


def make_context(tmp_path: Path, **options: Any) -> TFKerasTrialContext:
    """Return a managed context.

    Options: hparams, config, ledger, test_mode, batch_size, distributed, steps_completed.
    """
    hparams = {"global_batch_size": options.get("batch_size", 8), **options.get("hparams", {})}
    config = options.get("config", {})
    info = TrialInfo(
        experiment_id=1,
        trial_id=1,
        run_id=1,
        trial_seed=SEED,
        hparams=hparams,
        config=config,
        model_dir=str(tmp_path),
        trial_dir=str(tmp_path),
    )
    length = config.get("searcher", {}).get("max_length")
    settings = TrialSettings(
        max_length=Length(length["epochs"], Unit.EPOCHS) if length else None,
        gradients=GradientSettings(**config.get("optimizations", {})),
    )
    setup = TrialSetup(
        config=config,
        settings=settings,
        hparams=hparams,
        seed=SEED,
        distributed=options.get("distributed") or OneWorker(),  # type: ignore[arg-type]
        info=info,
        tensorboard_path=tmp_path / "tensorboard",
        cache_dir=tmp_path / "cache",
        ledger=options.get("ledger"),
        steps_completed=options.get("steps_completed", 0),
        test_mode=options.get("test_mode", False),
    )
    return TFKerasTrialContext(setup)


def seed_everything() -> None:
    keras.backend.clear_session()
    keras.utils.set_random_seed(SEED)


def records(count: int = 52, features: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Return a small learnable data set."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(count, features)).astype("float32")
    y = (x[:, 0] + x[:, 1] > 0).astype("int64") + (x[:, 2] > 0.5)
    return x, y


class SmallTrial(TFKerasTrial):
    """Dropout, batch normalization and Adam on a few records; variants by attribute."""

    model_kind = "functional"
    data_kind = "arrays"
    compile_options: dict[str, Any] = {}
    callbacks: Sequence[Any] = ()

    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context

    def build_model(self) -> Any:
        model = self.context.wrap_model(MODELS[self.model_kind]())
        options: dict[str, Any] = {
            "optimizer": keras.optimizers.Adam(0.01),
            "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": ["accuracy"],
        }
        options.update(self.compile_options)
        model.compile(**options)
        return model

    def build_training_data_loader(self) -> Any:
        return DATA[self.data_kind](self.context, True)

    def build_validation_data_loader(self) -> Any:
        return DATA[self.data_kind](self.context, False)

    def keras_callbacks(self) -> list[Any]:
        return list(self.callbacks)


def _layers() -> list[Any]:
    return [
        keras.layers.Dense(7, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.4),
        keras.layers.Dense(3),
    ]


def functional() -> Any:
    inputs = outputs = keras.Input((6,))
    for layer in _layers():
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


class Subclassed(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.parts = _layers()

    def call(self, x: Any, training: bool = False) -> Any:
        for layer in self.parts:
            x = layer(x, training=training) if "Dense" not in layer.name else layer(x)
        return x


def sequential() -> Any:
    return keras.Sequential(_layers())


MODELS: dict[str, Callable[[], Any]] = {
    "functional": functional,
    "sequential": sequential,
    "subclassed": Subclassed,
}


class Batches(getattr(keras.utils, "PyDataset", keras.utils.Sequence)):  # type: ignore[misc]
    """A Sequence that also shuffles itself after each epoch."""

    def __init__(self, x: np.ndarray, y: np.ndarray, size: int) -> None:
        if hasattr(keras.utils, "PyDataset"):
            super().__init__()
        self.x, self.y, self.size = x, y, size
        self.order = np.arange(len(x))

    def __len__(self) -> int:
        return -(-len(self.x) // self.size)

    def __getitem__(self, index: int) -> Any:
        rows = self.order[index * self.size : (index + 1) * self.size]
        return self.x[rows], self.y[rows]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)


class Augmented(Batches):
    """Draws from a private generator for each batch, and for the order."""

    def __init__(self, x: np.ndarray, y: np.ndarray, size: int) -> None:
        super().__init__(x, y, size)
        self.rng = np.random.default_rng(8)

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + self.rng.normal(size=x.shape).astype("float32"), y

    def on_epoch_end(self) -> None:
        self.rng.shuffle(self.order)


def _arrays(context: TFKerasTrialContext, training: bool) -> Any:
    return records()


def _weighted_arrays(context: TFKerasTrialContext, training: bool) -> Any:
    x, y = records()
    return x, y, np.linspace(0.5, 2.0, len(y)).astype("float32")


def _dataset(context: TFKerasTrialContext, training: bool) -> Any:
    import tensorflow as tf

    dataset = context.wrap_dataset(tf.data.Dataset.from_tensor_slices(records()))
    return dataset.shuffle(52).batch(context.get_per_slot_batch_size())


def _opaque_dataset(context: TFKerasTrialContext, training: bool) -> Any:
    """A dataset with a Python function inside, whose state cannot be saved."""
    import tensorflow as tf

    x, y = records()
    spec = (tf.TensorSpec((6,), tf.float32), tf.TensorSpec((), tf.int64))
    dataset = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=spec)
    return context.wrap_dataset(dataset).shuffle(52).batch(context.get_per_slot_batch_size())


def _sequence(context: TFKerasTrialContext, training: bool) -> Any:
    return Batches(*records(), context.get_per_slot_batch_size())


def _augmented(context: TFKerasTrialContext, training: bool) -> Any:
    return Augmented(*records(), context.get_per_slot_batch_size())


def _adapter(context: TFKerasTrialContext, training: bool) -> Any:
    from detcore_keras import SequenceAdapter

    return SequenceAdapter(_sequence(context, training), workers=2)


DATA: dict[str, Callable[[TFKerasTrialContext, bool], Any]] = {
    "arrays": _arrays,
    "weighted": _weighted_arrays,
    "tf.data": _dataset,
    "opaque": _opaque_dataset,
    "sequence": _sequence,
    "augmented": _augmented,
    "adapter": _adapter,
}


def fingerprint(controller: KerasController) -> list[np.ndarray]:
    """Return all weights and all optimizer state."""
    model = controller._model
    values = [np.asarray(v) for v in model.get_weights()]
    for optimizer in controller._list_optimizers():
        variables = optimizer.variables
        variables = variables() if callable(variables) else variables
        values.extend(np.asarray(v) for v in variables)
    return values


def assert_same(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> None:
    """Check equality, bit for bit."""
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


def write_training_state(
    model: Any, optimizers: Sequence[Any], directory: Path, *, input_spec: Any = None
) -> None:
    """Write the result of `capture_training_state`."""
    state = capture_training_state(training_variables(model, optimizers), input_spec=input_spec)
    state.write_record(directory)
    write_array_files(directory, state.files)
