"""Faults in a restore are reported before the first batch, with the part that differs.

Most faults are planted in the live objects between the restore and the comparison. The others
replace functions of detcore that save or restore.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fakes import FakeClock, SmallTrial, make_context, seed_everything
from tensorflow_names import KERAS_MAJOR, keras, tf

import detcore_keras
from detcore.checkpoint.restore_audit import audited, check_restored, read_audit
from detcore.errors import InexactResumeError
from detcore.trial import AttributeTracker
from detcore_keras import keras_controller
from detcore_keras.callbacks.callback_list import CallbackMultiplexer
from detcore_keras.data.array_feed import ArrayFeed
from detcore_keras.keras_controller import KerasController
from detcore_keras.state import training_state, variables

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


class Counting(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps an average of the weights, and freezes a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.losses: list[float] = []
        self.generator = np.random.default_rng(4)
        self.average: Any = None
        self.best: dict[str, Any] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.count += 1
        self.losses.append(float(logs["loss"]))
        random.random()
        self.best["step"] = [self.generator.random(2)]
        weights = self.model.get_weights()
        old = self.average or weights
        self.average = [0.5 * (x + y) for x, y in zip(old, weights, strict=True)]
        self.model.layers[-1].trainable = False


class Own(detcore_keras.callbacks.Callback):
    """With methods for its state."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def on_train_workload_end(self, total_batches: int, logs: Any) -> None:
        self.count += 1

    def get_state(self) -> Any:
        return {"count": self.count}

    def load_state(self, state: Any) -> None:
        self.count = state["count"]


class FullTrial(SmallTrial):
    """Has each kind of state that a trial may have."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.seen: list[Any] = []
        self.scale = tf.Variable(1.0)
        self.total = 0

    def build_model(self) -> Any:
        self.compile_options = {
            "optimizer": keras.optimizers.Adam(0.01, use_ema=True),
        }
        return super().build_model()

    def keras_callbacks(self) -> list[Any]:
        def note(epoch: int, logs: Any) -> None:
            self.total += 1
            self.seen.append({"epoch": epoch})
            self.scale.assign_add(1.0)

        self.callbacks = [
            Counting(),
            Own(),
            keras.callbacks.EarlyStopping("loss", patience=50, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("loss", patience=1, factor=0.5),
            keras.callbacks.LambdaCallback(on_epoch_end=note),
        ]
        return list(self.callbacks)


class Clock(FakeClock):
    """Saves with digests also at the end."""

    def save(self, state: KerasController) -> None:
        super().save(self.controller)


class Lab:
    """A trial and its controller, as in a separate process."""

    def __init__(self, folder: Path, kind: type[SmallTrial] = FullTrial, **variant: Any) -> None:
        seed_everything()
        self.context = make_context(folder)
        self.trial: Any = type("Trial", (kind,), variant)(self.context)
        self.controller = KerasController(self.trial, self.context)
        self.model: Any = self.controller._model

    def train(self, until: int, folder: Path, *, save_every: int = 0) -> list[Path]:
        """Train, and return checkpoints from batches of training and from its end."""
        clock = Clock(
            self,  # type: ignore[arg-type]  # validates and saves
            until=until,
            unit=7,
            save_every=save_every or until,
            validate_every=14,
            directory=folder,
        )
        self.controller.run(clock)  # type: ignore[arg-type]  # what is used of it
        self.controller.close()
        return sorted(folder.glob("step-*"), key=lambda path: path.stat().st_mtime_ns)

    def validate(self) -> Any:
        return self.controller.validate()

    def save(self, folder: Path) -> None:
        (folder / "clock.json").write_text('{"workers": 1}')
        audited(self.controller, self.controller.save)(folder)

    def restore(self, folder: Path) -> Lab:
        self.controller.restore(folder)
        return self

    def check(self, folder: Path, reaction: str = "warn") -> None:
        assert check_restored(self.controller, read_audit(folder), reaction=reaction)

    def change(self, part: str, change: Callable[[Any], Any] = lambda x: x + 1) -> None:
        """Change the only variable whose name in the digests contains `part`."""
        named = self.controller._state_reader._named  # type: ignore[union-attr]  # was checked
        (variable,) = (v for name, v in named.items() if part in name)
        variable.assign(change(np.array(variable)))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Lab]:
    """A checkpoint, and a trial into which it can be restored."""
    folder = tmp_path_factory.mktemp("saved")
    (checkpoint,) = Lab(folder).train(24, folder)
    return checkpoint, Lab(folder)


def count_callback(lab: Lab, kind: type) -> Any:
    (callback,) = (c for c in lab.trial.callbacks if isinstance(c, kind))
    return callback


MOMENT, AVERAGE, GENERATOR = (
    ("dense_kernel_momentum", "dense_kernel_average", "seed_generator_state")
    if KERAS_MAJOR == 3
    else ("Adam/m/dense/kernel", "average/dense/kernel", "StateVar")
)
PLANTED: dict[str, tuple[Callable[[Lab], Any], str]] = {
    "optimizer slot": (lambda lab: lab.change(MOMENT, np.zeros_like), f"optimizer.*{MOMENT} was"),
    "average in the optimizer": (lambda lab: lab.change(AVERAGE), f"optimizer.*{AVERAGE} was"),
    "iterations": (lambda lab: lab.change("iteration"), "iteration"),
    "learning rate": (
        lambda lab: setattr(lab.model.optimizer, "learning_rate", 0.01), "learning_rate was"
    ),
    "weight": (lambda lab: lab.change("model.dense_1/kernel"), r"model\.dense_1/kernel was"),
    "flipped weight": (
        lambda lab: lab.change("model.dense_1/kernel", lambda x: np.flip(x, 0)),
        r"model\.dense_1/kernel was",
    ),
    "swapped weights": (
        lambda lab: lab.model.set_weights(count_callback(lab, Counting).average),
        r"model\.dense/kernel was",
    ),
    "statistics of normalization": (
        lambda lab: lab.change("moving_variance"), "moving_variance was saved and not restored"
    ),
    "generator of a layer": (
        lambda lab: lab.change(GENERATOR, lambda x: x // 2),
        r"random\..* was",
    ),
    "flag of a layer": (
        lambda lab: setattr(lab.model.layers[-1], "trainable", True),
        r"model\.dense_1\.trainable was saved and not restored: it was False and is True",
    ),
    "Python's generator": (lambda lab: random.random(), r"random\.python was"),
    "NumPy's generator": (lambda lab: np.random.rand(), r"random\.numpy was"),
    "count of a callback": (
        lambda lab: setattr(count_callback(lab, Counting), "count", 0),
        r"callback Counting\.count was",
    ),
    "list of a callback": (
        lambda lab: count_callback(lab, Counting).losses.clear(), r"callback Counting\.losses was"
    ),
    "generator of a callback": (
        lambda lab: count_callback(lab, Counting).generator.random(),
        r"callback Counting\.generator\['state'\]",
    ),
    "average of a callback": (
        lambda lab: count_callback(lab, Counting).average[0].fill(0),
        r"callback Counting\.average\[0\] was",
    ),
    "dictionary of a callback": (
        lambda lab: count_callback(lab, Counting).best.clear(),
        r"callback Counting\.best\['step'\]\[0\] was",
    ),
    "state of a callback": (
        lambda lab: setattr(count_callback(lab, Own), "count", 0),
        r"callback Own\['count'\] was saved and not restored: it was 4 and is 0",
    ),
    "best loss of EarlyStopping": (
        lambda lab: setattr(count_callback(lab, keras.callbacks.EarlyStopping), "best", 9.0),
        r"callback EarlyStopping\.best was",
    ),
    "best weights of EarlyStopping": (
        lambda lab: count_callback(lab, keras.callbacks.EarlyStopping).best_weights[0].fill(0),
        r"callback EarlyStopping\.best_weights\[0\] was",
    ),
    "wait of ReduceLROnPlateau": (
        lambda lab: setattr(count_callback(lab, keras.callbacks.ReduceLROnPlateau), "best", 7.0),
        r"callback ReduceLROnPlateau\.best was",
    ),
    "number of the trial": (lambda lab: setattr(lab.trial, "total", 0), r"trial\.total was"),
    "list of the trial": (lambda lab: lab.trial.seen.pop(), r"trial\.seen\[2\]\['epoch'\] was"),
    "variable of the trial": (lambda lab: lab.trial.scale.assign(1.0), r"trial\.scale was"),
    "data position": (
        lambda lab: lab.controller._feed.seek(23), r"data\.position was .* it was 24 and is 23"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_named(saved: tuple[Path, Lab], fault: str) -> None:
    plant, part = PLANTED[fault]
    checkpoint, lab = saved
    lab.restore(checkpoint).check(checkpoint)
    plant(lab)
    with pytest.raises(InexactResumeError, match=part):
        lab.check(checkpoint)


SOAK_VARIANTS: list[dict[str, Any]] = [
    {"kind": SmallTrial, "data_kind": "tf.data"},
    {"kind": SmallTrial, "data_kind": "augmented"},
    {"kind": SmallTrial, "model_kind": "subclassed"},
]


@pytest.mark.parametrize(
    "variant",
    [{"kind": FullTrial}, *(pytest.param(v, marks=pytest.mark.soak) for v in SOAK_VARIANTS)],
)
def test_exact_restore_is_not_reported(tmp_path: Path, variant: dict[str, Any]) -> None:
    checkpoints = Lab(tmp_path, **variant).train(42, tmp_path, save_every=7)
    assert len(checkpoints) == 6
    later = Lab(tmp_path, **variant)
    for checkpoint in checkpoints:
        later.restore(checkpoint).check(checkpoint)
        (again := tmp_path / f"{checkpoint.name}-again").mkdir()
        later.save(again)  # a trial that is killed twice
        later.restore(again).check(again)
    later.controller.close()


def omit_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither save nor restore a variable, nor count it as state."""
    listed = variables.training_variables

    def list_some(model: Any, optimizers: Any) -> list[Any]:
        return [item for item in listed(model, optimizers) if MOMENT not in item.name]

    monkeypatch.setattr(keras_controller, "training_variables", list_some)


def forget_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = training_state.restore_training_state
    monkeypatch.setattr(
        keras_controller,
        "restore_training_state",
        lambda items, folder: restore(items, folder, leave_out=frozenset({"optimizer"})),
    )


def forget_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_controller, "restore_rng", lambda folder: None)


def forget_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_controller, "set_trainable", lambda model, flags: None)


def forget_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CallbackMultiplexer, "load_state", lambda callbacks, *saved: None)


def omit_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttributeTracker, "capture", lambda tracker: {})


def restore_wrong_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = ArrayFeed.restore
    monkeypatch.setattr(
        ArrayFeed,
        "restore",
        lambda feed, folder, state: (restore(feed, folder, state), feed.seek(feed.position - 7)),
    )


EARLIER_FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (omit_slot, f"{MOMENT} was saved and not restored"),
    (forget_optimizer, "optimizer.*iteration was saved and not restored"),
    (forget_generators, r"random\.python was saved and not restored"),
    (forget_flags, r"model\.dense_1\.trainable was saved and not restored"),
    (forget_callbacks, r"callback Counting\.count was saved and not restored"),
    (omit_attributes, r"callback Counting\.count was saved and not restored"),
    (restore_wrong_batch, r"data\.position was .* it was 24 and is 17"),
]


@pytest.mark.parametrize(("plant", "part"), EARLIER_FAULTS)
def test_earlier_fault_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    saved: tuple[Path, Lab],
    plant: Callable[[pytest.MonkeyPatch], None],
    part: str,
) -> None:
    plant(monkeypatch)
    checkpoint, _ = saved
    if plant in (omit_slot, omit_attributes):
        (checkpoint,) = Lab(tmp_path).train(24, tmp_path)
    lab = Lab(tmp_path).restore(checkpoint)
    with pytest.raises(InexactResumeError, match=part):
        lab.check(checkpoint)
