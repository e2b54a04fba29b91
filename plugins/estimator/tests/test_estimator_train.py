"""Training with the stand-alone Estimator: steps, checkpoints, hooks and errors."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_models import (
    FEATURES,
    LABELS,
    Listener,
    Recorder,
    eval_input,
    make_estimator,
    model_fn,
    replace_fields,
    train_input,
)

import detcore_estimator as de
from detcore.errors import ConfigError, DataError, InvalidCheckpointError, InvalidModelError
from detcore_estimator.tensorflow_versions import tf, tf1


def steps_saved(folder: Path) -> list[int]:
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("model.ckpt-*.index"))


def step_of(estimator: de.Estimator) -> int:
    return int(estimator.get_variable_value("global_step"))


# -- steps ----------------------------------------------------------------------------------------


def train_by(loss: Any, mode: str) -> Any:
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, tf1.train.get_global_step())
    return de.EstimatorSpec(mode, loss=loss, train_op=train_op)


def test_steps_and_max_steps(tmp_path: Path) -> None:
    def never() -> Any:
        raise AssertionError("input_fn was called")

    estimator = make_estimator(tmp_path)
    assert estimator.train(train_input, steps=3) is estimator
    estimator.train(train_input, steps=3)
    assert step_of(estimator) == 6
    estimator.train(train_input, max_steps=8)
    for reached in (8, 2):
        estimator.train(never, max_steps=reached)
    assert step_of(estimator) == 8


@pytest.fixture
def determinism() -> Iterator[None]:
    from tensorflow.python.framework import config

    tf.config.experimental.enable_op_determinism()
    yield
    config.disable_op_determinism()


@pytest.mark.usefixtures("determinism")
def test_global_generator_is_restored(tmp_path: Path) -> None:
    def noisy(features: Any, labels: Any, mode: str) -> Any:
        noise = tf.random.get_global_generator().normal(tf.shape(labels))
        weights = tf1.get_variable("weights", [4, 1])
        return train_by(tf.reduce_mean((features["x"] @ weights + noise - labels) ** 2), mode)

    def same() -> Any:
        return tf.data.Dataset.from_tensors(({"x": FEATURES}, LABELS)).repeat()

    parts = make_estimator(tmp_path / "parts", noisy)
    parts.train(same, steps=2)
    parts.evaluate(eval_input, steps=1)  # another graph, which also draws numbers
    parts = make_estimator(tmp_path / "parts", noisy).train(same, steps=2)
    uninterrupted = make_estimator(tmp_path / "whole", noisy).train(same, steps=4)
    names = parts.get_variable_names()
    assert names == ["global_step", "random_generator/StateVar", "weights"]
    for name in names:
        np.testing.assert_array_equal(
            parts.get_variable_value(name), uninterrupted.get_variable_value(name)
        )
    other = make_estimator(tmp_path / "other").train(train_input, steps=1)
    assert "random_generator/StateVar" not in other.get_variable_names()


def test_third_argument_is_hooks(tmp_path: Path) -> None:
    hook = Recorder()
    make_estimator(tmp_path).train(train_input, 2, [hook], None)
    assert hook.end_step == 2
    with pytest.raises(TypeError, match="steps must be an integer"):
        make_estimator(tmp_path).train(train_input, [hook])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 2, "max_steps": 3}, "cannot both be passed"),
        ({"steps": 0}, "greater than 0, but it is 0"),
        ({"max_steps": -1}, "greater than 0, but it is -1"),
        ({"steps": 1.5}, "integer or None"),
        ({"steps": True}, "integer or None"),
        ({"hooks": ["a"]}, "SessionRunHook"),
        ({"hooks": 3}, "list or None"),
        ({"saving_listeners": ["a"]}, "CheckpointSaverListener"),
        ({"input_fn": None}, "input_fn must be a function"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_estimator(tmp_path).train(**{"input_fn": train_input, **arguments})
    assert not list(tmp_path.iterdir())


def test_training_ends_with_the_data(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path).train(eval_input)
    assert step_of(estimator) == 6
    assert steps_saved(tmp_path) == [0, 6]


def test_no_data_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_estimator(tmp_path).train(lambda: eval_input().take(0))
    assert "training ran no step" in caplog.text


def test_seed_determines_the_result(tmp_path: Path) -> None:
    values = [
        make_estimator(tmp_path / name, tf_random_seed=seed)
        .train(train_input, steps=7)
        .get_variable_value("second")
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    ]
    np.testing.assert_array_equal(values[0], values[1])
    assert not np.array_equal(values[0], values[2])


def test_hooks_do_not_change_training(tmp_path: Path) -> None:
    plain = make_estimator(tmp_path / "a", save_summary_steps=0, log_step_count_steps=None)
    hooked = make_estimator(tmp_path / "b", save_summary_steps=2, log_step_count_steps=1)
    plain.train(train_input, steps=6)
    hooked.train(train_input, steps=6, hooks=[Recorder()])
    np.testing.assert_array_equal(
        plain.get_variable_value("second/Adam_1"), hooked.get_variable_value("second/Adam_1")
    )


# -- checkpoints ----------------------------------------------------------------------------------


def test_checkpoint_schedule(tmp_path: Path) -> None:
    make_estimator(tmp_path, save_checkpoints_steps=3).train(train_input, steps=8)
    assert steps_saved(tmp_path) == [0, 3, 6, 8]
    names = {path.name for path in tmp_path.iterdir()}
    assert {"checkpoint", "graph.pbtxt", "model.ckpt-8.meta"} <= names
    assert 'model_checkpoint_path: "model.ckpt-8"' in (tmp_path / "checkpoint").read_text()


def test_old_checkpoints_are_deleted(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, save_checkpoints_steps=1, keep_checkpoint_max=2)
    estimator.train(train_input, steps=3)
    assert steps_saved(tmp_path) == [2, 3]
    # The next call knows the files of the previous call.
    estimator.train(train_input, steps=2)
    assert steps_saved(tmp_path) == [4, 5]


def test_restored_checkpoint_is_not_rewritten(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path).train(train_input, steps=2)
    index = tmp_path / "model.ckpt-2.index"
    os.utime(index, ns=(1, 1))
    estimator.train(train_input, steps=2)
    assert index.stat().st_mtime_ns == 1


def test_checkpoint_period_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 4))
    monkeypatch.setattr(
        "detcore_estimator.engine.checkpoint_writer.time.monotonic", lambda: float(next(clock))
    )
    estimator = make_estimator(tmp_path, save_checkpoints_steps=None, save_checkpoints_secs=10)
    estimator.train(train_input, steps=8)
    # The clock advances by 4 s at each call: one call at a save, one after each step.
    assert steps_saved(tmp_path) == [0, 3, 6, 8]


def test_failed_save_keeps_old_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = make_estimator(tmp_path, keep_checkpoint_max=1).train(train_input, steps=2)
    good = estimator.get_variable_value("first")

    class Broken(tf1.train.Saver):  # type: ignore[misc]
        def save(self, sess: Any, save_path: str, global_step: int, **kwargs: Any) -> str:
            # A crash can leave files with wrong content.
            Path(f"{save_path}-{global_step}.index").write_bytes(b"cut off")
            raise OSError("the disk is gone")

    monkeypatch.setattr(tf1.train, "Saver", Broken)
    with pytest.raises(OSError, match="disk is gone"):
        estimator.train(train_input, steps=3)
    monkeypatch.undo()
    again = make_estimator(tmp_path, keep_checkpoint_max=1)
    assert again.latest_checkpoint() == str(tmp_path / "model.ckpt-2")
    np.testing.assert_array_equal(again.get_variable_value("first"), good)
    again.train(train_input, steps=3)
    assert step_of(again) == 5


KILLED = """
import sys
from estimator_models import make_estimator, tf1, train_input

class Tell(tf1.train.CheckpointSaverListener):
    def after_save(self, session, global_step_value):
        print(global_step_value, flush=True)

estimator = make_estimator(sys.argv[1], save_checkpoints_steps=1, keep_checkpoint_max=1)
estimator.train(train_input, saving_listeners=[Tell()])
"""


def test_kill_during_saves(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        saved_step = 0
        for line in process.stdout:
            saved_step = int(line)
            if saved_step == 5:
                process.kill()
    assert saved_step >= 5
    estimator = make_estimator(tmp_path, save_checkpoints_steps=1, keep_checkpoint_max=1)
    step = step_of(estimator)
    # The last reported checkpoint or a later one exists.
    assert step >= saved_step
    estimator.train(train_input, steps=2)
    assert step_of(estimator) == step + 2


def test_state_file_with_lost_checkpoint(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path).train(train_input, steps=2)
    (tmp_path / "model.ckpt-2.index").unlink()
    for call in (
        lambda: estimator.train(train_input, steps=1),
        lambda: estimator.evaluate(eval_input),
        estimator.latest_checkpoint,
    ):
        with pytest.raises(InvalidCheckpointError, match=r"model\.ckpt-2 as the latest"):
            call()


def test_checkpoint_of_another_model_is_rejected(tmp_path: Path) -> None:
    make_estimator(tmp_path).train(train_input, steps=1)

    def wider(features: Any, labels: Any, mode: str) -> Any:
        weights = tf1.get_variable("first", [4, 1])
        return train_by(tf.reduce_mean((features["x"] @ weights - labels) ** 2), mode)

    before = sorted(path.name for path in tmp_path.glob("model*"))
    with pytest.raises(InvalidCheckpointError, match=r"first is \(4, 1\) in the model"):
        make_estimator(tmp_path, wider).train(train_input, steps=1)
    assert sorted(path.name for path in tmp_path.glob("model*")) == before


def test_directories_with_pattern_characters(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path / "lr[0.1]*").train(train_input, steps=2)
    estimator.train(train_input, steps=1)
    assert step_of(estimator) == 3
    assert estimator.evaluate(eval_input)["global_step"] == 3
    assert "second" in estimator.get_variable_names()


# -- hooks and listeners --------------------------------------------------------------------------


def test_user_and_model_hooks(tmp_path: Path) -> None:
    calls: list[str] = []
    hooks = [Recorder(calls, name) for name in ("chief", "user", "model")]
    chief, user, model = hooks
    function = replace_fields(
        lambda spec: {"training_hooks": [model], "training_chief_hooks": [chief]}
    )
    make_estimator(tmp_path, function).train(train_input, steps=2, hooks=[user])
    runs = ["before_run", "after_run"] * 2
    assert calls == [
        f"{hook.name}.{method}"
        for method in ("begin", "after_create_session", *runs, "end")
        for hook in hooks
    ]
    assert [hook.end_step for hook in hooks] == [2, 2, 2]


def test_hook_can_stop_training(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path)
    estimator.train(train_input, steps=50, hooks=[Recorder(stop_at=4)])
    assert step_of(estimator) == 4


def test_hook_error_saves_no_checkpoint(tmp_path: Path) -> None:
    class Fails(tf1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        make_estimator(tmp_path).train(train_input, steps=3, hooks=[Fails()])
    assert steps_saved(tmp_path) == [0]


def test_listeners_are_called_for_each_save(tmp_path: Path) -> None:
    listener = Listener()
    make_estimator(tmp_path, save_checkpoints_steps=2).train(
        train_input, steps=3, saving_listeners=[listener]
    )
    saves = [f"{when} {step}" for step in (0, 2, 3) for when in ("before", "after")]
    assert listener.calls == ["begin", *saves, "end 3"]


def test_listener_can_stop_training(tmp_path: Path) -> None:
    listeners = [Listener(stop_at=4), Listener()]
    estimator = make_estimator(tmp_path, save_checkpoints_steps=2)
    estimator.train(train_input, steps=50, saving_listeners=listeners)
    assert step_of(estimator) == 4
    assert listeners[1].calls.count("after 4") == 1


def test_custom_saver_hook_replaces_the_default(tmp_path: Path) -> None:
    listener = Listener()
    hook = tf1.train.CheckpointSaverHook(str(tmp_path), save_steps=4)
    make_estimator(tmp_path, save_checkpoints_steps=1).train(
        train_input, steps=6, hooks=[hook], saving_listeners=[listener]
    )
    assert steps_saved(tmp_path) == [0, 4, 6]
    assert listener.calls.count("after 4") == 1


# -- models that go wrong -------------------------------------------------------------------------


@pytest.mark.parametrize("hooks", [0, 1])
def test_nan_loss(tmp_path: Path, hooks: int) -> None:
    def nan_from_5(spec: Any) -> dict[str, Any]:
        step = tf1.train.get_global_step().read_value()
        return {"loss": tf.where(step >= 5, np.nan, 1.0) * spec.loss}

    estimator = make_estimator(tmp_path, replace_fields(nan_from_5), save_checkpoints_steps=1)
    with pytest.raises(de.NanLossDuringTrainingError, match=r"at global step [56]") as caught:
        estimator.train(train_input, steps=50, hooks=[Recorder()] * hooks)
    assert isinstance(caught.value, tf1.train.NanLossDuringTrainingError)
    # The last checkpoint is of the last step with a finite loss.
    assert step_of(estimator) == caught.value.step - 1


def test_train_op_without_global_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(features: Any, labels: Any, mode: str) -> Any:
        loss = tf.reduce_mean(tf1.get_variable("w", [4]) * features["x"])
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        return de.EstimatorSpec(mode, loss=loss, train_op=train_op)

    monkeypatch.setattr("detcore_estimator.engine.train_loop._MAX_RUNS_WITHOUT_STEP", 20)
    for input_fn, runs in ((eval_input, 6), (train_input, 20)):
        with pytest.raises(InvalidModelError, match=f"train_op ran {runs} times"):
            make_estimator(tmp_path / str(runs), forgetful).train(input_fn, steps=1)


@pytest.mark.parametrize("value", [None, 3, {"loss": 1}])
def test_model_fn_with_wrong_result(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ValueError, match="model_fn returned"):
        make_estimator(tmp_path, lambda features: value).train(
            lambda: eval_input().map(lambda x, y: x)
        )


def test_model_fn_that_reuses_its_spec(tmp_path: Path) -> None:
    specs: list[Any] = []

    def keeps(features: Any, labels: Any, mode: str) -> Any:
        specs.append(model_fn(features, labels, mode, {}))
        return specs[0]

    estimator = make_estimator(tmp_path, keeps).train(train_input, steps=1)
    with pytest.raises(ValueError, match="not part of the graph"):
        estimator.train(train_input, steps=1)


def test_model_fn_that_ignores_the_mode(tmp_path: Path) -> None:
    def predicts(features: Any, labels: Any) -> Any:
        return de.EstimatorSpec("infer", predictions=features["x"])

    with pytest.raises(ValueError, match=r"mode 'train'.*without loss"):
        make_estimator(tmp_path, predicts).train(train_input, steps=1)


@pytest.mark.parametrize(
    ("function", "params", "message"),
    [
        (lambda labels: None, None, "does not take features"),
        (lambda features, lables: None, None, "takes lables"),
        (lambda features, extra=1: None, None, "takes extra"),
        (lambda features: None, {"a": 1}, "has no argument params"),
        (lambda features: None, {}, "has no argument params"),
        (None, None, "must be a function"),
    ],
)
def test_model_fn_arguments_are_checked(function: Any, params: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        de.Estimator(function, params=params)


def test_model_fn_signatures(tmp_path: Path) -> None:
    calls: list[dict[str, Any]] = []

    def build(features: Any, labels: Any, mode: str, **extra: Any) -> Any:
        calls.append(extra)
        return model_fn(features, labels, mode, {})

    class Callable:
        def __call__(self, features: Any, labels: Any, mode: str) -> Any:
            return build(features, labels, mode)

        def method(self, features: Any, labels: Any, mode: str, params: Any) -> Any:
            return build(features, labels, mode, params=params)

    def full(
        features: Any, labels: Any, mode: str, params: Any, config: Any, model_dir: Any
    ) -> Any:
        return build(features, labels, mode, params=params, config=config, model_dir=model_dir)

    @functools.wraps(full)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return full(*args, **kwargs)

    everything = {"params", "config", "model_dir"}
    for function, arguments in (
        (Callable(), set()),
        (Callable().method, {"params"}),
        (full, everything),
        (wrapped, everything),
        (lambda features, labels, *, mode: build(features, labels, mode), set()),
        (functools.partial(build, rate=0.5), {"rate"}),
    ):
        params = {"a": [1]} if "params" in arguments else None
        folder = str(tmp_path / str(len(calls)))
        de.Estimator(function, folder, params=params).train(train_input, steps=1)
        assert calls[-1].keys() == arguments
    assert calls[2]["params"] == {"a": [1]}
    assert calls[2]["model_dir"] == calls[2]["config"].model_dir == str(tmp_path / "2")


def test_model_fn_without_labels(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no argument labels"):
        make_estimator(tmp_path, lambda features, mode: None).train(train_input, steps=1)


def test_params_and_config_are_copies(tmp_path: Path) -> None:
    params = {"sizes": [1, 2]}
    estimator = de.Estimator(lambda features, params: None, str(tmp_path), params=params)
    estimator.params["sizes"].append(3)
    params["sizes"].append(4)
    assert estimator.params == {"sizes": [1, 2]}
    estimator.config.session_config.inter_op_parallelism_threads = 7
    assert estimator.config.session_config.inter_op_parallelism_threads == 0


# -- inputs ---------------------------------------------------------------------------------------


def test_input_fn_arguments(tmp_path: Path) -> None:
    calls: list[Any] = []

    def input_fn(mode: str, params: Any, config: Any, count: int = 2) -> Any:
        calls.append((mode, params, config.model_dir, count))
        return eval_input()

    estimator = make_estimator(tmp_path)
    estimator.train(input_fn, steps=1)
    estimator.evaluate(functools.partial(input_fn, params="mine"))
    next(estimator.predict(input_fn))
    folder = str(tmp_path)
    assert calls == [
        ("train", {}, folder, 2),
        ("eval", "mine", folder, 2),
        ("infer", {}, folder, 2),
    ]


def test_input_fn_with_tensors(tmp_path: Path) -> None:
    def tensors() -> Any:
        return {"x": tf.constant(FEATURES)}, tf.constant(LABELS)

    def of_iterator() -> Any:
        return tf1.data.make_one_shot_iterator(eval_input()).get_next()

    assert step_of(make_estimator(tmp_path / "a").train(tensors, steps=2)) == 2
    assert step_of(make_estimator(tmp_path / "b").train(of_iterator)) == 6


@pytest.mark.parametrize(
    ("input_fn", "message"),
    [
        (lambda: None, "returned None"),
        (lambda: eval_input().map(lambda x, y: (x, y, y)), "tuple of 3 parts"),
        (lambda: ({"x": tf.constant(FEATURES)},), "tuple of 1 parts"),
    ],
)
def test_input_fn_with_wrong_result(tmp_path: Path, input_fn: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_estimator(tmp_path).train(input_fn, steps=1)


def test_dataset_created_outside_input_fn(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        dataset = eval_input()
    with pytest.raises(DataError, match="Create the dataset inside input_fn"):
        make_estimator(tmp_path).train(lambda: dataset, steps=1)


def test_lookup_tables_in_the_data(tmp_path: Path) -> None:
    def input_fn() -> Any:
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0]), 0.0
        )
        names = tf.data.Dataset.from_tensor_slices(["a", "b"] * 4).batch(4)
        return names.map(lambda name: ({"x": tf.fill([4, 4], 1.0)}, table.lookup(name)[:, None]))

    assert step_of(make_estimator(tmp_path).train(input_fn)) == 2


# -- summaries and logs ---------------------------------------------------------------------------


def events_of(folder: Path) -> list[Any]:
    return [
        event
        for path in sorted(folder.glob("events.out.tfevents.*"))
        for event in tf1.train.summary_iterator(str(path))
    ]


def with_summary(tag: str) -> Any:
    """Return the model with a summary of its doubled loss."""

    def function(features: Any, labels: Any, mode: str) -> Any:
        spec = model_fn(features, labels, mode, {})
        tf1.summary.scalar(tag, 2 * spec.loss)
        return spec

    return function


def test_summaries(tmp_path: Path) -> None:
    make_estimator(tmp_path, with_summary("double"), save_summary_steps=3).train(
        train_input, steps=7
    )
    summaries = {
        event.step: {value.tag: value.simple_value for value in event.summary.value}
        for event in events_of(tmp_path)
        if event.summary.value
    }
    assert list(summaries) == [1, 4, 7]
    assert all(tags["double"] == pytest.approx(2 * tags["loss"]) for tags in summaries.values())
    assert any(event.graph_def for event in events_of(tmp_path))


def test_custom_loss_summary_is_not_repeated(tmp_path: Path) -> None:
    make_estimator(tmp_path, with_summary("loss")).train(train_input, steps=1)
    tags = [value.tag for event in events_of(tmp_path) for value in event.summary.value]
    assert tags == ["loss"]


def test_nothing_is_written_by_default(tmp_path: Path) -> None:
    estimator = make_estimator(
        tmp_path,
        save_summary_steps=0,
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        log_step_count_steps=None,
    ).train(train_input, steps=2)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="no checkpoint is saved"):
        estimator.train(train_input, steps=1, saving_listeners=[Listener()])


def test_loss_and_step_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="detcore.estimator")
    make_estimator(tmp_path, log_step_count_steps=2).train(train_input, steps=5)
    logged = [r.getMessage() for r in caplog.records if r.getMessage().startswith("global step")]
    assert [text.split(":")[0] for text in logged] == [f"global step {step}" for step in (1, 3, 5)]


# -- warm start and configuration -----------------------------------------------------------------


def test_warm_start(tmp_path: Path) -> None:
    first = make_estimator(tmp_path / "a").train(train_input, steps=3)
    for start in (
        str(tmp_path / "a"),
        de.WarmStartSettings(str(tmp_path / "a" / "model.ckpt-3"), vars_to_warm_start="first"),
    ):
        folder = tmp_path / f"from-{type(start).__name__}"
        config = de.RunConfig(str(folder), tf_random_seed=99)
        second = de.Estimator(model_fn, config=config, params={}, warm_start_from=start)
        second.train(train_input, steps=1)
        begun = folder / "model.ckpt-0"
        reader = tf.train.load_checkpoint(str(begun))
        np.testing.assert_array_equal(reader.get_tensor("first"), first.get_variable_value("first"))
        is_second_equal = np.array_equal(
            reader.get_tensor("second"), first.get_variable_value("second")
        )
        assert is_second_equal == isinstance(start, str)
        # Its own checkpoints have priority.
        second.train(train_input, steps=1)
        assert step_of(second) == 2


def test_wrong_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="cannot both be set"):
        de.RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1)
    with pytest.raises(ConfigError, match="train_distribute"):
        make_estimator(tmp_path, train_distribute=object())
    with pytest.raises(ValueError, match="model_dir="):
        de.Estimator(model_fn, "a", de.RunConfig("b"), params={})
    with pytest.raises(ValueError, match="a RunConfig"):
        de.Estimator(model_fn, "a", {"model_dir": "b"}, params={})
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}')
    with pytest.raises(ConfigError, match="TF_CONFIG describes a cluster"):
        make_estimator(tmp_path)


def test_run_config() -> None:
    config = de.RunConfig(keep_checkpoint_max=3)
    assert (config.save_checkpoints_secs, config.save_checkpoints_steps) == (600, None)
    replaced = config.replace(save_checkpoints_steps=7, model_dir="a")
    assert (replaced.save_checkpoints_secs, replaced.save_checkpoints_steps) == (None, 7)
    assert (replaced.keep_checkpoint_max, replaced.model_dir, config.model_dir) == (3, "a", None)
    assert (config.is_chief, config.num_worker_replicas, config.task_type) == (True, 1, "worker")
    with pytest.raises(AttributeError):
        config.model_dir = "b"
    with pytest.raises(TypeError, match="modeldir"):
        config.replace(modeldir="b")
    with pytest.raises(ValueError, match="log_step_count_steps must be greater than 0"):
        de.RunConfig(log_step_count_steps=0)


def test_session_configuration_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[Any] = []
    session = tf1.Session

    def spy(*args: Any, **kwargs: Any) -> Any:
        configs.append(kwargs["config"])
        return session(*args, **kwargs)

    monkeypatch.setattr(tf1, "Session", spy)
    config = tf1.ConfigProto(inter_op_parallelism_threads=3)
    estimator = make_estimator(tmp_path, session_config=config).train(train_input, steps=1)
    estimator.evaluate(eval_input)
    next(estimator.predict(eval_input))
    assert [session_config.inter_op_parallelism_threads for session_config in configs] == [3, 3, 3]
