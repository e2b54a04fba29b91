"""The decorators that cache a trial's datasets."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from detcore.contract.errors import CheckFailedError
from detcore.data._dataset_cache import CacheKey


class _WrapsDatasets(Protocol):
    wrapped_datasets: list[Any]


class CachingContext(abc.ABC):
    """The part of a trial's context that caches datasets.

    Attributes:
        may_repeat: Whether the training dataset may be named again, as by an input function that
            runs several times.
    """

    may_repeat: ClassVar[bool] = False

    def __init__(self, context: _WrapsDatasets) -> None:
        self._wrapping = context
        self._training_key: CacheKey | None = None

    @property
    def is_caching_training_data(self) -> bool:
        """Whether `cache_train_dataset` was used."""
        return self._training_key is not None

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
        records. Batch and augment the result of the decorated function, and never ``repeat()``
        inside it. An Estimator's runs in a separate graph, so it must create everything it uses,
        and the result is called inside ``input_fn``.

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
            CheckFailedError: If it is used twice (with Estimators: for two datasets), or together
                with ``context.wrap_dataset``.
            UnsafePathError: If a name has characters that do not belong in a file name.
        """
        key = CacheKey.checked(dataset_id, dataset_version, part="train")
        if self._training_key is not None and not (self.may_repeat and self._training_key == key):
            raise CheckFailedError(
                "context.experimental.cache_train_dataset was used twice in this trial.\n"
                "A trial has one training dataset.\n"
                "Use cache_validation_dataset for the validation data."
            )
        if self._training_key is None and self._wrapping.wrapped_datasets:
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
        key = CacheKey.checked(dataset_id, dataset_version, part="val")
        return self._decorator(key, shuffle, reshuffle=False, train=False)

    @abc.abstractmethod
    def _decorator(
        self, key: CacheKey, shuffle: bool, *, reshuffle: bool, train: bool
    ) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        """Return the decorator of a function that makes a dataset."""
