"""Validate a model with one ``model.evaluate`` over data that is prepared once."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from detcore.data import shard_range
from detcore.errors import DataError
from detcore_keras.backends.backend import EvaluationOutputs, EvaluationSteps
from detcore_keras.callbacks.callback_checks import overrides_hook
from detcore_keras.data.batches import as_arrays, batch_spec, batch_tensors, list_leaves, pack_as
from detcore_keras.data.data_settings import DataSettings
from detcore_keras.data.sequence_feed import as_sequence, make_loader
from detcore_keras.data.source_feed import check_source, read_first
from detcore_keras.distributed.metric_merging import merge_results
from detcore_keras.frameworks import backend, is_tf_dataset, keras
from detcore_keras.state.random_generators import preserved_rng

_logger = logging.getLogger("detcore.keras")

_NO_LIMIT = 1 << 62
_HOOKS = ("on_test_batch_begin", "on_test_batch_end")


class Evaluation:
    """The validation data, and the evaluation of a model on it.

    Args:
        data: Result of ``build_validation_data_loader``.
        settings: Settings for reading the data. Each worker evaluates its share of the batches or
            items, or the shard of a dataset from ``wrap_dataset``.
        test_mode: Whether to evaluate only one batch.
    """

    def __init__(self, data: Any, settings: DataSettings, *, test_mode: bool) -> None:
        self._distributed = distributed = settings.distributed
        self._passes = 0
        self._loader: Any = None
        self._dataset: Any = None
        # A pass over this worker's batches of arrays or items of a Sequence.
        self._batches: Callable[[], Generator[object, None, None]] | None = None
        self._is_sharded = distributed.size > 1 and is_tf_dataset(data)
        self._steps = 1 if test_mode else settings.options.validation_steps
        self._test_steps: EvaluationSteps | None = None
        sequence = as_sequence(data)
        if is_tf_dataset(data):
            from detcore_keras.backends.graph_batches import without_none_specs
            from detcore_keras.data.dataset_feed import check_dataset

            check_dataset(data, settings.wrapped, "validation", may_be_empty=distributed.size > 1)
            self._dataset = data
            self._spec = without_none_specs(data.element_spec)
        elif check_source(data, "validation", num_workers=distributed.size):
            self._batches = self._batches_of_source(data)
        elif sequence is not None:
            self._loader = make_loader(data, sequence, settings)
            self._batches = self._items_of(sequence.sequence)
        else:
            arrays = as_arrays(data, "validation")
            size = settings.options.validation_batch_size or settings.batch_size
            self._batches = self._batches_of(arrays, size)

    def evaluate_model(
        self, model: Any, callbacks: Sequence[Any] = ()
    ) -> tuple[dict[str, float], int]:
        """Return the model's metrics under Keras's names, and the number of records.

        Both are over all workers.

        Args:
            model: The compiled model; the same on all workers.
            callbacks: The user's callbacks, whose batch-level test hooks are called.

        Raises:
            DataError: If no worker has data.
            InvalidModelError: If a metric cannot be combined from its parts on the workers.
        """
        if self._is_sharded and (reasons := _find_batch_means(model)):
            self._is_sharded = False
            _logger.warning(
                "the validation dataset is split between %d workers, so its batches differ from "
                "those of one worker. %s depend on the batches, so their values also differ.\n"
                "To get the same values as one worker, return arrays or a Sequence as validation "
                "data.",
                self._distributed.size,
                " and ".join(reasons),
            )
        tested = self._run_evaluate(
            model, [c for c in callbacks if any(overrides_hook(c, hook) for hook in _HOOKS)]
        )
        if self._loader is not None:
            self._loader.end_epoch()
        self._passes += 1
        if self._distributed.size > 1:
            return merge_results(model, tested, self._distributed)
        if not tested.num_batches:
            raise DataError(
                "the validation data is empty: it has 0 batches.\n"
                "Check the filters in build_validation_data_loader, and drop_remainder."
            )
        numbers = {
            name: float(value) for name, value in tested.outputs.items() if np.ndim(value) == 0
        }
        return numbers, tested.n_records

    def _shard_indices(self, count: int) -> range:
        """Return the indices of this worker's batches or items."""
        rank, size = self._distributed.rank, self._distributed.size
        return shard_range(count, rank=rank, world_size=size)

    def _run_evaluate(self, model: Any, callbacks: Sequence[Any]) -> EvaluationOutputs:
        if self._test_steps is None:
            self._test_steps = backend.make_test_steps(model, self._spec)
        steps = self._test_steps
        tested: EvaluationOutputs | None = None

        def run_test() -> Mapping[str, Any]:
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

        logs = backend.evaluate(model, run_test)
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
        """Return a function that yields this worker's items, whose shapes may differ."""
        indices = self._shard_indices(len(sequence))
        with preserved_rng():
            self._spec = batch_spec(batch_tensors(self._loader.read_item(0), sequence))

        def read_items() -> Generator[object, None, None]:
            with contextlib.closing(self._loader.read_items(indices)) as loaded:
                for item in loaded:
                    yield batch_tensors(item, sequence)

        return read_items

    def _batches_of_source(self, source: Any) -> Callable[[], Generator[object, None, None]]:
        """Return a function that yields the batches of a data source, each time from its start."""
        start = source.position()
        with preserved_rng():
            self._spec = batch_spec(batch_tensors(read_first(source), source))

        def read_batches() -> Generator[object, None, None]:
            source.seek(start)
            for batch in source:
                yield batch_tensors(batch, source)

        return read_batches

    def _batches_of(
        self, arrays: Any, batch_size: int
    ) -> Callable[[], Generator[object, None, None]]:
        """Return a function that yields this worker's batches of arrays.

        Workers share whole batches, because losses with masks, and losses of models with several
        outputs, are means over a batch.
        """
        parts = list_leaves(arrays)

        def cut_batch(index: int) -> Any:
            rows = slice(index * batch_size, (index + 1) * batch_size)
            return pack_as(arrays, [backend.as_tensor(part[rows]) for part in parts])

        indices = self._shard_indices(-(-len(parts[0]) // batch_size))
        self._spec = batch_spec(cut_batch(0))
        return lambda: (cut_batch(index) for index in indices)


def _find_batch_means(model: Any) -> list[str]:
    """Return descriptions of the losses that depend on which records share a batch.

    With a mask, a loss is the mean over the batch's unmasked values. Keras 3 (3.15) counts each
    batch once in the losses of single outputs, regardless of its size.
    """
    reasons = []
    if getattr(getattr(model, "_compile_loss", None), "metrics", None):
        reasons.append("the losses of its outputs")
    if any(
        isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False)
        for layer in model._flatten_layers()
    ):
        reasons.append("losses with masks")
    return reasons
