"""Define the trial context of an `EstimatorTrial`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from detcore import TrialContext
from detcore.data import CachingContext
from detcore.errors import (
    CheckFailedError,
    InvalidExperimentError,
    describe,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from detcore.data import CacheKey
    from detcore.metrics import MetricReducer
    from detcore.trial import TrialSetup
    from detcore_estimator.distributed.gradient_exchange import GradientExchange
    from detcore_estimator.distributed.metric_reducers import Reducers


class EstimatorContext(TrialContext):
    """The context for training an Estimator, in a trial or in a native script.

    Attributes:
        distributed: The `DistributedContext` of the workers.
        experimental: The `EstimatorExperimentalContext`.
        session_config: The ``ConfigProto`` of this process's sessions; None until it is known.
        wrapped_datasets: Results of `wrap_dataset`, and cached datasets.
        wrapped_optimizers: Results of `wrap_optimizer`, and of functions that it returned.
    """

    def __init__(self, setup: TrialSetup) -> None:
        super().__init__(setup)
        self.experimental = EstimatorExperimentalContext(self)
        self.session_config: Any = None
        self.wrapped_datasets: list[Any] = []
        self.wrapped_optimizers: list[Any] = []
        self._reducers: Reducers | None = None
        self._gradients: GradientExchange | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the context itself, so that copied reducers share it."""
        return self

    @property
    def reducers(self) -> Reducers:
        """The metrics that `make_metric` created."""
        if self._reducers is None:
            from detcore_estimator.distributed.metric_reducers import Reducers

            self._reducers = Reducers(self.distributed)
        return self._reducers

    @property
    def gradients(self) -> GradientExchange:
        """The exchange of gradients between workers and batches."""
        if self._gradients is None:
            from detcore_estimator.distributed.gradient_exchange import GradientExchange

            size = self.distributed.get_size() if self.is_managed else 1
            self._gradients = GradientExchange(size, self.setup)
        return self._gradients

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Register the optimizer. Call it right after the optimizer is created.

        With several workers, the optimizer then averages gradients over the workers. With
        ``optimizations.aggregation_frequency``, it sums them over batches, also on one worker.

        Args:
            optimizer: An optimizer object of ``tf.compat.v1.train`` or of Keras. For a premade
                Estimator, also a function that returns an optimizer. If gradients are neither
                averaged nor summed, also a name, or None for an Estimator without an optimizer,
                such as boosted trees.

        Returns:
            The optimizer to use instead.

        Raises:
            InvalidExperimentError: If `optimizer` is not an optimizer.
            CheckFailedError: If it is a name or None, and gradients must be averaged over workers
                or summed over batches.
        """
        if not self.is_managed:
            return optimizer
        if optimizer is not None and not _is_optimizer(optimizer):
            raise InvalidExperimentError(
                f"context.wrap_optimizer received {describe(optimizer)}, not an optimizer.\n"
                "Pass the object, such as tf.compat.v1.train.AdamOptimizer(1e-3)."
            )
        from detcore_estimator.distributed.exchanging_optimizers import (
            exchange_gradients,
            is_self_ordering,
        )

        gradients = self.gradients
        if (optimizer is None or isinstance(optimizer, str)) and not gradients.is_plain:
            raise CheckFailedError(
                f"context.wrap_optimizer received {describe(optimizer)}, with "
                f"{gradients.num_workers} worker(s) and optimizations.aggregation_frequency "
                f"{gradients.frequency}.\n"
                "Only an optimizer object can average or sum gradients.\n"
                "Pass the object, such as tf.compat.v1.train.AdamOptimizer(1e-3), or set "
                "resources.slots_per_trial: 1 and optimizations.aggregation_frequency: 1."
            )
        if optimizer is not None and not (gradients.is_plain and is_self_ordering(optimizer)):
            optimizer = exchange_gradients(optimizer, gradients)
        self._register_optimizer(optimizer)
        if callable(optimizer) and not hasattr(optimizer, "apply_gradients"):
            return self._register_made(optimizer)
        return optimizer

    def _register_optimizer(self, optimizer: Any) -> None:
        if not any(optimizer is wrapped for wrapped in self.wrapped_optimizers):
            self.wrapped_optimizers.append(optimizer)

    def _register_made(self, make: Callable[[], Any]) -> Callable[[], Any]:
        """Return a function that also registers the optimizers it creates."""

        @functools.wraps(make)
        def make_registered() -> Any:
            optimizer = make()
            self._register_optimizer(optimizer)
            return optimizer

        return make_registered

    def wrap_dataset(self, dataset: Any, shard_dataset: bool = True) -> Any:
        """Shard a ``tf.data.Dataset`` between the workers, and mark it as ready for training.

        Call it in the input function right after the dataset is created, before shuffling and
        batching, so that sharding drops records early. Every dataset needs a separate call.

        Args:
            dataset: The dataset. Other objects are returned unchanged.
            shard_dataset: False if the trial gives each worker different data.

        Returns:
            The dataset to use instead.

        Raises:
            CheckFailedError: If the trial's training dataset is cached.
        """
        if not self.is_managed:
            return dataset
        from detcore_estimator.tensorflow_versions import tf

        if not isinstance(dataset, tf.data.Dataset):
            return dataset
        if self.experimental.is_caching_training_data:
            raise CheckFailedError(
                "context.wrap_dataset and context.experimental.cache_train_dataset were both used "
                "in this trial.\n"
                "A cached dataset is already sharded.\n"
                "Use only one of the two. To cache validation data, use cache_validation_dataset."
            )
        size = self.distributed.get_size()
        if shard_dataset and size > 1:
            dataset = dataset.shard(size, self.distributed.get_rank())
        self.wrapped_datasets.append(dataset)
        return dataset

    def make_metric(
        self,
        metric: Any,
        reducer: Callable[[list[Any]], Any] | MetricReducer,
        numpy_dtype: Any,
    ) -> tuple[Any, Any]:
        """Return a validation metric that Python code reduces, exact with any number of workers.

        Call it in ``model_fn``, and put the result into ``eval_metric_ops``. A model may have
        several such metrics. Each evaluation starts with a fresh copy of `reducer`, on which
        ``reset()`` is called if it has that method. The original object is not used.

        Args:
            metric: A tensor, or a list, tuple or dict of tensors. Other values become constants.
                The reducer receives NumPy values in the same structure.
            reducer: A function, or a `MetricReducer`, which needs less memory. The function is
                called once per evaluation with the list of all batches' values in the order of the
                data. The batches of several workers alternate in the list.
            numpy_dtype: Type of the value, which ``np.dtype`` accepts and TensorFlow knows. The
                value may be a scalar or an array of any shape.

        Returns:
            The tensor with the value of the metric, and the tensor that adds a batch.

        Raises:
            MetricTypeError: If `metric` is empty or nested, `reducer` is neither a function nor a
                reducer or cannot be copied, or NumPy or TensorFlow does not have `numpy_dtype`. It
                is also a ``TypeError``.
            ContextStateError: If it is called outside of a graph.
        """
        return self.reducers.make_metric(metric, reducer, numpy_dtype)


class EstimatorExperimentalContext(CachingContext):
    """Experimental features, available as `EstimatorContext.experimental`."""

    may_repeat = True

    def __init__(self, context: EstimatorContext) -> None:
        super().__init__(context)
        self._context = context

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the object itself, as `EstimatorContext` does."""
        return self

    def make_metric(
        self,
        metric: Any,
        reducer: Callable[[list[Any]], Any] | MetricReducer,
        numpy_dtype: Any,
    ) -> tuple[Any, Any]:
        """See `EstimatorContext.make_metric`."""
        return self._context.make_metric(metric, reducer, numpy_dtype)

    def _decorator(
        self, key: CacheKey, shuffle: bool, *, reshuffle: bool, train: bool
    ) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        context = self._context

        def decorate_function(make_dataset: Callable[[], Any]) -> Callable[[], Any]:
            def read_dataset() -> Any:
                from detcore_estimator.data.cached_dataset import CachedDataset

                cached = CachedDataset(
                    key=key,
                    make_dataset=make_dataset,
                    root=context.setup.cache_dir,
                    seed=context.get_trial_seed(),
                    shuffle=shuffle,
                    reshuffle=reshuffle,
                    shard=(context.distributed.get_rank(), context.distributed.get_size()),
                    drop_remainder=train,
                )
                dataset = cached.open(context.session_config)
                context.wrapped_datasets.append(dataset)
                return dataset

            return read_dataset

        return decorate_function


class EstimatorTrialContext(EstimatorContext):
    """The context of an `EstimatorTrial`."""


def _is_optimizer(value: Any) -> bool:
    is_object = any(callable(getattr(value, n, None)) for n in ("apply_gradients", "minimize"))
    return is_object or isinstance(value, str) or callable(value)
