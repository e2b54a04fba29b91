"""Run the model's ``test_step`` over a whole validation, in one graph execution."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from detcore.errors import InvalidModelError
from detcore_keras._data import batch_records
from detcore_keras._fast_loop import flat_tensors, without_optionals
from detcore_keras._keras import KERAS_MAJOR, tf

__all__ = ["TestSteps", "Tested"]


@dataclasses.dataclass(frozen=True, slots=True)
class Tested:
    """Result of a pass over data.

    Attributes:
        outputs: Outputs of the last step; empty without a batch.
        num_batches: Number of batches.
        n_records: Number of records in them.
    """

    outputs: Mapping[str, Any]
    num_batches: int
    n_records: int


class TestSteps:
    """The test step of a model, traced once for its data.

    Args:
        model: The compiled model.
        element_spec: Nested ``tf.TypeSpec`` of one batch.
    """

    __test__ = False  # tells pytest that this is not a test class

    def __init__(self, model: Any, element_spec: Any) -> None:
        self._model = model
        self._outputs: Mapping[str, Any] = {}
        if model.run_eagerly:
            self._step: Any = self._test
            return
        test = self._test
        if KERAS_MAJOR == 3:
            test = tf.autograph.experimental.do_not_convert(test)
        jit = getattr(model, "jit_compile", None)
        self._step = tf.function(test, reduce_retracing=True, jit_compile=jit)
        self._outputs = self._step.get_concrete_function(element_spec).structured_outputs
        self._all = tf.function(self._loop, autograph=False, reduce_retracing=True)

    @property
    def can_run_all(self) -> bool:
        """Whether a graph can loop over the step: each of its outputs has one fixed shape."""
        return bool(self._outputs) and all(
            spec.shape.is_fully_defined() for spec in self._outputs.values()
        )

    def run_all(self, iterator: Any, limit: int) -> Tested:
        """Test on the rest of an iterator, at most `limit` batches."""
        count, records, outputs = self._all(iterator, tf.constant(limit, tf.int64))
        return Tested(outputs if int(count) else {}, int(count), int(records))

    def run_each(self, iterator: Any, limit: int, callbacks: Sequence[Any]) -> Tested:
        """Test the same batches one at a time, with the callbacks' batch-level test hooks."""
        outputs: Mapping[str, Any] = {}
        count = records = 0
        for batch in iterator:
            for callback in callbacks:
                callback.on_test_batch_begin(count, {})
            outputs = self._step(batch)
            records += int(batch_records(batch))
            for callback in callbacks:
                callback.on_test_batch_end(
                    count, {name: value.numpy() for name, value in outputs.items()}
                )
            count += 1
            if count >= limit:
                break
        return Tested(outputs, count, records)

    def _test(self, batch: Any) -> Any:
        outputs = self._model.test_step(without_optionals(batch))
        if not isinstance(outputs, Mapping):
            raise InvalidModelError(
                f"{type(self._model).__name__}.test_step returned {type(outputs).__name__}, not a "
                "dict.\nIts metrics are reported by name.\n"
                "Return a dict such as {'loss': loss}, or what self.compute_metrics(...) returns."
            )
        outputs = flat_tensors(outputs)
        counter = getattr(self._model, "_test_counter", None)
        if KERAS_MAJOR == 2 and counter is not None:
            with tf.control_dependencies(tf.nest.flatten(outputs)):
                counter.assign_add(1)
        return outputs

    def _loop(self, iterator: Any, limit: Any) -> Any:
        zeros = {name: tf.zeros(spec.shape, spec.dtype) for name, spec in self._outputs.items()}

        def going(count: Any, records: Any, batch: Any, outputs: Any) -> Any:
            return tf.logical_and(count < limit, batch.has_value())

        def body(count: Any, records: Any, batch: Any, outputs: Any) -> Any:
            value = batch.get_value()
            outputs = self._step(value)
            records += tf.cast(batch_records(value), tf.int64)
            following = tf.cond(count + 1 < limit, iterator.get_next_as_optional, lambda: batch)
            return count + 1, records, following, outputs

        zero = tf.constant(0, tf.int64)
        first = iterator.get_next_as_optional()
        count, records, _, outputs = tf.while_loop(going, body, (zero, zero, first, zeros))
        return count, records, outputs
