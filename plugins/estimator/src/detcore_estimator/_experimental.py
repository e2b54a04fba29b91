"""Provide features of the context that may still change: cached datasets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from detcore.data import CachingContext

if TYPE_CHECKING:
    from typing_extensions import Self

    from detcore.data import CacheKey
    from detcore.metrics import MetricReducer
    from detcore_estimator._context import EstimatorContext


class EstimatorExperimentalContext(CachingContext):
    """Features that may still change; `EstimatorContext` has one as ``experimental``."""

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
