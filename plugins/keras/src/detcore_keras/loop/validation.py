"""Validate a model: one ``model.evaluate`` over data that is prepared once."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from detcore.data import shard_range
from detcore.errors import DataError
from detcore_keras.callbacks.callback_checks import overrides
from detcore_keras.data.batches import (
    as_arrays,
    batch_spec,
    batch_tensors,
    floats_as_keras,
    leaves,
    packed_as,
    without_none_specs,
)
from detcore_keras.data.data_settings import DataSettings
from detcore_keras.data.dataset_feed import check_dataset
from detcore_keras.data.sequence_feed import as_sequence, make_loader
from detcore_keras.distributed.metric_merging import Tested, merge_results
from detcore_keras.frameworks import KERAS_MAJOR, keras, tf
from detcore_keras.loop.endless_fit import replaced_function, stand_in
from detcore_keras.loop.steps import TestSteps
from detcore_keras.state.random_generators import preserved_rng

_logger = logging.getLogger("detcore.keras")

_NO_LIMIT = 1 << 62
_HOOKS = ("on_test_batch_begin", "on_test_batch_end")


class Evaluation:
    """The validation data, and the evaluation of a model on it.

    Args:
        data: Result of ``build_validation_data_loader``.
        settings: How to read it. Each worker evaluates its share of the batches or items, or the
            shard of a dataset from ``wrap_dataset``.
        test_mode: Whether to evaluate only one batch.
    """

    def __init__(self, data: Any, settings: DataSettings, *, test_mode: bool) -> None:
        self._distributed = distributed = settings.distributed
        self._passes = 0
        self._loader: Any = None
        self._dataset: Any = None
        # A pass over this worker's batches, if they are no dataset's.
        self._batches: Callable[[], Generator[object, None, None]] | None = None
        self._is_sharded = distributed.size > 1 and isinstance(data, tf.data.Dataset)
        self._steps: int | None = 1 if test_mode else None
        self._test_steps: TestSteps | None = None
        sequence = as_sequence(data)
        if isinstance(data, tf.data.Dataset):
            check_dataset(data, settings.wrapped, "validation", may_be_empty=distributed.size > 1)
            self._dataset = data
            self._spec = without_none_specs(data.element_spec)
            self._steps = self._steps or settings.options.validation_steps
        elif sequence is not None:
            self._loader = make_loader(data, sequence, settings)
            self._batches = self._items_of(sequence.sequence)
        else:
            arrays = as_arrays(data, "validation")
            self._batches = self._batches_of(arrays, settings.batch_size)

    def run(self, model: Any, callbacks: Sequence[Any] = ()) -> tuple[dict[str, float], int]:
        """Return the model's metrics under Keras's own names, and their number of records.

        Both are over all workers.

        Args:
            model: The compiled model; the same on all workers.
            callbacks: The user's callbacks; batch-level test hooks are called.

        Raises:
            DataError: If there is no data on any worker.
            InvalidModelError: If a metric cannot be combined from its parts on the workers.
        """
        if self._is_sharded and (reasons := _find_batch_means(model)):
            self._is_sharded = False
            _logger.warning(
                "the validation dataset is split between %d workers, so its batches are not those "
                "of one worker; %s weigh each batch by itself, and differ from the values of one "
                "worker.\nReturn arrays or a Sequence as validation data for the same values.",
                self._distributed.size,
                " and ".join(reasons),
            )
        tested = self._evaluate(
            model, [c for c in callbacks if any(overrides(c, hook) for hook in _HOOKS)]
        )
        if self._loader is not None:
            self._loader.end_epoch()
        self._passes += 1
        if self._distributed.size > 1:
            return merge_results(model, tested, self._distributed)
        if not tested.num_batches:
            raise DataError(
                "the validation data is empty: it has 0 batches.\n"
                "Look at what build_validation_data_loader filters out, and at drop_remainder."
            )
        numbers = {
            name: float(value) for name, value in tested.outputs.items() if np.ndim(value) == 0
        }
        return numbers, tested.n_records

    def _share(self, count: int) -> range:
        """Return the indices of this worker's batches or items."""
        rank, size = self._distributed.rank, self._distributed.size
        return shard_range(count, rank=rank, world_size=size)

    def _evaluate(self, model: Any, callbacks: Sequence[Any]) -> Tested:
        if self._test_steps is None:
            self._test_steps = TestSteps(model, self._spec)
        steps = self._test_steps
        tested: Tested | None = None

        def test() -> Mapping[str, Any]:
            nonlocal tested
            limit = self._steps or _NO_LIMIT
            if self._batches is not None:
                with contextlib.closing(self._batches()) as batches:
                    tested = steps.run_each(batches, limit, callbacks)
            elif steps.can_run_all and not callbacks:
                tested = steps.run_all(iter(self._dataset), limit)
            else:
                tested = steps.run_each(self._dataset, limit, callbacks)
            return tested.outputs

        with replaced_function(model, "test", test):
            logs = model.evaluate(stand_in(), steps=1, verbose=0, return_dict=True)
        assert tested is not None  # Keras called the function
        return dataclasses.replace(tested, outputs=logs)

    def state_dict(self) -> dict[str, Any]:
        """Return JSON values for `load_state`."""
        loader = None if self._loader is None else self._loader.state_dict()
        return {"passes": self._passes, "loader": loader}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Repeat the effects of earlier validations on data that reshuffles after each pass."""
        if self._loader is not None and state["loader"] is not None:
            self._loader.load_state(state["loader"])
        elif self._dataset is not None:
            for _ in range(state["passes"] - self._passes):
                iter(self._dataset)
        self._passes = state["passes"]

    def close(self) -> None:
        """Stop the workers."""
        if self._loader is not None:
            self._loader.close()

    def _items_of(self, sequence: Any) -> Callable[[], Generator[object, None, None]]:
        """Return a function that yields this worker's items; their shapes may differ."""
        mine = self._share(len(sequence))
        with preserved_rng():
            self._spec = batch_spec(batch_tensors(self._loader.read_item(0), sequence))

        def items() -> Generator[object, None, None]:
            with contextlib.closing(self._loader.batches(mine)) as loaded:
                for item in loaded:
                    yield batch_tensors(item, sequence)

        return items

    def _batches_of(
        self, arrays: Any, batch_size: int
    ) -> Callable[[], Generator[object, None, None]]:
        """Return a function that yields this worker's batches of arrays.

        Whole batches, because losses with masks, and those of several outputs, are means of each
        batch.
        """
        parts = leaves(arrays)

        def cut(index: int) -> Any:
            rows = slice(index * batch_size, (index + 1) * batch_size)
            return packed_as(arrays, [floats_as_keras(part[rows]) for part in parts])

        mine = self._share(-(-len(parts[0]) // batch_size))
        self._spec = batch_spec(cut(0))
        return lambda: (cut(index) for index in mine)


def _find_batch_means(model: Any) -> list[str]:
    """Return what in a model depends on which records share a batch.

    With a mask, a loss is the mean over the batch's unmasked values. Keras 3 (3.15) counts each
    batch once in the losses of single outputs, whatever its size.
    """
    found = []
    if KERAS_MAJOR == 3 and getattr(model._compile_loss, "metrics", None):
        found.append("the losses of its outputs")
    if any(
        isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False)
        for layer in model._flatten_layers()
    ):
        found.append("losses with masks")
    return found
