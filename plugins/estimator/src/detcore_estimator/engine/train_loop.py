"""Implement ``Estimator.train``."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from detcore.errors import DetcoreError, InvalidExperimentError, InvalidModelError
from detcore_estimator.engine.checkpoint_writer import CheckpointWriter
from detcore_estimator.engine.event_files import EventFile
from detcore_estimator.engine.input_pipeline import Model, build_model
from detcore_estimator.engine.model_dir import latest_checkpoint, make_restorer
from detcore_estimator.graph.hooked_session import HookedSession
from detcore_estimator.graph.model_fn import model_graph
from detcore_estimator.specs.estimator_spec import ModeKeys
from detcore_estimator.tensorflow_versions import tf, tf1

_logger = logging.getLogger("detcore.estimator")

# A train_op may increase the global step once in many runs, but not this many.
_MAX_RUNS_WITHOUT_STEP = 10_000
_KEEP_EVERY_HOURS = 10_000


class NanLossDuringTrainingError(
    DetcoreError,
    tf1.train.NanLossDuringTrainingError,  # type: ignore[misc]  # TensorFlow has no types
):
    """Raised when the loss of a training step is not a number.

    The variables are useless after that step, so no checkpoint of it is written. Earlier
    checkpoints stay unchanged. It is also TensorFlow's error of this name, and a ``RuntimeError``.

    Attributes:
        step: The global step with this loss.
    """

    def __init__(self, step: int) -> None:
        super().__init__(
            f"the loss is NaN (not a number) at global step {step}.\n"
            "The step has made the variables unusable, and nothing was saved.\n"
            "Lower the learning rate, clip the gradients, or look for log(0), 0/0 and bad records "
            "in the data."
        )
        self.step = step

    def __str__(self) -> str:
        # TensorFlow's class has a fixed text.
        return str(self.args[0])


def train_model(
    estimator: Model,
    input_fn: Callable[..., Any],
    *,
    hooks: Sequence[Any],
    listeners: Sequence[Any],
    steps: int | None,
    max_steps: int | None,
) -> None:
    """Train a model from its latest checkpoint, or from the beginning.

    Args:
        estimator: The estimator.
        input_fn: Returns the training data.
        hooks: ``SessionRunHook`` objects.
        listeners: ``CheckpointSaverListener`` objects.
        steps: Number of additional global steps; None = until the data ends.
        max_steps: The global step to stop at; None = no limit.
    """
    model_dir = estimator.model_dir
    tf.io.gfile.makedirs(model_dir)
    checkpoint = latest_checkpoint(model_dir)
    config = estimator.config
    with model_graph(config) as graph:
        events = EventFile(model_dir, graph)
        inputs, spec = build_model(
            estimator, input_fn, ModeKeys.TRAIN, config=config, checkpoint=checkpoint
        )
        scaffold = spec.scaffold
        _add_saver(scaffold, config)
        user_hooks = (*hooks, *spec.training_hooks)
        chief_hooks = spec.training_chief_hooks
        writer = _make_writer(
            config,
            model_dir,
            scaffold,
            hooks=(*user_hooks, *chief_hooks),
            listeners=listeners,
            events=events,
            checkpoint=checkpoint,
        )
        # The same order as in tf.estimator: the chief's hooks, the data, the user's hooks.
        writer_hooks = () if writer is None else (writer,)
        all_hooks = (*writer_hooks, *chief_hooks, *inputs.hooks, *user_hooks)
        loop = _Loop(spec, writer=writer, events=events, config=config)
    with graph.as_default(), contextlib.closing(events):
        hooked = HookedSession(
            graph,
            scaffold=scaffold,
            hooks=all_hooks,
            config=config.session_config,
            restore=make_restorer(scaffold, checkpoint, model_dir),
        )
        with contextlib.closing(hooked):
            loop.run(hooked, steps=steps, max_steps=max_steps)
            hooked.end()


class _Loop:
    """Runs the steps, and writes due checkpoints, summaries and log lines."""

    def __init__(
        self,
        spec: Any,
        *,
        writer: CheckpointWriter | None,
        events: EventFile,
        config: Any,
    ) -> None:
        self._scaffold = spec.scaffold
        self._writer = writer
        self._events = events
        self._summary_steps: int = config.save_summary_steps or 0
        self._log_steps: int = config.log_step_count_steps or 0
        self._global_step = tf1.train.get_global_step()
        with tf1.control_dependencies([spec.train_op]):
            # Read after the step. In parallel, the value would be old or new at random.
            step_after = tf.identity(self._global_step.read_value())
        self._fetches = [spec.train_op, spec.loss, step_after]
        tf1.add_to_collection(tf1.GraphKeys.LOSSES, spec.loss)
        summaries = tf1.get_collection(tf1.GraphKeys.SUMMARIES)
        if not any(summary.op.name == "loss" for summary in summaries):
            tf1.summary.scalar("loss", spec.loss)
        self._logged: tuple[int, float] | None = None

    def run(self, hooked: HookedSession, *, steps: int | None, max_steps: int | None) -> None:
        """Run until a limit, the end of the data, or a stop request of a hook."""
        start = int(hooked.session.run(self._global_step))
        last = max_steps if steps is None else start + steps
        _logger.info("training from global step %d%s", start, f" to {last}" if last else "")
        if self._writes_events():
            self._events.write_session_log(start, status=tf1.SessionLog.START)
        num_steps = self._run_steps(hooked, start, math.inf if last is None else last)
        if num_steps == 0:
            _logger.warning(
                "training ran no step: input_fn returned no batch, or a hook stopped training"
            )

    def _writes_events(self) -> bool:
        return self._writer is not None or bool(self._summary_steps)

    def _run_steps(self, hooked: HookedSession, start: int, last: float) -> int:
        """Run steps, and return their number."""
        run = hooked.make_step(self._fetches)
        run_summary = run
        if self._summary_steps:
            run_summary = hooked.make_step([*self._fetches, self._scaffold.summary_op])
        writer, log_steps = self._writer, self._log_steps
        next_summary = start if self._summary_steps else math.inf
        next_log = start if log_steps else math.inf
        num_steps, step, loss = 0, start, None
        try:
            while step < last and not hooked.should_stop:
                values = run_summary() if step >= next_summary else run()
                num_steps += 1
                loss, new_step = values[1], int(values[2])
                if loss != loss:
                    raise NanLossDuringTrainingError(new_step)
                if step >= next_summary:
                    self._events.write_summary(new_step, values[3])
                    next_summary = step + self._summary_steps
                step = new_step
                if writer is not None and writer.is_due(step) and writer.save(hooked.session, step):
                    break
                if step > next_log:
                    self._log_step(step, loss)
                    next_log = step + log_steps - 1
                if step == start and num_steps >= _MAX_RUNS_WITHOUT_STEP:
                    break
        except (tf.errors.OutOfRangeError, StopIteration):
            _logger.info("the training data ended at global step %d", step)
        if num_steps and step == start:
            raise InvalidModelError(
                f"train_op ran {num_steps} times, but the global step is still {start}.\n"
                "The global step counts steps and names checkpoints.\n"
                "Pass it to the optimizer: "
                "minimize(loss, global_step=tf.compat.v1.train.get_global_step())."
            )
        if loss is not None:
            _logger.info("loss of the last step, %d: %s", step, loss)
        return num_steps

    def _log_step(self, step: int, loss: Any) -> None:
        now = time.perf_counter()
        if self._logged is None:
            _logger.info("global step %d: loss %s", step, loss)
        else:
            rate = (step - self._logged[0]) / max(now - self._logged[1], 1e-9)
            _logger.info("global step %d: loss %s (%.4g steps/s)", step, loss, rate)
            if self._writes_events():
                summary = tf1.Summary()
                summary.value.add(tag="global_step/sec", simple_value=rate)
                self._events.write_summary(step, summary)
        self._logged = (step, now)


def _add_saver(scaffold: Any, config: Any) -> None:
    """Put the saver that the scaffold will use into its collection, where hooks also find it."""
    if scaffold.saver is None and not tf1.get_collection(tf1.GraphKeys.SAVERS):
        saver = tf1.train.Saver(
            sharded=True,
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours or _KEEP_EVERY_HOURS,
            defer_build=True,
            save_relative_paths=True,
        )
        tf1.add_to_collection(tf1.GraphKeys.SAVERS, saver)


def _make_writer(
    config: Any,
    model_dir: str,
    scaffold: Any,
    *,
    hooks: Sequence[Any],
    listeners: Sequence[Any],
    events: EventFile,
    checkpoint: str | None,
) -> CheckpointWriter | None:
    """Return the checkpoint writer; None if saving is off, or a hook of the user saves."""
    savers = [hook for hook in hooks if isinstance(hook, tf1.train.CheckpointSaverHook)]
    if not savers and (config.save_checkpoints_secs or config.save_checkpoints_steps):
        return CheckpointWriter(
            config=config,
            model_dir=model_dir,
            scaffold=scaffold,
            listeners=listeners,
            events=events,
            restored=checkpoint,
        )
    if savers:
        # TensorFlow's hook accepts listeners only in its constructor, which the user has called.
        saver_listeners = savers[0]._listeners
        saver_listeners.extend(
            listener for listener in listeners if listener not in saver_listeners
        )
        return None
    if listeners:
        raise InvalidExperimentError(
            "saving_listeners were passed, but no checkpoint is saved.\n"
            "Set RunConfig.save_checkpoints_steps or RunConfig.save_checkpoints_secs."
        )
    return None
