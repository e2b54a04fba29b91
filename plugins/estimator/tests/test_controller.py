"""The controller of an Estimator trial: what it calls, what it reports, what it refuses."""

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
    raw_input,
)

import detcore_estimator
from detcore.errors import DataError, InvalidExperimentError, InvalidModelError, UnsafePathError
from detcore_estimator._controller import EstimatorController
from detcore_estimator._tf import tf, tf1


def run(
    trial_class: type[Classifier], tmp_path: Path, *, until: int = 20, **clock: Any
) -> tuple[EstimatorController, FakeClock]:
    context = make_context(tmp_path)
    controller = EstimatorController(trial_class(context), context)
    clock.setdefault("directory", tmp_path / "checkpoints")
    fake = FakeClock(controller, until=until, context=context, **clock)
    try:
        controller.run(fake)
    finally:
        controller.close()
    return controller, fake


def test_reports_the_loss_of_each_batch_and_its_mean(tmp_path: Path) -> None:
    _, clock = run(Classifier, tmp_path, until=20, unit=5)

    losses = [batch["loss"] for batch in clock.batches]
    assert len(losses) == 20
    assert all(set(batch) == {"loss"} for batch in clock.batches)
    assert [steps for steps, _ in clock.training] == [5, 10, 15, 20]
    assert clock.training[1][1] == {"loss": pytest.approx(np.mean(losses[5:10]), rel=1e-12)}


def test_each_graph_is_built_once(tmp_path: Path) -> None:
    calls: list[str] = []

    class Counting(Classifier):
        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            calls.append(mode)
            return super().model_fn(features, labels, mode)

        def train_data(self) -> Any:
            calls.append("train data")
            return super().train_data()

        def validation_data(self) -> Any:
            calls.append("validation data")
            return super().validation_data()

        def build_serving_input_receiver_fns(self) -> dict[str, Any]:
            return {"raw": raw_input}

    run(Counting, tmp_path, until=20, validate_every=5, save_every=5)

    assert sorted(calls) == ["eval", "infer", "train", "train data", "validation data"]


def test_validation_equals_an_evaluation_of_the_checkpoint(tmp_path: Path) -> None:
    class Seeing(Classifier):
        def validation_data(self) -> Any:
            # Batches of one size: tf.estimator counts each as much, a trial each record.
            return super().validation_data().unbatch().batch(5)

    _, clock = run(Seeing, tmp_path, until=10, validate_every=10, save_every=10)

    context = make_context(tmp_path / "other")
    trial = Seeing(context)
    estimator = trial.build_estimator()
    result = estimator.evaluate(
        trial.validation_data,
        checkpoint_path=str(tmp_path / "checkpoints" / "10" / "model.ckpt-10"),
    )
    assert clock.validations == [(10, {name: pytest.approx(v) for name, v in result.items()})]


def test_records_are_counted_and_the_loss_is_the_mean_over_them(tmp_path: Path) -> None:
    class LossIsTheLabel(Classifier):
        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            spec = super().model_fn(features, labels, mode)
            if mode != "eval":
                return spec
            return spec._replace(loss=tf.reduce_mean(tf.cast(labels, tf.float32)))

    _, clock = run(LossIsTheLabel, tmp_path, until=9, unit=3, validate_every=9)

    # 50 records in batches of 8: six whole ones and one of two.
    assert clock.records == [24, 24, 2 + 16]
    assert clock.validated_records == [20]
    assert clock.validations[0][1]["loss"] == pytest.approx(np.mean(LABELS[:20]), rel=1e-12)


def test_validation_writes_nothing(tmp_path: Path) -> None:
    run(Classifier, tmp_path, until=20, validate_every=5, directory=None)

    assert [p for p in tmp_path.rglob("*") if p.is_file() and "tfevents" not in p.name] == []


def test_scalar_summaries_are_reported_per_batch_and_others_only_written(tmp_path: Path) -> None:
    class WithSummaries(Classifier):
        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            spec = super().model_fn(features, labels, mode)
            if mode == "train":
                tf1.summary.scalar("mean_feature", tf.reduce_mean(features))
                tf1.summary.histogram("features", features)
            return spec

    _, clock = run(WithSummaries, tmp_path, until=7, unit=7)

    assert all(set(batch) == {"loss", "mean_feature"} for batch in clock.batches)
    # One epoch is seven batches, so the mean over records is that of the data.
    weights = [8] * 6 + [2]
    means = [batch["mean_feature"] for batch in clock.batches]
    assert np.average(means, weights=weights) == pytest.approx(FEATURES.mean(), abs=1e-6)


def test_summaries_are_written_every_save_summary_steps(tmp_path: Path) -> None:
    class WithHistogram(Classifier):
        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            spec = super().model_fn(features, labels, mode)
            if mode == "train":
                tf1.summary.histogram("features", features)
            return spec

        def build_estimator(self) -> Any:
            config = detcore_estimator.RunConfig(save_summary_steps=4)
            return detcore_estimator.Estimator(self.model_fn, config=config)

    run(WithHistogram, tmp_path, until=10)

    [path] = (tmp_path / "tensorboard").glob("events*")
    found = {
        (event.step, value.tag)
        for event in tf1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert found == {(4, "features"), (4, "loss"), (8, "features"), (8, "loss")}


# -- hooks -----------------------------------------------------------------------------------------


class Recorder(detcore_estimator.RunHook):
    """Notes what is called, by name."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def note(self, method: str) -> None:
        self.calls.append(f"{self.name}.{method}")

    def begin(self) -> None:
        self.note("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.note("after_create_session")

    def before_run(self, run_context: Any) -> Any:
        self.note("before_run")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.note("after_run")

    def end(self, session: Any) -> None:
        self.note("end")

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        assert (Path(checkpoint_dir) / "checkpoint").exists()
        self.note("on_checkpoint_load")

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        assert (Path(checkpoint_dir) / "checkpoint").exists()
        self.note("on_checkpoint_end")

    def on_trial_close(self) -> None:
        self.note("on_trial_close")


def test_hooks_are_called_in_their_order(tmp_path: Path) -> None:
    calls: list[str] = []

    class Hooked(Classifier):
        hooks = (Recorder("a", calls), Recorder("b", calls))

        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            spec = super().model_fn(features, labels, mode)
            return spec._replace(training_hooks=[Recorder("model", calls)])

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


def test_on_checkpoint_load_comes_first_and_only_on_resume(tmp_path: Path) -> None:
    calls: list[str] = []

    class Hooked(Classifier):
        hooks = (Recorder("a", calls),)

    run(Hooked, tmp_path, until=2)
    assert "a.on_checkpoint_load" not in calls
    calls.clear()

    context = make_context(tmp_path)
    controller = EstimatorController(Hooked(context), context)
    controller.restore(tmp_path / "checkpoints" / "2")
    controller.close()
    assert calls == [
        "a.on_checkpoint_load",
        "a.begin",
        "a.after_create_session",
        "a.on_trial_close",
    ]


def test_on_trial_close_is_called_after_an_error(tmp_path: Path) -> None:
    calls: list[str] = []

    class Failing(Recorder):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            raise RuntimeError("on purpose")

    class Hooked(Classifier):
        hooks = (Failing("a", calls),)

    with pytest.raises(RuntimeError, match="on purpose"):
        run(Hooked, tmp_path, until=2)
    assert calls[-1] == "a.on_trial_close"
    assert "a.end" not in calls


def test_a_hook_sees_the_values_of_its_step_and_may_feed(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    class Reader(tf1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self.step = tf1.train.get_global_step()
            self.added = tf1.placeholder_with_default(0.0, [])

        def before_run(self, run_context: Any) -> Any:
            feed = {self.added: float(len(seen))}
            return tf1.train.SessionRunArgs({"step": self.step, "fed": self.added}, feed)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append((int(run_values.results["step"]), float(run_values.results["fed"])))

    class Hooked(Classifier):
        hooks = (Reader(),)

    run(Hooked, tmp_path, until=6)
    assert [fed for _, fed in seen] == [0, 1, 2, 3, 4, 5]
    assert seen[-1][0] in (5, 6)


def test_a_hook_that_asks_to_stop_ends_training_after_a_checkpoint(tmp_path: Path) -> None:
    class Stopper(tf1.train.SessionRunHook):  # type: ignore[misc]
        runs = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.runs += 1
            if self.runs == 7:
                run_context.request_stop()

    class Hooked(Classifier):
        hooks = (Stopper(),)

    _, clock = run(Hooked, tmp_path, until=100)
    assert clock.steps_completed == 7
    assert clock.context is not None
    assert clock.context.get_stop_requested()
    assert (tmp_path / "checkpoints" / "7" / "checkpoint").exists()


@pytest.mark.parametrize("place", ["eval_spec", "model_fn"])
def test_a_stop_requested_in_a_validation_ends_the_trial(tmp_path: Path, place: str) -> None:
    class Stopper(tf1.train.SessionRunHook):  # type: ignore[misc]
        """As if it had seen in the second validation that the first was not improved on."""

        validations = 0

        def begin(self) -> None:
            self.validations += 1

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if self.validations == 2:
                run_context.request_stop()

    stopper = Stopper()

    class Hooked(Classifier):
        eval_hooks = (stopper,) if place == "eval_spec" else ()

        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            spec = super().model_fn(features, labels, mode)
            if mode == "eval" and place == "model_fn":
                spec = spec._replace(evaluation_hooks=[stopper])
            return spec

    _, clock = run(Hooked, tmp_path, until=100, validate_every=5)
    assert stopper.validations == 2
    assert [step for step, _ in clock.validations] == [5, 10]
    assert 10 <= clock.steps_completed <= 11
    assert clock.context is not None
    assert clock.context.get_stop_requested()


@pytest.mark.parametrize("kind", ["hooks", "eval_hooks"])
def test_hook_finds_tensors_in_the_default_graph(tmp_path: Path, kind: str) -> None:
    losses: list[float] = []

    class Reader(tf1.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, run_context: Any) -> Any:
            named = tf1.get_default_graph().get_tensor_by_name("named_loss:0")
            return tf1.train.SessionRunArgs(named)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            assert tf1.get_default_graph() is run_context.session.graph
            losses.append(float(run_values.results))

    class Hooked(Classifier):
        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            spec = super().model_fn(features, labels, mode)
            return spec._replace(loss=tf.identity(spec.loss, name="named_loss"))

    setattr(Hooked, kind, (Reader(),))
    run(Hooked, tmp_path, until=4, validate_every=4)
    assert losses


class Listener(tf1.train.CheckpointSaverListener):  # type: ignore[misc]
    def __init__(self, *, stop_at: int = 0) -> None:
        self.calls: list[tuple[str, int]] = []
        self.stop_at = stop_at

    def begin(self) -> None:
        self.calls.append(("begin", -1))

    def before_save(self, session: Any, global_step_value: int) -> None:
        self.calls.append(("before", global_step_value))

    def after_save(self, session: Any, global_step_value: int) -> bool:
        self.calls.append(("after", global_step_value))
        return global_step_value == self.stop_at

    def end(self, session: Any, global_step_value: int) -> None:
        self.calls.append(("end", global_step_value))


def test_saving_listeners_are_called_and_may_stop_training(tmp_path: Path) -> None:
    listener = Listener(stop_at=10)

    class Listening(Classifier):
        listeners = (listener,)

    _, clock = run(Listening, tmp_path, until=20, save_every=5)

    # The clock of this test reads the request once the unit after the save has ended.
    assert listener.calls[:5] == [
        ("begin", -1), ("before", 5), ("after", 5), ("before", 10), ("after", 10),
    ]  # fmt: skip
    assert listener.calls[-1] == ("end", clock.steps_completed)
    assert clock.steps_completed < 20


def test_evaluation_hooks_live_for_each_validation(tmp_path: Path) -> None:
    calls: list[str] = []

    class Hooked(Classifier):
        eval_hooks = (Recorder("e", calls),)
        eval_steps = 2

    run(Hooked, tmp_path, until=10, validate_every=5, directory=None)

    once = ["e.begin", "e.after_create_session", *["e.before_run", "e.after_run"] * 2, "e.end"]
    assert calls == once * 2


def test_an_evaluation_hook_that_adds_to_the_graph_works_every_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sums: list[float] = []
    modes: list[str] = []

    class Adding(tf1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            step = tf1.train.get_global_step()
            self.twice = step * 2

        def before_run(self, run_context: Any) -> Any:
            return tf1.train.SessionRunArgs(self.twice)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            sums.append(float(run_values.results))

    class Hooked(Classifier):
        eval_hooks = (Adding(),)
        eval_steps = 1

        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            modes.append(mode)
            return super().model_fn(features, labels, mode)

    with caplog.at_level(logging.INFO, "detcore.estimator"):
        run(Hooked, tmp_path, until=10, validate_every=5, directory=None)
    assert sums == [10, 20]
    assert modes.count("eval") == 2
    assert "adds to the graph" in caplog.text


# -- what is not used, and what is refused ---------------------------------------------------------


def test_what_a_trial_does_not_use_is_named_in_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Much(Classifier):
        def build_estimator(self) -> Any:
            config = detcore_estimator.RunConfig(save_checkpoints_steps=7, keep_checkpoint_max=2)
            return detcore_estimator.Estimator(self.model_fn, config=config)

        def build_train_spec(self) -> Any:
            return detcore_estimator.TrainSpec(self.train_data, max_steps=12)

        def build_validation_spec(self) -> Any:
            return detcore_estimator.EvalSpec(self.validation_data, throttle_secs=30)

    context = make_context(tmp_path)
    EstimatorController(Much(context), context).close()

    [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
    for part in (
        "RunConfig.save_checkpoints_steps=7",
        "RunConfig.keep_checkpoint_max=2",
        "TrainSpec.max_steps=12",
        "EvalSpec.throttle_secs=30",
        "searcher.max_length",
    ):
        assert part in record.getMessage()


def test_nothing_is_warned_of_when_nothing_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = make_context(tmp_path)
    EstimatorController(Classifier(context), context).close()
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("method", "value", "text"),
    [
        ("build_estimator", None, "build_estimator returned None"),
        ("build_estimator", "DNN", "build_estimator returned 'DNN'"),
        ("build_train_spec", {}, "build_train_spec returned {}"),
        ("build_validation_spec", (1, 2), "build_validation_spec returned (1, 2)"),
        ("build_serving_input_receiver_fns", [], "must return a dict"),
        ("build_serving_input_receiver_fns", {"raw": 3}, "must be a function"),
    ],
)
def test_wrong_return_types_are_found_before_anything_is_built(
    tmp_path: Path, method: str, value: Any, text: str
) -> None:
    def build(self: Any) -> Any:
        return value

    def model_fn(self: Any, features: Any, labels: Any, mode: str) -> Any:
        raise AssertionError("the model was built")

    wrong = type("Wrong", (Classifier,), {method: build, "model_fn": model_fn})
    context = make_context(tmp_path)
    with pytest.raises(InvalidModelError) as caught:
        EstimatorController(wrong(context), context)
    assert text in str(caught.value)


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "-x"])
def test_serving_names_that_are_no_folder_names_are_refused(tmp_path: Path, name: str) -> None:
    class Serving(Classifier):
        def build_serving_input_receiver_fns(self) -> dict[str, Any]:
            return {name: raw_input}

    context = make_context(tmp_path)
    with pytest.raises(UnsafePathError, match="cannot be the name of a folder"):
        EstimatorController(Serving(context), context)


def test_an_optimizer_that_was_not_wrapped_is_found_before_the_first_step(tmp_path: Path) -> None:
    class Unwrapped(Classifier):
        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            loss = tf1.losses.sparse_softmax_cross_entropy(labels, dense(features, 2, "logits"))
            step = tf1.train.get_global_step()
            train_op = tf1.train.AdamOptimizer().minimize(loss, global_step=step)
            return detcore_estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    context = make_context(tmp_path)
    with pytest.raises(InvalidExperimentError, match=r"self\.context\.wrap_optimizer"):
        EstimatorController(Unwrapped(context), context)


@pytest.mark.parametrize("role", ["training", "validation"])
def test_data_that_was_not_wrapped_is_found_before_the_first_step(
    tmp_path: Path, role: str
) -> None:
    class Unwrapped(Classifier):
        pass

    def data(self: Any) -> Any:
        return tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(8)

    setattr(Unwrapped, "train_data" if role == "training" else "validation_data", data)
    with pytest.raises(InvalidExperimentError, match=rf"{role} input_fn .* not wrapped"):
        run(Unwrapped, tmp_path, until=5)


def test_an_empty_validation_set_is_an_error(tmp_path: Path) -> None:
    class Empty(Classifier):
        def validation_data(self) -> Any:
            return super().validation_data().take(0)

    with pytest.raises(DataError, match="validation dataset gave no batch"):
        run(Empty, tmp_path, until=5, validate_every=5)


def test_a_nan_loss_is_named_once_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Nan(Classifier):
        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            spec = super().model_fn(features, labels, mode)
            if mode == "train":
                step = tf.cast(tf1.train.get_global_step(), tf.float32)
                nan = tf.where(step >= 3.0, np.float32("nan"), np.float32(0))
                spec = spec._replace(loss=spec.loss + nan)
            return spec

    _, clock = run(Nan, tmp_path, until=10)
    assert clock.steps_completed == 10
    [record] = [r for r in caplog.records if "NaN" in r.getMessage()]
    assert "batch 4 is NaN" in record.getMessage() or "batch 3 is NaN" in record.getMessage()


# -- settings that are kept ------------------------------------------------------------------------


def test_the_run_config_is_kept_except_what_the_trial_owns(tmp_path: Path) -> None:
    seen: list[Any] = []
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
                seen.append(config)
                assert tf1.get_default_graph().seed == 77
                return self.model_fn(features, labels, mode)

            return detcore_estimator.Estimator(model_fn, config=config)

    context = make_context(tmp_path)
    controller = EstimatorController(Configured(context), context)
    controller.close()

    [config] = seen
    assert config.session_config == session_config
    assert config.tf_random_seed == 77
    assert config.model_dir == str(tmp_path / "trial" / "estimator")
    assert context.session_config.intra_op_parallelism_threads == 1


def test_test_mode_evaluates_one_batch(tmp_path: Path) -> None:
    calls: list[str] = []

    class Hooked(Classifier):
        eval_hooks = (Recorder("e", calls),)

    context = make_context(tmp_path, test_mode=True)
    controller = EstimatorController(Hooked(context), context)
    controller.validate()
    controller.close()
    assert calls.count("e.before_run") == 1


def test_the_hooks_of_tensorflow_work_beside_one_another(tmp_path: Path) -> None:
    class Native(Classifier):
        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            spec = super().model_fn(features, labels, mode)
            if mode != "train":
                return spec
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
            return spec._replace(training_hooks=hooks)

    # Two of them run the loss in ``end``, one batch before the end of an epoch.
    _, clock = run(Native, tmp_path, until=50, unit=10)

    assert clock.steps_completed == 13
    assert (tmp_path / "saver" / "model.ckpt-13.index").exists()
    assert list((tmp_path / "profile").iterdir())
    # The hook that keeps five checkpoints of its own took none of ours.
    assert (tmp_path / "checkpoints" / "13" / "model.ckpt-13.index").exists()


def test_a_local_init_op_of_the_users_leaves_no_metric_uninitialized(tmp_path: Path) -> None:
    class OwnInit(Classifier):
        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            spec = super().model_fn(features, labels, mode)
            scaffold = tf1.train.Scaffold(local_init_op=tf1.local_variables_initializer())
            return spec._replace(scaffold=scaffold)

    _, own = run(OwnInit, tmp_path / "own", until=10, validate_every=5)
    _, plain = run(Classifier, tmp_path / "plain", until=10, validate_every=5)
    assert own.validations == plain.validations
