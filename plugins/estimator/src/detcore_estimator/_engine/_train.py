"""Implement ``Estimator.train``: a graph, a session and a loop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from detcore.errors import InvalidExperimentError, InvalidModelError
from detcore_estimator._engine._checkpoint_writer import CheckpointWriter
from detcore_estimator._engine._event_files import EventFile
from detcore_estimator._engine._hook_kinds import is_called_per_step
from detcore_estimator._engine._input_pipeline import read_inputs
from detcore_estimator._engine._model import Model
from detcore_estimator._engine._model_dir import latest_checkpoint, restore
from detcore_estimator._errors import NanLossDuringTrainingError
from detcore_estimator._model_fn import model_graph
from detcore_estimator._session import HookedSession
from detcore_estimator._spec import ModeKeys
from detcore_estimator._tf import tf, tf1

_logger = logging.getLogger("detcore.estimator")

# A train_op may increase the global step once in many runs, but not this many.
_MOST_RUNS_WITHOUT_STEP = 10_000
_KEEP_EVERY_HOURS = 10_000


def train_model(
    model: Model,
    input_fn: Callable[..., Any],
    *,
    hooks: Sequence[Any],
    listeners: Sequence[Any],
    steps: int | None,
    max_steps: int | None,
) -> None:
    """Train a model from its latest checkpoint on, or from the beginning.

    Args:
        model: The model and where it is kept.
        input_fn: Returns the training data.
        hooks: ``SessionRunHook`` objects.
        listeners: ``CheckpointSaverListener`` objects.
        steps: How many global steps more; None = as long as there are data.
        max_steps: The global step to stop at; None = no limit.
    """
    tf.io.gfile.makedirs(model.model_dir)
    checkpoint = latest_checkpoint(model.model_dir)
    events = EventFile(model.model_dir)
    with model_graph(model.config) as graph:
        inputs = read_inputs(input_fn, ModeKeys.TRAIN, params=model.params, config=model.config)
        spec = model.model_fn(inputs.features, inputs.labels, ModeKeys.TRAIN, model.config)
        if checkpoint is None:
            model.warm_start_variables()
        scaffold = spec.scaffold or tf1.train.Scaffold()
        _add_saver(scaffold, model.config)
        user_hooks = (*hooks, *(spec.training_hooks or ()))
        chief_hooks = tuple(spec.training_chief_hooks or ())
        writer = _writer(
            model,
            scaffold,
            hooks=(*user_hooks, *chief_hooks),
            listeners=listeners,
            events=events,
            checkpoint=checkpoint,
        )
        # The order of tf.estimator: the chief's hooks, then the data, then the user's hooks.
        own = () if writer is None else (writer,)
        all_hooks = (*own, *chief_hooks, *inputs.hooks, *user_hooks)
        loop = _Loop(
            graph,
            spec,
            scaffold,
            writer=writer,
            events=events,
            config=model.config,
            is_hooked=any(map(is_called_per_step, all_hooks)),
        )
    with graph.as_default():
        try:
            with HookedSession(
                graph,
                scaffold=scaffold,
                hooks=all_hooks,
                config=model.config.session_config,
                restore=_restorer(scaffold, model.model_dir, checkpoint),
            ) as hooked:
                loop.run(hooked, steps=steps, max_steps=max_steps)
                hooked.end()
        finally:
            events.close()


class _Loop:
    """Runs the steps, and the saves, summaries and log lines that are due in between."""

    def __init__(
        self,
        graph: Any,
        spec: Any,
        scaffold: Any,
        *,
        writer: CheckpointWriter | None,
        events: EventFile,
        config: Any,
        is_hooked: bool,
    ) -> None:
        self._graph = graph
        self._is_hooked = is_hooked
        self._spec = spec
        self._scaffold = scaffold
        self._writer = writer
        self._events = events
        self._summary_steps: int = config.save_summary_steps or 0
        self._log_steps: int = config.log_step_count_steps or 0
        self._global_step = tf1.train.get_global_step(graph)
        with tf1.control_dependencies([spec.train_op]):
            # Read after the step; in parallel to it, the value would be old or new by chance.
            step_after = tf.identity(self._global_step.read_value())
        self._fetches = [spec.train_op, spec.loss, step_after]
        tf1.add_to_collection(tf1.GraphKeys.LOSSES, spec.loss)
        summaries = tf1.get_collection(tf1.GraphKeys.SUMMARIES)
        self._adds_loss = not any(summary.op.name == "loss" for summary in summaries)
        self._logged: tuple[int, float] | None = None

    def run(self, hooked: HookedSession, *, steps: int | None, max_steps: int | None) -> None:
        """Run until a limit, the end of the data, or a hook that asks to stop."""
        start = int(hooked.session.run(self._global_step))
        last = max_steps if steps is None else start + steps
        _logger.info("training from global step %d%s", start, f" to {last}" if last else "")
        if self._events_wanted():
            definition = self._graph.as_graph_def(add_shapes=True).SerializeToString()
            self._events.write(tf1.Event(wall_time=time.time(), graph_def=definition))
            self._events.write_session_log(start, status=tf1.SessionLog.START)
        done = self._steps(hooked, start, math.inf if last is None else last)
        if done == 0:
            _logger.warning(
                "training made no step: input_fn gave no batch, or a hook stopped it before"
            )

    def _runner(self, hooked: HookedSession, fetches: list[Any]) -> Callable[[], Any]:
        """Return the fastest way to run fetches that leaves no hook out."""
        if self._is_hooked:
            return lambda: hooked.run(fetches)
        function: Callable[[], Any] = hooked.session.make_callable(fetches)
        return function

    def _events_wanted(self) -> bool:
        return self._writer is not None or bool(self._summary_steps)

    def _steps(self, hooked: HookedSession, start: int, last: float) -> int:
        """Return how many times the step was run."""
        run = self._runner(hooked, self._fetches)
        summary_op = self._scaffold.summary_op if self._summary_steps else None
        run_summary = run
        if summary_op is not None:
            run_summary = self._runner(hooked, [*self._fetches, summary_op])
        writer, log_steps = self._writer, self._log_steps
        next_summary = start if self._summary_steps else math.inf
        next_log = start if log_steps else math.inf
        done, step, loss = 0, start, None
        try:
            while step < last and not hooked.should_stop:
                values = run_summary() if step >= next_summary else run()
                done += 1
                loss, new_step = values[1], int(values[2])
                if loss != loss:
                    raise NanLossDuringTrainingError(new_step)
                if step >= next_summary:
                    self._write_summary(new_step, loss, values[3:])
                    next_summary = step + self._summary_steps
                step = new_step
                if writer is not None and writer.is_due(step) and writer.save(hooked.session, step):
                    break
                if step > next_log:
                    self._log(step, loss)
                    next_log = step + log_steps - 1
                if step == start and done >= _MOST_RUNS_WITHOUT_STEP:
                    break
        except (tf.errors.OutOfRangeError, StopIteration):
            _logger.info("the training data ended at global step %d", step)
        if done and step == start:
            raise InvalidModelError(
                f"train_op ran {done} times and the global step is still {start}.\n"
                "Without it there is nothing to count steps and to name checkpoints by.\n"
                "Pass it to the optimizer: "
                "minimize(loss, global_step=tf.compat.v1.train.get_global_step())."
            )
        if loss is not None:
            _logger.info("loss of the last step, %d: %s", step, loss)
        return done

    def _write_summary(self, step: int, loss: Any, summaries: Sequence[bytes]) -> None:
        summary = tf1.Summary.FromString(summaries[0]) if summaries else tf1.Summary()
        if self._adds_loss:
            summary.value.add(tag="loss", simple_value=float(loss))
        self._events.write_summary(step, summary)

    def _log(self, step: int, loss: Any) -> None:
        now = time.perf_counter()
        if self._logged is None:
            _logger.info("global step %d: loss %s", step, loss)
        else:
            rate = (step - self._logged[0]) / max(now - self._logged[1], 1e-9)
            _logger.info("global step %d: loss %s (%.4g steps/s)", step, loss, rate)
            if self._events_wanted():
                summary = tf1.Summary()
                summary.value.add(tag="global_step/sec", simple_value=rate)
                self._events.write_summary(step, summary)
        self._logged = (step, now)


def _add_saver(scaffold: Any, config: Any) -> None:
    """Put the saver that the scaffold will use into its collection, where hooks find it, too."""
    if scaffold.saver is None and not tf1.get_collection(tf1.GraphKeys.SAVERS):
        saver = tf1.train.Saver(
            sharded=True,
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours or _KEEP_EVERY_HOURS,
            defer_build=True,
            save_relative_paths=True,
        )
        tf1.add_to_collection(tf1.GraphKeys.SAVERS, saver)


def _writer(
    model: Model,
    scaffold: Any,
    *,
    hooks: Sequence[Any],
    listeners: Sequence[Any],
    events: EventFile,
    checkpoint: str | None,
) -> CheckpointWriter | None:
    """Return what saves; None where the configuration or a hook of the user takes care of it."""
    config = model.config
    savers = [hook for hook in hooks if isinstance(hook, tf1.train.CheckpointSaverHook)]
    if not savers and (config.save_checkpoints_secs or config.save_checkpoints_steps):
        return CheckpointWriter(
            config=config,
            model_dir=model.model_dir,
            scaffold=scaffold,
            listeners=listeners,
            events=events,
            restored=checkpoint,
        )
    if savers:
        # TensorFlow's hook takes listeners only when it is made, and the user has made it already.
        known = savers[0]._listeners
        known.extend(listener for listener in listeners if listener not in known)
        return None
    if listeners:
        raise InvalidExperimentError(
            "saving_listeners were given, but no checkpoint is saved.\n"
            "Set RunConfig.save_checkpoints_steps or RunConfig.save_checkpoints_secs."
        )
    return None


def _restorer(
    scaffold: Any, model_dir: str, checkpoint: str | None
) -> Callable[[Any], None] | None:
    if checkpoint is None:
        return None

    def restore_latest(session: Any) -> None:
        _logger.info("resuming from %s", checkpoint)
        restore(scaffold.saver, session, checkpoint)
        # Tells the saver which older files it may remove.
        state = tf1.train.get_checkpoint_state(model_dir)
        scaffold.saver.recover_last_checkpoints(state.all_model_checkpoint_paths)

    return restore_latest
