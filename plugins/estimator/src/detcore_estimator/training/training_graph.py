"""Build the training graph of a trial and run its session."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from detcore.errors import InvalidExperimentError
from detcore.trial import capture_random_state
from detcore_estimator.data.graph_feed import GraphFeed, check_dataset
from detcore_estimator.data.record_ids import count_records
from detcore_estimator.distributed.worker_variables import check_trainable, worker_variables
from detcore_estimator.graph.hooked_session import HookedSession
from detcore_estimator.graph.model_fn import call_input_fn, model_graph
from detcore_estimator.graph.random_ops import RandomOps, make_random_ops_resumable
from detcore_estimator.graph.scaffolds import build_saver, own_saver, scaffold_with_saver
from detcore_estimator.graph.variable_transfer import broadcast_variables
from detcore_estimator.specs.estimator_spec import ModeKeys, check_model_fn_spec
from detcore_estimator.tensorflow_versions import tf, tf1

if TYPE_CHECKING:
    from detcore.data import StepDigests
    from detcore.distributed import DistributedContext
    from detcore_estimator.estimator_context import EstimatorContext


_logger = logging.getLogger("detcore.estimator")
_NO_VALUES = (tf.resource, tf.variant)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepValues:
    """Results of consecutive training steps.

    Attributes:
        rows: Loss and scalar summaries of each step, in the order of `TrainingGraph.metric_names`.
        record_ids: Ids of the records of each step; empty without a data ledger.
        num_records: Records in the batches of these steps.
        is_end_of_data: Whether a step found that the dataset had ended.
    """

    rows: Sequence[Sequence[float]]
    record_ids: Sequence[Any]
    num_records: int
    is_end_of_data: bool


class TrainingGraph:
    """The graph of data, model and training step, built once per process.

    Args:
        estimator: The user's estimator.
        input_fn: The training input function.
        config: The run configuration.
        context: The trial's context.

    Attributes:
        worker_variables: Global variables whose values differ between workers.
        hyperparameters: Variables with settings of the optimizers, such as learning rates.

    Raises:
        DetcoreError: If the input function or the model function breaks a rule.
    """

    def __init__(
        self,
        estimator: Any,
        input_fn: Callable[..., Any],
        *,
        config: Any,
        context: EstimatorContext,
    ) -> None:
        with model_graph(config) as self.graph:
            self.global_step = tf1.train.get_global_step()
            dataset = call_input_fn(
                input_fn, mode=ModeKeys.TRAIN, params=estimator.params, config=config
            )
            check_dataset(
                dataset, context.wrapped_datasets, "training", is_managed=context.is_managed
            )
            self.feed = GraphFeed(dataset, with_ledger=context.ledger is not None)
            batch = (self.feed.features, self.feed.labels)
            context.gradients.wait_for(batch)
            self.spec = estimator.model_fn(*batch, ModeKeys.TRAIN, config)
            check_model_fn_spec(self.spec, ModeKeys.TRAIN)
            _check_optimizer(context)
            self._scalars = _scalar_summaries(self.graph)
            self.metric_names = ("loss", *self._scalars)
            self.random_ops: RandomOps | None = make_random_ops_resumable(
                self.graph,
                [self.spec.loss, self.spec.train_op, *self._scalars.values()],
                seed_offset=context.distributed.get_rank(),
            )
            step = [self.spec.train_op]
            if self.random_ops is not None:
                step.append(self.random_ops.increment)
            self.fetches = {
                "step": tf.group(*step),
                "row": [self.spec.loss, *self._scalars.values()],
                "num_records": count_records(batch),
            }
            if self.feed.record_ids is not None:
                self.fetches["ids"] = self.feed.record_ids
            if not any(s.op.name == "loss" for s in self._list_summaries()):
                tf1.summary.scalar("loss", self.spec.loss)
            self.summary = tf1.summary.merge_all()
        self.worker_variables = self._worker_variables(context, batch)
        self.hyperparameters = _find_hyperparameters(context.wrapped_optimizers, self.graph)

    def warn_of_unsaved_random_state(self) -> None:
        """Log a warning about random operations whose state cannot be saved."""
        if self.random_ops is not None and self.random_ops.unsupported:
            _logger.warning(
                "the state of these random operations cannot be saved, so a resumed run draws "
                "other numbers than an uninterrupted run: %s. Random operations outside of loops, "
                "conditions and functions are resumed exactly",
                ", ".join(self.random_ops.unsupported),
            )

    def _worker_variables(self, context: EstimatorContext, batch: Any) -> list[Any]:
        if context.distributed.get_size() == 1 or not context.is_managed:
            return []
        random_reads = [] if self.random_ops is None else [self.random_ops.reading.op]
        variables = worker_variables(
            self.graph, batch=batch, drawn=random_reads, step=self.fetches["step"]
        )
        check_trainable(variables, self.graph)
        return variables

    def _list_summaries(self) -> list[Any]:
        return list(self.graph.get_collection(tf1.GraphKeys.SUMMARIES))


class TrainingSession:
    """The session of a `TrainingGraph`.

    Args:
        training: The graph.
        hooks: Session hooks, in calling order.
        session_config: ``ConfigProto``.
        restore: Called with the session instead of initializing variables.
        on_summary: Called with the global step and the serialized summaries, every
            `summary_steps` steps.
        summary_steps: Steps between two summaries; 0 = never.
        make_files: Called with the graph's saver before the graph is finalized. It may add to the
            graph.
        distributed: The workers. After all hooks have received the new session, all workers get
            the chief's variable values.
    """

    def __init__(
        self,
        training: TrainingGraph,
        *,
        hooks: Sequence[Any],
        session_config: Any,
        restore: Callable[[Any], None] | None = None,
        on_summary: Callable[[int, bytes], None] | None = None,
        summary_steps: int = 0,
        make_files: Callable[[Any], None],
        distributed: DistributedContext,
    ) -> None:
        self._training = training
        self._on_summary = on_summary
        self._summary_steps = summary_steps
        self._distributed = distributed
        scaffold = scaffold_with_saver(training.spec.scaffold)
        self.has_own_saver = own_saver(training.graph, training.spec.scaffold) is not None
        self.hooked = HookedSession(
            training.graph,
            scaffold=scaffold,
            hooks=hooks,
            config=session_config,
            restore=restore,
            complete=lambda: make_files(build_saver(training.graph, scaffold)),
        )
        self.session = self.hooked.session
        self.saver = scaffold.saver
        self.copy_chief_variables()
        training.feed.begin(self.session)
        self.set_random_counter(0)
        self._get_step = self.session.make_callable(training.global_step)
        self._step = self.hooked.make_step(training.fetches)
        self._summary_step = self.hooked.make_step(
            {**training.fetches, "summary": training.summary}
        )

    def copy_chief_variables(self) -> None:
        """Copy the chief's variables to all workers. All workers call it together."""
        variables = self._training.graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
        broadcast_variables(self.session, variables, self._distributed)

    def copy_chief_averages(self) -> None:
        """Copy the chief's averages and similar variables to all workers. All workers call it."""
        broadcast_variables(self.session, self._training.worker_variables, self._distributed)

    def close(self) -> None:
        """Release the data, then close the session."""
        try:
            self._training.feed.close()
        finally:
            self.hooked.close()

    def set_random_counter(self, steps: int) -> None:
        """Make random operations continue after this number of steps."""
        if self._training.random_ops is not None:
            self._training.random_ops.set_counter(self.session, steps)

    def global_step(self) -> int:
        """Return the value of the graph's global step."""
        return int(self._get_step())

    def train_steps(
        self,
        count: int,
        is_interrupted: Callable[[], bool],
        *,
        digests: StepDigests | None = None,
    ) -> StepValues:
        """Run training steps.

        Args:
            count: Maximum number of steps.
            is_interrupted: Called after each step, returns whether to stop.
            digests: Log of step digests, notified before each step. Batches exist only in the
                graph.
        """
        rows: list[Sequence[float]] = []
        ids: list[Any] = []
        feed, step, period = self._training.feed, self._step, self._summary_steps
        first = feed.position + 1
        num_records, is_end = 0, False
        try:
            for number in range(first, first + count):
                if digests is not None:
                    digests.log(number)
                values = step() if not period or number % period else self._step_with_summary()
                rows.append(values["row"])
                num_records += int(values["num_records"])
                if "ids" in values:
                    ids.append(values["ids"])
                if is_interrupted():
                    break
        except tf.errors.OutOfRangeError:
            is_end = True
        feed.advance(len(rows))
        return StepValues(rows=rows, record_ids=ids, num_records=num_records, is_end_of_data=is_end)

    def _step_with_summary(self) -> dict[str, Any]:
        values: dict[str, Any] = self._summary_step()
        if self._on_summary is not None:
            self._on_summary(self.global_step(), values["summary"])
        return values


def name_state(graph: Any, training: TrainingSession) -> dict[str, npt.NDArray[Any]]:
    """Return Python's and NumPy's generators, and the graph's global variables.

    Args:
        graph: The training graph, which stays unchanged.
        training: The session of the graph.
    """
    arrays = {
        f"random.{name}": np.frombuffer(json.dumps(state).encode(), np.uint8)
        for name, state in capture_random_state().items()
    }
    trainable = {id(item) for item in graph.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)}
    variables = {
        variable.op.name: variable
        for variable in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
        if variable.dtype.base_dtype not in _NO_VALUES
    }
    values = training.session.run(variables)
    # The stable sort keeps the order of creation, which is the order of the computation.
    for name in sorted(variables, key=lambda name: id(variables[name]) not in trainable):
        group = "model" if id(variables[name]) in trainable else "optimizer"
        arrays[f"{group}.{name}"] = _as_numbers(values[name])
    return arrays


def _as_numbers(value: Any) -> npt.NDArray[Any]:
    array = np.asarray(value)
    return (
        np.frombuffer(repr(array.tolist()).encode(), np.uint8) if array.dtype.hasobject else array
    )


def mean_metrics(names: Sequence[str], rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the mean of each metric over the steps."""
    count = len(rows)
    return {
        name: math.fsum(float(row[index]) for row in rows) / count
        for index, name in enumerate(names)
    }


def _find_hyperparameters(optimizers: Sequence[Any], graph: Any) -> list[Any]:
    """Return the variables of a graph that contain optimizers' settings, not their state.

    Keras 2's legacy optimizers have a dictionary of settings. Other optimizers have settings as
    attributes, next to counters. Counters are also in ``optimizer.variables()``, but settings are
    not.
    """
    hyperparameters: list[Any] = []
    for optimizer in optimizers:
        attributes = getattr(optimizer, "__dict__", {})
        values = [*attributes.values(), *attributes.get("_hyper", {}).values()]
        variables = [v for v in values if isinstance(v, tf.Variable) and v.graph is graph]
        if variables:
            state = {variable.name for variable in optimizer.variables()}
            hyperparameters += [variable for variable in variables if variable.name not in state]
    return hyperparameters


def _check_optimizer(context: EstimatorContext) -> None:
    if context.is_managed and not context.wrapped_optimizers:
        raise InvalidExperimentError(
            "the model was built for training, but no optimizer was wrapped.\n"
            "Wrapped optimizers average their gradients over the workers of a trial. Otherwise, "
            "each worker would train a different model.\n"
            "Wrap it right after it is created: optimizer = self.context.wrap_optimizer(optimizer)"
        )


def _scalar_summaries(graph: Any) -> dict[str, Any]:
    """Return the tensors of the user's scalar summaries, by tag."""
    tensors: dict[str, Any] = {}
    for summary in graph.get_collection(tf1.GraphKeys.SUMMARIES):
        if summary.op.type != "ScalarSummary":
            continue
        tags, values = summary.op.inputs
        tag = tf.get_static_value(tags)
        if tag is None or tag.ndim or values.shape.rank not in (None, 0):
            continue
        name = tag.item().decode()
        # The loss is always reported under this name.
        if name != "loss":
            tensors[name] = values
    return tensors
