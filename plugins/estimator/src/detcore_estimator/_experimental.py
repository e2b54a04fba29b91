"""Provide features of the context that may still change: cached datasets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from detcore.errors import CheckFailedError

if TYPE_CHECKING:
    from typing_extensions import Self

    from detcore.data import CacheKey
    from detcore.metrics import MetricReducer
    from detcore_estimator._context import EstimatorContext

__all__ = ["EstimatorExperimentalContext"]


class EstimatorExperimentalContext:
    """Features that may still change; `EstimatorContext` has one as ``experimental``."""

    def __init__(self, context: EstimatorContext) -> None:
        self._context = context
        self._training_key: CacheKey | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the object itself, as `EstimatorContext` does."""
        return self

    @property
    def is_caching_training_data(self) -> bool:
        """Whether `cache_train_dataset` was used."""
        return self._training_key is not None

    def make_metric(
        self,
        metric: Any,
        reducer: Callable[[list[Any]], Any] | MetricReducer,
        numpy_dtype: Any,
    ) -> tuple[Any, Any]:
        """See `EstimatorContext.make_metric`."""
        return self._context.make_metric(metric, reducer, numpy_dtype)

    def cache_train_dataset(
        self,
        dataset_id: str,
        dataset_version: str,
        shuffle: bool = False,
        skip_shuffle_at_epoch_end: bool = False,
    ) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        """Decorate a function that makes the training dataset, so that it runs once.

        The first call writes the records to the cache folder, under `dataset_id` and
        `dataset_version`; later calls, including those in other trials and experiments, read them
        from there. The decorated function takes no arguments and returns a ``tf.data.Dataset`` of
        records. It runs in a separate graph, so it must create everything it uses. Call the
        decorator's result inside ``input_fn``; batch and augment the dataset there.

        Like with every other dataset, training continues where a checkpoint left it. Nothing is
        ever removed from the cache folder.

        Args:
            dataset_id: Name of the data; letters, digits, ``.``, ``_`` and ``-``.
            dataset_version: Its version; change it when the function changes.
            shuffle: Whether to read the records in an order derived from the trial's seed.
            skip_shuffle_at_epoch_end: Whether all epochs have the same order.

        Returns:
            A decorator.

        Raises:
            CheckFailedError: If it is used for two datasets, or together with
                ``context.wrap_dataset``.
            UnsafePathError: If a name has characters that do not belong in a file name.
        """
        from detcore.data import CacheKey

        key = CacheKey.checked(dataset_id, dataset_version, part="train")
        # An input function may run several times; it names the same dataset each time.
        if self._training_key not in (None, key):
            raise CheckFailedError(
                "context.experimental.cache_train_dataset was used twice in this trial.\n"
                "A trial has one training dataset.\n"
                "Use cache_validation_dataset for the validation data."
            )
        if self._training_key is None and self._context.wrapped_datasets:
            raise CheckFailedError(
                "context.experimental.cache_train_dataset was used after context.wrap_dataset.\n"
                "A cached dataset is already sharded.\n"
                "Use one of the two for all datasets of a trial."
            )
        self._training_key = key
        return self._decorator(key, shuffle, reshuffle=not skip_shuffle_at_epoch_end, train=True)

    def cache_validation_dataset(
        self, dataset_id: str, dataset_version: str, shuffle: bool = False
    ) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        """Decorate a function that makes the validation dataset; see `cache_train_dataset`.

        Args:
            dataset_id: Name of the data; letters, digits, ``.``, ``_`` and ``-``.
            dataset_version: Its version; change it when the function changes.
            shuffle: Whether to read the records in an order derived from the trial's seed, the same
                in each validation.

        Returns:
            A decorator.

        Raises:
            UnsafePathError: If a name has characters that do not belong in a file name.
        """
        from detcore.data import CacheKey

        key = CacheKey.checked(dataset_id, dataset_version, part="val")
        return self._decorator(key, shuffle, reshuffle=False, train=False)

    def _decorator(
        self, key: CacheKey, shuffle: bool, *, reshuffle: bool, train: bool
    ) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        context = self._context

        def decorate(make_dataset: Callable[[], Any]) -> Callable[[], Any]:
            def read() -> Any:
                from detcore_estimator._cache import CachedDataset

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

            return read

        return decorate
