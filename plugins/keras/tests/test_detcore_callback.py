"""`DetcoreCallback` under a real Core API context."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fakes import functional, records, seed_everything

from detcore import core
from detcore.errors import InvalidExperimentError
from detcore.records import Database, ingest_event_logs
from detcore_keras import DetcoreCallback, detcore_callback
from detcore_keras.frameworks import KERAS_MAJOR, keras, tf

SCRIPTS = Path(__file__).parent / "scripts"


def compiled() -> Any:
    seed_everything()
    model = functional()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "home"))
    return tmp_path


def records_of(home: Path) -> Database:
    return Database.open(f"sqlite:///{home / 'home' / 'detcore.db'}")


def checkpoints_of(home: Path, trial: int) -> list[Any]:
    with records_of(home) as database:
        # An open context has written its log. Ingest the events so far.
        ingest_event_logs(database, home / "home")
        return list(database.list_checkpoints(trial_id=trial))


@pytest.mark.parametrize("checkpoint_async", [True, False])
def test_callback_reports_and_saves(home: Path, checkpoint_async: bool) -> None:
    x, y = records()
    model = compiled()
    with core.init() as context:
        callback = DetcoreCallback(context, report_every=5, checkpoint_async=checkpoint_async)
        model.fit(
            x, y, batch_size=8, epochs=2, verbose=0, validation_data=(x, y), callbacks=[callback]
        )
        assert context.info is not None
        trial = context.info.trial_id
        # The end of fit waited for the checkpoints.
        saved_checkpoints = checkpoints_of(home, trial)
        assert all(
            (home / "home" / "checkpoints" / c.uuid / "manifest.json").exists()
            for c in saved_checkpoints
        )
        manifest = context.checkpoint.get_manifest(saved_checkpoints[-1].uuid)
        assert {t.file for t in manifest.tensors} == {"weights.npz", "optimizer.npz", "state.npz"}
        assert {t.file for t in manifest.tensors} < manifest.files.keys()
    with records_of(home) as database:
        training = [m.steps_completed for m in database.metrics(trial, "training")]
        validation = database.metrics(trial, "validation")
        checkpoints = database.list_checkpoints(trial_id=trial)
    assert training == [5, 7, 10, 14]
    assert [m.steps_completed for m in validation] == [7, 14]
    assert set(validation[0].metrics) == {"val_loss"}
    assert sorted(c.steps_completed for c in checkpoints) == [7, 14]


def test_preempted_fit_saves_and_exits(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = records()

    class Preempt(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                context.preempt.request()

    context = core.init().start()
    callback = DetcoreCallback(context)
    with pytest.raises(SystemExit) as ended:
        compiled().fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[Preempt(), callback])
    context.close(ended.value)
    assert ended.value.code == 75
    assert callback.steps_completed == 4
    assert "trial 1: paused; core.init(resume=True) resumes it" in capsys.readouterr().err
    checkpoints = checkpoints_of(home, 1)
    assert [c.steps_completed for c in checkpoints] == [4]


def run_script(name: str, home: Path, *arguments: str, code: int = 0) -> list[str]:
    """Run a script of ``scripts/`` in a separate process, and return its output lines."""
    finished = subprocess.run(
        [sys.executable, str(SCRIPTS / name), *arguments],
        env={**os.environ, "DETCORE_HOME": str(home / "records")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == code, finished.stderr
    return finished.stdout.splitlines()


@pytest.mark.cold
@pytest.mark.timeout(600)
def test_killed_folds_equal_uninterrupted_folds(home: Path) -> None:
    expected = run_script("folds.py", home / "whole")
    for kill_at in ("0-1", "1-2", "2-1"):
        run_script("folds.py", home / "killed", kill_at, code=-signal.SIGKILL)
    assert run_script("folds.py", home / "killed") == expected


@pytest.mark.cold
@pytest.mark.timeout(600)
def test_usual_callbacks_resume_exactly(home: Path) -> None:
    whole_dir, killed_dir = home / "whole", home / "killed"
    whole_dir.mkdir()
    killed_dir.mkdir()
    *_, expected = run_script("usual_callbacks.py", whole_dir, str(whole_dir))
    for epoch in ("1", "4"):
        run_script(
            "usual_callbacks.py", killed_dir, str(killed_dir), f"kill-{epoch}", code=-signal.SIGKILL
        )
    *_, result = run_script("usual_callbacks.py", killed_dir, str(killed_dir))
    assert result == expected


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["eager", "graph", "own"])
def test_frozen_layers_and_losses_resume_exactly(home: Path, mode: str) -> None:
    expected = run_script("freezes.py", home / "whole", mode)
    for epoch in ("1", "3"):
        run_script("freezes.py", home / "killed", mode, epoch, code=-signal.SIGKILL)
    assert run_script("freezes.py", home / "killed", mode) == expected


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["eager", "graph", "executions"])
def test_lazily_built_optimizers_resume_exactly(home: Path, mode: str) -> None:
    expected = run_script("gan.py", home / "whole", mode)
    for epoch in ("1", "2", "4"):
        run_script("gan.py", home / "killed", mode, epoch, code=-signal.SIGKILL)
    assert run_script("gan.py", home / "killed", mode) == expected


@pytest.mark.cold
@pytest.mark.timeout(600)
def test_preempted_epoch_begins_again(home: Path) -> None:
    script, folder = "usual_callbacks.py", str(home)
    *_, preempted = run_script(script, home, folder, "preempt-1-2", code=75)
    resumed, *_ = run_script(script, home, folder, "kill-2", code=-signal.SIGKILL)
    digest = preempted.split()[-1]
    assert preempted == f"preempted 7 {digest}"  # epoch 0 has 4 batches
    assert resumed == f"from 1 7 {digest}"


def test_unsaved_random_operation_is_logged(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Noisy(keras.Sequential):  # type: ignore[misc]
        def train_step(self, *data: Any) -> Any:
            (x, y) = data[-1]
            return super().train_step((x + tf.random.normal(tf.shape(x)), y))

    x, y = np.ones((16, 4), "float32"), np.ones((16, 1), "float32")
    for kind, warnings in ((keras.Sequential, 0), (Noisy, 1)):
        model = kind([keras.layers.Dense(1)])
        model.compile("adam", "mse")
        with core.init() as context:
            model.fit(x, y, epochs=2, verbose=0, callbacks=[DetcoreCallback(context)])
        assert caplog.text.count("(RandomStandardNormal). A resumed run draws other") == warnings


class Shuffling(keras.utils.Sequence):  # type: ignore[misc]
    def __init__(self) -> None:
        if KERAS_MAJOR == 3:
            super().__init__()
        self.order = np.arange(4)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return np.full((4, 4), self.order[index], "float32"), np.ones((4, 1), "float32")

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)


class Constant(Shuffling):
    on_epoch_end = keras.utils.Sequence.on_epoch_end


def test_unsaved_data_order_is_logged(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    x, y = np.ones((16, 4), "float32"), np.ones((16, 1), "float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    once = dataset.shuffle(16, reshuffle_each_iteration=False).batch(4)
    for arguments, described in [
        ({"x": x, "y": y}, "arrays with shuffle=True" if KERAS_MAJOR == 2 else None),
        ({"x": x, "y": y, "shuffle": False}, None),
        ({"x": Shuffling()}, "a Sequence that changes"),
        ({"x": Constant()}, None),
        ({"x": dataset.shuffle(16).batch(4), "shuffle": False}, "a shuffled tf.data.Dataset"),
        ({"x": once, "shuffle": False}, None),
        ({"x": ((x, y) for _ in range(9)), "steps_per_epoch": 1, "shuffle": False}, "a generator"),
    ]:
        caplog.clear()
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("adam", "mse")
        with core.init() as context:
            model.fit(**arguments, epochs=2, verbose=0, callbacks=[DetcoreCallback(context)])
        warnings = [message for message in caplog.messages if "whose order is not saved" in message]
        assert [message.partition(",")[0] for message in warnings] == (
            [] if described is None else [f"fit reads {described}"]
        )


def test_terminate_on_nan_keeps_finite_checkpoint(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Spoil(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if int(self.model.optimizer.iterations) == 10:
                bias = self.model.layers[-1].weights[1]
                bias.assign(bias + np.nan)

    x, y = records()
    with core.init() as context:
        callbacks = [DetcoreCallback(context), keras.callbacks.TerminateOnNaN(), Spoil()]
        compiled().fit(x, y, batch_size=8, epochs=4, verbose=0, callbacks=callbacks)
    assert [c.steps_completed for c in checkpoints_of(home, 1)] == [7]
    assert "the weights are not finite at batch 11" in caplog.text


def test_invalid_arguments_are_rejected(home: Path) -> None:
    with core.init() as context, pytest.raises(InvalidExperimentError, match="report_every=0"):
        DetcoreCallback(context, report_every=0)


def test_fit_raises_failed_async_save(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    x, y = records()
    model = compiled()
    with core.init() as context:
        callback = DetcoreCallback(context)
        monkeypatch.setattr(detcore_callback, "write_array_files", broken)
        with pytest.raises(OSError, match="the disk is broken"):
            model.fit(x, y, batch_size=8, epochs=1, verbose=0, callbacks=[callback])
    assert not list((home / "home" / "checkpoints").glob("*/manifest.json"))


def test_weights_and_optimizer_are_restored(home: Path) -> None:
    x, y = records()
    model = compiled()
    with core.init() as context:
        callback = DetcoreCallback(context)
        model.fit(x, y, batch_size=8, epochs=1, verbose=0, callbacks=[callback])
        assert context.info is not None
        (checkpoint,) = checkpoints_of(home, context.info.trial_id)
        expected = [np.asarray(value) for value in model.get_weights()]
        other = compiled()
        resumed = DetcoreCallback(context)
        resumed._latest = checkpoint.uuid
        resumed.initial_epoch = 1
        other.fit(x, y, initial_epoch=1, epochs=1, verbose=0, callbacks=[resumed])
    assert all(np.array_equal(a, b) for a, b in zip(expected, other.get_weights(), strict=True))
