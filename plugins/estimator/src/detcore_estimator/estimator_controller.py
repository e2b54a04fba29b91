"""Train an `EstimatorTrial` with one training session, one evaluation session, and the clock."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.errors import DataError, InvalidCheckpointError
from detcore.trial import (
    ValidationResult,
    capture_random_state,
    preserve_random_state,
    restore_random_state,
)
from detcore_estimator.checkpoint.model_files import (
    ModelFiles,
    model_prefix,
    saver_of,
    saver_of_local,
    saver_of_uncovered,
)
from detcore_estimator.engine.event_files import EventFile
from detcore_estimator.graph.model_fn import warm_start
from detcore_estimator.graph.scaffolds import own_saver
from detcore_estimator.run_hook import RunHook
from detcore_estimator.tensorflow_versions import tf1
from detcore_estimator.training.evaluation_graph import Evaluation, scalar_metrics
from detcore_estimator.training.training_graph import (
    TrainingGraph,
    TrainingSession,
    mean_metrics,
    name_state,
)
from detcore_estimator.training.trial_checks import TrialParts
from detcore_estimator.training.trial_exports import Exporters, ServingExports
from detcore_estimator.training.trial_settings import (
    own_run_config,
    own_session_config,
    size_thread_pools,
    warn_of_unused,
)

if TYPE_CHECKING:
    import numpy as np

    from detcore.distributed import DistributedContext
    from detcore.trial import Clock
    from detcore.types import TensorInfo
    from detcore_estimator.estimator_context import EstimatorContext
    from detcore_estimator.estimator_trial import EstimatorTrial


_logger = logging.getLogger("detcore.estimator")

_POSITION_FILE = "estimator-position.json"
_RANDOM_FILE = "rng.json"
_VERSION = 1


class EstimatorController:
    """A `detcore.trial.LoopingController` for Estimators, with snapshots.

    Args:
        trial: The user's trial.
        context: The trial's context.

    Raises:
        DetcoreError: If the trial violates a rule, such as a wrong return value, or data or an
            optimizer that was not wrapped.
    """

    def __init__(self, trial: EstimatorTrial, context: EstimatorContext) -> None:
        self._context = context
        self._resources = contextlib.ExitStack()
        parts = TrialParts(trial)
        estimator = parts.estimator
        self._is_chief = context.distributed.get_rank() == 0
        if self._is_chief:
            warn_of_unused(estimator.config, parts.train_spec, parts.eval_spec)
        config = own_run_config(
            estimator.config, model_dir=self._model_dir(), seed=context.get_trial_seed()
        )
        context.session_config = own_session_config(
            config, local_rank=context.distributed.get_local_rank()
        )
        size_thread_pools(context.session_config)
        self._config = config
        self._estimator = estimator
        self._graph = TrainingGraph(
            estimator, parts.train_spec.input_fn, config=config, context=context
        )
        self._feed = self._graph.feed
        if self._is_chief:
            self._graph.warn_of_unsaved_random_state()
        self._hooks = tuple(parts.train_spec.hooks)
        self._run_hooks = [hook for hook in self._hooks if isinstance(hook, RunHook)]
        # As in TensorFlow, only the chief saves and calls listeners.
        listeners = parts.train_spec.saving_listeners if self._is_chief else None
        self._listeners = tuple(listeners or ())
        self._evaluation = Evaluation(estimator, parts.eval_spec, config=config, context=context)
        self._serving = ServingExports(estimator.model_fn, parts.serving, config)
        self._exporters = Exporters(
            parts.eval_spec.exporters,
            estimator=estimator,
            config=config,
            eval_name=parts.eval_spec.name,
        )
        self._summaries = EventFile(str(context.get_tensorboard_path()), self._graph.graph)
        self._training: TrainingSession | None = None
        self._files: ModelFiles | None = None
        # Starting hooks, and other code before the first step, may draw numbers that an
        # uninterrupted run drew long before. The state is restored right before the first step.
        self._random_state: Mapping[str, Any] | None = None
        self._has_warned_of_nan = False
        self._close_later()

    def batches_per_epoch(self) -> int | None:
        """Return the batches of one pass over the training data; None if unknown.

        With several workers, it is the longest pass of any worker.
        """
        return _agree_on_epoch(self._context.distributed, self._own_batches_per_epoch)

    def _own_batches_per_epoch(self) -> int | None:
        if self._training is None:
            # A separate session, because the checkpoint for the trial's session is not known yet.
            with tf1.Session(graph=self._graph.graph, config=self._context.session_config) as probe:
                self._feed.begin(probe)
                self._feed.close()
        return self._feed.batches_per_epoch

    def run(self, clock: Clock) -> None:
        """Train inside one session until the clock stops it."""
        with self._graph.graph.as_default():
            training = self._open_session()
            with preserve_random_state():
                self._evaluation.prepare(training)
            if self._random_state is not None:
                restore_random_state(self._random_state)
                self._random_state = None
            while self._train_unit(training, clock):
                pass
            # Hooks may run the loss once more at their end, which consumes a batch.
            self._feed.start_over()
            training.hooked.end()
            for listener in self._listeners:
                listener.end(training.session, training.global_step())

    def validate(self) -> ValidationResult:
        """Evaluate the model. Metrics have the names from the ``model_fn``.

        Each worker evaluates its part of the data. The result is over all data, and is the same on
        all workers.
        """
        with self._graph.graph.as_default(), preserve_random_state():
            training = self._open_session()
            training.copy_chief_averages()
            values, num_records = self._evaluation.run(training)
            if self._is_chief:
                self._exporters.run(
                    training,
                    values,
                    save=lambda folder: self._own_files().snapshot(
                        training.session, folder, training.global_step()
                    )(),
                    is_final=self._is_at_end(),
                )
        return ValidationResult(scalar_metrics(values), num_records)

    def save(self, directory: Path) -> None:
        """Write variables, data position, random states, exported models and the hooks' files.

        RunHooks are called before the commit, so files that they add become part of the checkpoint.
        Workers other than the chief write their data position, their random states, and variables
        that differ from the chief's.
        """
        with self._graph.graph.as_default(), preserve_random_state():
            training = self._open_session()
            random_state = capture_random_state()
            step = training.global_step()
            for listener in self._listeners:
                listener.before_save(training.session, step)
            if self._is_chief:
                self._copy_model(training, directory)()
            else:
                self._own_files().write_own(training.session, directory)
            self._write_position(training, directory, random_state)
            if self._is_chief:
                for hook in self._run_hooks:
                    hook.on_checkpoint_end(str(directory))
            stops = [listener.after_save(training.session, step) for listener in self._listeners]
        if any(stops):
            self._context.set_stop_requested(True)

    def snapshot(self, directory: Path) -> Callable[[], None]:
        """Copy the variables inside the session; see `detcore.trial.SupportsSnapshot`.

        Data position and random states are written immediately. So are all other files if a
        RunHook's ``on_checkpoint_end`` or a listener needs them, and on workers other than the
        chief.

        Returns:
            A function that writes variables, graph and exported models. It may be called after
            `close`.
        """
        if not self._is_chief or self._listeners or any(map(_reads_files, self._run_hooks)):
            self.save(directory)
            return lambda: None  # everything has been written
        with self._graph.graph.as_default(), preserve_random_state():
            training = self._open_session()
            random_state = capture_random_state()
            write_files = self._copy_model(training, directory)
            self._write_position(training, directory, random_state)
        return write_files

    def tensors(self) -> Sequence[TensorInfo]:
        """Return the variables in the files of the last `save` or `snapshot`, on the chief."""
        return self._own_files().tensors()

    def state_tensors(self) -> Mapping[str, np.ndarray]:
        """Return Python's and NumPy's generators and the training graph's variables by name."""
        with self._graph.graph.as_default():
            return name_state(self._graph.graph, self._open_session())

    def _write_position(
        self, training: TrainingSession, directory: Path, random_state: Mapping[str, Any]
    ) -> None:
        position = {
            "version": _VERSION,
            "steps": self._feed.position,
            "data": self._feed.save(directory),
        }
        _write_json(directory / _POSITION_FILE, position)
        _write_json(directory / _RANDOM_FILE, {"version": _VERSION, **random_state})

    def restore(self, directory: Path) -> None:
        """Read the files of `save`.

        With a different number of workers, training continues at the same batch with the same
        variables, and with the data in the order for the new number of workers.

        Raises:
            InvalidCheckpointError: If the files do not fit this model.
            DataError: If the files do not fit this data.
        """
        own_directory = self._context.worker_directory(directory)
        position = _read_json((own_directory or directory) / _POSITION_FILE)
        random_state = _read_json((own_directory or directory) / _RANDOM_FILE)
        with self._graph.graph.as_default():
            training = self._open_from(directory)
            if own_directory is None:
                self._continue_with_other_shards(training, position["steps"])
            else:
                self._own_files().read_own(training.session, own_directory)
                self._feed.restore(own_directory, position["data"])
            training.set_random_counter(position["steps"])
        self._random_state = random_state
        restore_random_state(random_state)

    def _continue_with_other_shards(self, training: TrainingSession, steps: int) -> None:
        if self._is_chief:
            _logger.info(
                "the checkpoint was saved by another number of workers. Training continues at "
                "batch %d, in the order for %d worker(s). State of single workers (sums of "
                "gradients, metrics of the training graph) is reset",
                steps,
                self._context.distributed.get_size(),
            )
        self._feed.go_to(steps)

    def start_from(self, directory: Path) -> None:
        """Load only the variables from a checkpoint of detcore or Determined.

        Variables with hyperparameters of optimizers keep this trial's values.

        Raises:
            InvalidCheckpointError: If the checkpoint does not fit this model.
        """
        with self._graph.graph.as_default():
            self._open_from(directory, keep=self._graph.hyperparameters)

    def close(self) -> None:
        """Notify the RunHooks, and close the sessions."""
        self._resources.close()

    def _train_unit(self, training: TrainingSession, clock: Clock) -> bool:
        """Train up to the clock's next boundary, and return whether to continue."""
        feed, ledger = self._feed, self._context.ledger
        rows: list[Sequence[float]] = []
        num_records, interrupted = 0, False

        def is_interrupted() -> bool:
            # All workers must read the clock equally often, once after each batch.
            nonlocal interrupted
            self._pass_on_stop(training)
            interrupted = clock.interrupt_requested
            return interrupted

        while feed.position < clock.next_boundary and not interrupted:
            count = feed.ready(clock.next_boundary - feed.position)
            values = training.train_steps(count, is_interrupted, digests=self._context.digests)
            rows += values.rows
            num_records += values.num_records
            if ledger is not None:
                feed.log(ledger, values.record_ids)
            if values.is_end_of_data:
                feed.ended()
                # The step that found the end may have incremented the counter.
                training.set_random_counter(feed.position)
        self._pass_on_stop(training)
        names = self._graph.metric_names
        self._warn_of_nan(rows)
        self._summaries.flush()
        return clock.boundary(
            feed.position,
            mean_metrics(names, rows),
            [dict(zip(names, map(float, row), strict=True)) for row in rows],
            n_records=num_records,
        )

    def _pass_on_stop(self, training: TrainingSession) -> None:
        """Convert a hook's stop request for the session into a stop request for the trial."""
        if training.hooked.should_stop:
            training.hooked.should_stop = False
            self._context.set_stop_requested(True)

    def _open_session(self) -> TrainingSession:
        """Return the training session. A new session has fresh or warm-started variables."""
        if self._training is None:
            with self._graph.graph.as_default():
                warm_start(self._estimator)
            self._start_session(None)
        assert self._training is not None
        return self._training

    def _open_from(self, directory: Path, keep: Sequence[Any] = ()) -> TrainingSession:
        for hook in self._run_hooks:
            hook.on_checkpoint_load(str(directory))
        if self._training is None:
            return self._start_session(directory, keep)
        # The graph is finalized, so its session stays.
        self._own_files().read(self._training.session, directory)
        self._training.session.run([variable.initializer for variable in keep])
        self._training.copy_chief_variables()
        return self._training

    def _start_session(self, directory: Path | None, keep: Sequence[Any] = ()) -> TrainingSession:
        """Open the training session with fresh variables, or restore all except `keep`."""
        graph, spec, random_ops = self._graph.graph, self._graph.spec, self._graph.random_ops
        uncovered_saver = None
        with graph.as_default():
            for listener in self._listeners:
                listener.begin()
            users_saver = own_saver(graph, spec.scaffold)
            if users_saver is not None:
                uncovered_saver = saver_of_uncovered(graph, users_saver)
            counter = None if random_ops is None else random_ops.counter
            local_saver = saver_of_local(graph, without=counter)
            worker_saver = None if self._is_chief else saver_of(self._graph.worker_variables, "own")
        hooks = [*self._hooks, *spec.training_hooks]
        if self._is_chief:
            hooks += spec.training_chief_hooks

        def make_files(saver: Any) -> None:
            self._files = ModelFiles(
                graph,
                saver,
                uncovered_saver,
                local_saver,
                worker_saver,
                session_config=self._context.session_config,
            )

        def restore_variables(session: Any) -> None:
            assert directory is not None
            self._own_files().read(session, directory)
            session.run([variable.initializer for variable in keep])

        training = TrainingSession(
            self._graph,
            hooks=hooks,
            session_config=self._context.session_config,
            restore=None if directory is None else restore_variables,
            make_files=make_files,
            on_summary=self._summaries.write_summary if self._is_chief else None,
            summary_steps=self._config.save_summary_steps or 0,
            distributed=self._context.distributed,
        )
        self._resources.callback(training.close)
        self._training = training
        if self._context.ledger is not None:
            self._feed.describe(self._context.ledger)
        return training

    def _copy_model(self, training: TrainingSession, directory: Path) -> Callable[[], None]:
        """Copy the variables. Return a function that writes variables, graph and exports."""
        self._serving.check(training)
        step = training.global_step()
        write_model = self._own_files().snapshot(training.session, directory, step)

        def write_files() -> None:
            write_model()
            self._serving.write(directory, model_prefix(directory, step))

        return write_files

    def _own_files(self) -> ModelFiles:
        assert self._files is not None  # created with the training session
        return self._files

    def _model_dir(self) -> str:
        """Return the directory for files of the user's code. In a run it outlives the process."""
        info = self._context.info
        if info is None:
            folder = tempfile.TemporaryDirectory(prefix="detcore-")
            return self._resources.enter_context(folder)
        path = Path(info.trial_dir) / "estimator"
        path.mkdir(parents=True, exist_ok=True)
        return str(path)

    def _is_at_end(self) -> bool:
        planned = self._context.planned_batches
        return planned is not None and self._feed.position >= planned

    def _warn_of_nan(self, rows: Sequence[Sequence[float]]) -> None:
        if self._has_warned_of_nan:
            return
        first = self._feed.position - len(rows) + 1
        for offset, row in enumerate(rows):
            if math.isnan(row[0]):
                self._has_warned_of_nan = True
                _logger.warning(
                    "the loss of batch %d is NaN; training continues; later NaNs are not logged",
                    first + offset,
                )
                return

    def _close_later(self) -> None:
        self._resources.callback(self._summaries.close)
        self._resources.callback(self._evaluation.close)
        # Called back in reverse order.
        for hook in reversed(self._run_hooks):
            self._resources.callback(hook.on_trial_close)


def _agree_on_epoch(
    distributed: DistributedContext, own_length: Callable[[], int | None]
) -> int | None:
    """Return the batches of an epoch, the same on all workers.

    This is the longest pass of any worker over its shard. After this many steps, every record has
    been trained on. Workers with a shorter pass begin their next pass earlier.

    Args:
        distributed: The workers. All workers call this together.
        own_length: Returns the batches of this worker's pass, or None if unknown.

    Returns:
        The number of batches, or None if a worker does not know its number.

    Raises:
        DataError: On all workers, if a worker has no data.
    """
    if distributed.get_size() == 1:
        return own_length()
    length: int | None = None
    problem: DataError | None = None
    try:
        length = own_length()
    except DataError as error:
        problem = error
    answers = distributed.allgather((length, None if problem is None else str(problem)))
    empty = [rank for rank, (_, message) in enumerate(answers) if message is not None]
    if empty:
        raise DataError(
            f"{len(empty)} of {len(answers)} workers cannot train. Rank {empty[0]} reports: "
            f"{answers[empty[0]][1]}\n"
            "Workers read records in turns, so the data needs at least one batch for each worker.\n"
            "Train with fewer workers, or with a smaller batch."
        ) from problem
    lengths = [number for number, _ in answers if number is not None]
    if len(lengths) < len(answers):
        return None
    if distributed.get_rank() == 0 and len(set(lengths)) > 1:
        _logger.info(
            "the workers' shards have %d to %d batches: an epoch has %d, and workers with fewer "
            "begin their next pass earlier",
            min(lengths),
            max(lengths),
            max(lengths),
        )
    return max(lengths)


def _reads_files(hook: RunHook) -> bool:
    """Whether a hook's class, or the hook itself, overrides `RunHook.on_checkpoint_end`."""
    method = hook.on_checkpoint_end
    return getattr(method, "__func__", method) is not RunHook.on_checkpoint_end


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["version"] != _VERSION:
            raise ValueError(f"version {value['version']!r}; this plugin reads {_VERSION}")
    except FileNotFoundError as error:
        raise InvalidCheckpointError(
            f"the checkpoint has no {path.name}. It was not written by an EstimatorTrial of "
            "detcore, so training cannot resume exactly from it.\n"
            "To start a new trial with its variables, set searcher.source_checkpoint_uuid in the "
            "experiment file."
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(f"{path} cannot be used: {error}") from error
    return value  # type: ignore[no-any-return]
