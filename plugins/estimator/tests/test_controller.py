"""The controller of an Estimator trial: its calls, reports and errors."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_fakes import (
    FEATURES,
    LABELS,
    Classifier,
    FakeClock,
    dense,
    make_context,
    open_controller,
    raw_input,
    train,
)
from estimator_models import Listener, Recorder

import detcore_estimator
from detcore.errors import DataError, InvalidExperimentError, InvalidModelError, UnsafePathError
from detcore_estimator.tensorflow_versions import tf, tf1


def run(trial_class: Any, tmp_path: Path, **settings: Any) -> FakeClock:
    defaults = {"directory": tmp_path / "checkpoints", "until": 20}
    return train(trial_class, tmp_path, **{**defaults, **settings})


def test_reports_batch_losses_and_their_mean(tmp_path: Path) -> None:
    clock = run(Classifier, tmp_path, unit=5)

    losses = [batch["loss"] for batch in clock.batches]
    assert len(losses) == 20
    assert all(set(batch) == {"loss"} for batch in clock.batches)
    assert [steps for steps, _ in clock.training] == [5, 10, 15, 20]
    assert clock.training[1][1] == {"loss": pytest.approx(np.mean(losses[5:10]), rel=1e-12)}


def test_each_graph_is_built_once(tmp_path: Path) -> None:
    calls: list[str] = []

    class Counting(Classifier):
        def make_spec(self, features: Any, labels: Any, mode: str) -> Any:
            calls.append(mode)
            return super().make_spec(features, labels, mode)

        def train_data(self) -> Any:
            calls.append("train data")
            return super().train_data()

        def validation_data(self) -> Any:
            calls.append("validation data")
            return super().validation_data()

        def build_serving_input_receiver_fns(self) -> dict[str, Any]:
            return {"raw": raw_input}

    run(Counting, tmp_path, validate_every=5, save_every=5)

    assert sorted(calls) == ["eval", "infer", "train", "train data", "validation data"]


def test_validation_equals_evaluate(tmp_path: Path) -> None:
    class Seeing(Classifier):
        def validation_data(self) -> Any:
            # All batches have one size, because tf.estimator averages batches and a trial records.
            return super().validation_data().unbatch().batch(5)

    clock = run(Seeing, tmp_path, until=10, validate_every=10, save_every=10)

    trial = Seeing(make_context(tmp_path / "other"))
    result = trial.build_estimator().evaluate(
        trial.validation_data, checkpoint_path=str(tmp_path / "checkpoints/10/model.ckpt-10")
    )
    assert clock.validations == [(10, {name: pytest.approx(v) for name, v in result.items()})]


def test_loss_is_the_mean_over_records(tmp_path: Path) -> None:
    class LossIsTheLabel(Classifier):
        def make_spec(self, features: Any, labels: Any, mode: str) -> Any:
            spec = super().make_spec(features, labels, mode)
            if mode != "eval":
                return spec
            return spec._replace(loss=tf.reduce_mean(tf.cast(labels, tf.float32)))

    clock = run(LossIsTheLabel, tmp_path, until=9, unit=3, validate_every=9)

    # 50 records are six batches of 8 and one of 2.
    assert clock.records == [24, 24, 2 + 16]
    assert clock.validated_records == [20]
    assert clock.validations[0][1]["loss"] == pytest.approx(np.mean(LABELS[:20]), rel=1e-12)


def test_validation_writes_nothing(tmp_path: Path) -> None:
    run(Classifier, tmp_path, validate_every=5, directory=None)

    assert [p for p in tmp_path.rglob("*") if p.is_file() and "tfevents" not in p.name] == []


def test_summaries_are_reported_and_written(tmp_path: Path) -> None:
    class WithSummaries(Classifier):
        def make_spec(self, features: Any, labels: Any, mode: str) -> Any:
            if mode == "train":
                tf1.summary.scalar("mean_feature", tf.reduce_mean(features))
                tf1.summary.histogram("features", features)
            return super().make_spec(features, labels, mode)

        def build_estimator(self) -> Any:
            config = detcore_estimator.RunConfig(save_summary_steps=4)
            return detcore_estimator.Estimator(self.model_fn, config=config)

    clock = run(WithSummaries, tmp_path, until=10)

    assert all(set(batch) == {"loss", "mean_feature"} for batch in clock.batches)
    # One epoch is seven batches, so the mean over the records equals the mean of the data.
    means = [batch["mean_feature"] for batch in clock.batches[:7]]
    assert np.average(means, weights=[8] * 6 + [2]) == pytest.approx(FEATURES.mean(), abs=1e-6)
    [path] = (tmp_path / "tensorboard").glob("events*")
    summaries = {
        (event.step, value.tag)
        for event in tf1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert summaries == {(step, t) for step in (4, 8) for t in ("features", "loss", "mean_feature")}


# -- hooks -----------------------------------------------------------------------------------------


def test_order_of_hook_calls(tmp_path: Path) -> None:
    calls: list[str] = []

    class Hooked(Classifier):
        hooks = (Recorder(calls, "a"), Recorder(calls, "b"))

        def change(self, spec: Any, mode: str) -> dict[str, Any]:
            return {"training_hooks": [Recorder(calls, "model")]}

    run(Hooked, tmp_path, until=2, unit=1)

    def each(method: str, *names: str) -> list[str]:
        return [f"{name}.{method}" for name in names]

    step = [*each("before_run", "a", "b", "model"), *each("after_run", "a", "b", "model")]
    assert calls == [
        *each("begin", "a", "b", "model"),
        *each("after_create_session", "a", "b", "model"),
        *step,
        *step,
        *each("on_checkpoint_end", "a", "b"),
        *each("end", "a", "b", "model"),
        *each("on_trial_close", "a", "b"),
    ]


def test_on_checkpoint_load_is_called_first(tmp_path: Path) -> None:
    hook = Recorder()

    class Hooked(Classifier):
        hooks = (hook,)

    run(Hooked, tmp_path, until=2)
    assert "hook.on_checkpoint_load" not in hook.calls
    hook.calls.clear()
    with open_controller(Hooked, tmp_path) as controller:
        controller.restore(tmp_path / "checkpoints" / "2")
    methods = ("on_checkpoint_load", "begin", "after_create_session", "on_trial_close")
    assert hook.calls == [f"hook.{method}" for method in methods]


def test_on_trial_close_follows_an_error(tmp_path: Path) -> None:
    class Failing(Recorder):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            raise RuntimeError("on purpose")

    class Hooked(Classifier):
        hooks = (Failing(),)

    with pytest.raises(RuntimeError, match="on purpose"):
        run(Hooked, tmp_path, until=2)
    calls = Hooked.hooks[0].calls
    assert calls[-1] == "hook.on_trial_close"
    assert "hook.end" not in calls


def test_hook_can_stop_after_a_checkpoint(tmp_path: Path) -> None:
    class Hooked(Classifier):
        hooks = (Recorder(stop_at=7),)

    clock = run(Hooked, tmp_path, until=100)
    assert clock.steps_completed == 7
    assert clock.interrupt_requested
    assert (tmp_path / "checkpoints" / "7" / "checkpoint").exists()


@pytest.mark.parametrize("place", ["eval_spec", "model_fn"])
def test_stop_request_in_validation(tmp_path: Path, place: str) -> None:
    stopper = Recorder(stop_at=4)  # each validation has three batches

    class Hooked(Classifier):
        eval_hooks = (stopper,) if place == "eval_spec" else ()

        def change(self, spec: Any, mode: str) -> dict[str, Any]:
            return {"evaluation_hooks": [stopper] if place == "model_fn" else []}

    clock = run(Hooked, tmp_path, until=100, validate_every=5)
    assert [step for step, _ in clock.validations] == [5, 10]
    assert 10 <= clock.steps_completed <= 11
    assert clock.interrupt_requested


@pytest.mark.parametrize("kind", ["hooks", "eval_hooks"])
def test_hook_finds_tensors_in_default_graph(tmp_path: Path, kind: str) -> None:
    losses: list[float] = []

    class Reader(tf1.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, run_context: Any) -> Any:
            tensor = tf1.get_default_graph().get_tensor_by_name("named_loss:0")
            return tf1.train.SessionRunArgs(tensor)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            assert tf1.get_default_graph() is run_context.session.graph
            losses.append(float(run_values.results))

    class Hooked(Classifier):
        def change(self, spec: Any, mode: str) -> dict[str, Any]:
            return {"loss": tf.identity(spec.loss, name="named_loss")}

    setattr(Hooked, kind, (Reader(),))
    run(Hooked, tmp_path, until=4, validate_every=4)
    assert losses


def test_saving_listeners(tmp_path: Path) -> None:
    listener = Listener(stop_at=10)

    class Listening(Classifier):
        listeners = (listener,)

    clock = run(Listening, tmp_path, save_every=5)

    # The clock reads the request at the end of the unit after the save.
    assert listener.calls[:5] == ["begin", "before 5", "after 5", "before 10", "after 10"]
    assert listener.calls[-1] == f"end {clock.steps_completed}"
    assert clock.steps_completed < 20


def test_evaluation_hooks_run_in_each_validation(tmp_path: Path) -> None:
    hook = Recorder()

    class Hooked(Classifier):
        eval_hooks = (hook,)
        eval_steps = 2

    run(Hooked, tmp_path, until=10, validate_every=5)

    methods = ("begin", "after_create_session", *["before_run", "after_run"] * 2, "end")
    assert hook.calls == [f"hook.{method}" for method in methods] * 2


def test_evaluation_hook_adds_to_the_graph(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sums: list[float] = []
    modes: list[str] = []

    class Adding(tf1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self.twice = tf1.train.get_global_step() * 2

        def before_run(self, run_context: Any) -> Any:
            return tf1.train.SessionRunArgs(self.twice)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            sums.append(float(run_values.results))

    class Hooked(Classifier):
        eval_hooks = (Adding(),)
        eval_steps = 1

        def change(self, spec: Any, mode: str) -> dict[str, Any]:
            modes.append(mode)
            return {}

    with caplog.at_level(logging.INFO, "detcore.estimator"):
        run(Hooked, tmp_path, until=10, validate_every=5)
    assert sums == [10, 20]
    assert modes.count("eval") == 2
    assert "adds to the graph" in caplog.text


# -- ignored settings and errors ------------------------------------------------------------------


def test_ignored_settings_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Much(Classifier):
        def build_estimator(self) -> Any:
            config = detcore_estimator.RunConfig(save_checkpoints_steps=7, keep_checkpoint_max=2)
            return detcore_estimator.Estimator(self.model_fn, config=config)

        def build_train_spec(self) -> Any:
            return detcore_estimator.TrainSpec(self.train_data, max_steps=12)

        def build_validation_spec(self) -> Any:
            return detcore_estimator.EvalSpec(self.validation_data, throttle_secs=30)

    with open_controller(Classifier, tmp_path):
        assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
    assert run(Much, tmp_path, until=14).steps_completed == 14
    [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
    for part in (
        "RunConfig.save_checkpoints_steps=7",
        "RunConfig.keep_checkpoint_max=2",
        "TrainSpec.max_steps=12",
        "EvalSpec.throttle_secs=30",
        "searcher.max_length",
    ):
        assert part in record.getMessage()


def assert_rejected(tmp_path: Path, error: type[Exception], match: str, **attributes: Any) -> None:
    """Check that the controller rejects a trial with other attributes."""
    trial_class = type("Wrong", (Classifier,), attributes)
    with pytest.raises(error, match=match), open_controller(trial_class, tmp_path):
        pass


@pytest.mark.parametrize(
    ("method", "value", "text"),
    [
        ("build_estimator", None, "build_estimator returned None"),
        ("build_estimator", "DNN", "build_estimator returned 'DNN'"),
        ("build_train_spec", {}, "build_train_spec returned {}"),
        ("build_validation_spec", (1, 2), r"build_validation_spec returned \(1, 2\)"),
        ("build_serving_input_receiver_fns", [], "must return a dict"),
        ("build_serving_input_receiver_fns", {"raw": 3}, "must be a function"),
    ],
)
def test_wrong_return_types(tmp_path: Path, method: str, value: Any, text: str) -> None:
    def model_fn(self: Any, features: Any, labels: Any, mode: str) -> Any:
        raise AssertionError("the model was built")

    attributes = {method: lambda self: value, "model_fn": model_fn}
    assert_rejected(tmp_path, InvalidModelError, text, **attributes)


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "-x"])
def test_unsafe_serving_names_are_rejected(tmp_path: Path, name: str) -> None:
    def serving(self: Any) -> dict[str, Any]:
        return {name: raw_input}

    message = "cannot be the name of a directory"
    assert_rejected(tmp_path, UnsafePathError, message, build_serving_input_receiver_fns=serving)


def test_unwrapped_optimizer_is_rejected(tmp_path: Path) -> None:
    def make_spec(self: Any, features: Any, labels: Any, mode: str) -> Any:
        loss = tf1.losses.sparse_softmax_cross_entropy(labels, dense(features, 2, "logits"))
        train_op = tf1.train.AdamOptimizer().minimize(loss, tf1.train.get_global_step())
        return detcore_estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    message = r"self\.context\.wrap_optimizer"
    assert_rejected(tmp_path, InvalidExperimentError, message, make_spec=make_spec)


@pytest.mark.parametrize("method", ["train_data", "validation_data"])
def test_unwrapped_data_is_rejected(tmp_path: Path, method: str) -> None:
    def data(self: Any) -> Any:
        return tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(8)

    role = "training" if method == "train_data" else "validation"
    with pytest.raises(InvalidExperimentError, match=rf"{role} input_fn .* not wrapped"):
        run(type("Unwrapped", (Classifier,), {method: data}), tmp_path, until=5)


def test_empty_or_endless_validation_data(tmp_path: Path) -> None:
    class Empty(Classifier):
        def validation_data(self) -> Any:
            return super().validation_data().take(0)

    class Endless(Classifier):
        eval_hooks = (Recorder(stop_at=100),)  # ends an endless validation

        def validation_data(self) -> Any:
            return super().validation_data().repeat()

    for trial_class, message in ((Empty, "has no batch"), (Endless, r"EvalSpec\.steps")):
        with (
            open_controller(trial_class, tmp_path) as controller,
            pytest.raises(DataError, match=f"validation dataset .*{message}"),
        ):
            controller.validate()


def test_unsupported_random_ops_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class DrawsInALoop(Classifier):
        def make_spec(self, features: Any, labels: Any, mode: str) -> Any:
            if mode == "train":
                _, noise = tf1.while_loop(
                    lambda index, total: index < 3,
                    lambda index, total: (index + 1, total + tf.random.normal([4])),
                    (tf.constant(0), tf.zeros([4])),
                )
                features += 0.01 * noise
            return super().make_spec(features, labels, mode)

    run(DrawsInALoop, tmp_path, until=3)
    assert sum("random" in r.getMessage() for r in caplog.records if r.levelname == "WARNING") == 1


def test_nan_loss_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Nan(Classifier):
        def change(self, spec: Any, mode: str) -> dict[str, Any]:
            if mode != "train":
                return {}
            return {"loss": tf.where(tf1.train.get_global_step() >= 3, np.nan, 1.0) * spec.loss}

    assert run(Nan, tmp_path, until=10).steps_completed == 10
    [record] = [r for r in caplog.records if "NaN" in r.getMessage()]
    assert "batch 4 is NaN" in record.getMessage() or "batch 3 is NaN" in record.getMessage()


# -- settings that are kept ------------------------------------------------------------------------


def test_run_config_is_kept(tmp_path: Path) -> None:
    configs: list[Any] = []
    session_config = tf1.ConfigProto(intra_op_parallelism_threads=1)

    class Configured(Classifier):
        def build_estimator(self) -> Any:
            config = detcore_estimator.RunConfig(
                model_dir=str(tmp_path / "mine"),
                session_config=session_config,
                tf_random_seed=77,
                save_summary_steps=None,
            )

            def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
                configs.append((config, tf1.get_default_graph().seed))
                return self.model_fn(features, labels, mode)

            return detcore_estimator.Estimator(model_fn, config=config)

    with open_controller(Configured, tmp_path) as controller:
        of_the_context = controller._context.session_config
    [(config, seed)] = configs
    assert config.tf_random_seed == seed == 77
    assert config.session_config == session_config
    assert of_the_context.intra_op_parallelism_threads == 1
    assert config.model_dir == str(tmp_path / "trial" / "estimator")


def test_test_mode_evaluates_one_batch(tmp_path: Path) -> None:
    class Hooked(Classifier):
        eval_hooks = (Recorder(),)

    with open_controller(Hooked, tmp_path, test_mode=True) as controller:
        controller.validate()
    assert Hooked.eval_hooks[0].runs == 1


def test_tensorflow_hooks_work_together(tmp_path: Path) -> None:
    class Native(Classifier):
        def change(self, spec: Any, mode: str) -> dict[str, Any]:
            if mode != "train":
                return {}
            train = tf1.train
            summary = tf1.summary.scalar("again", spec.loss)
            hooks = [
                train.LoggingTensorHook({"loss": spec.loss}, every_n_iter=5, at_end=True),
                train.NanTensorHook(spec.loss),
                train.StepCounterHook(every_n_steps=5, output_dir=str(tmp_path / "counter")),
                train.SummarySaverHook(3, output_dir=str(tmp_path / "sums"), summary_op=summary),
                train.CheckpointSaverHook(str(tmp_path / "saver"), save_steps=4),
                train.ProfilerHook(save_steps=6, output_dir=str(tmp_path / "profile")),
                train.FinalOpsHook(spec.loss),
                train.StopAtStepHook(last_step=13),
            ]
            return {"training_hooks": hooks}

    # Two hooks run the loss in ``end``, one batch before the end of an epoch.
    clock = run(Native, tmp_path, until=50, unit=10)

    assert clock.steps_completed == 13
    assert (tmp_path / "saver" / "model.ckpt-13.index").exists()
    assert list((tmp_path / "profile").iterdir())
    # The hook, which keeps five checkpoints, deleted none of the trial's checkpoints.
    assert (tmp_path / "checkpoints" / "13" / "model.ckpt-13.index").exists()


def test_custom_local_init_op_keeps_metrics(tmp_path: Path) -> None:
    class OwnInit(Classifier):
        def change(self, spec: Any, mode: str) -> dict[str, Any]:
            initializer = tf1.local_variables_initializer()
            return {"scaffold": tf1.train.Scaffold(local_init_op=initializer)}

    custom, plain = (
        run(trial_class, tmp_path / trial_class.__name__, until=10, validate_every=5)
        for trial_class in (OwnInit, Classifier)
    )
    assert custom.validations == plain.validations
