"""Define the context of a `TFKerasTrial`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from detcore import TrialContext
from detcore.data import CachingContext
from detcore.errors import CheckFailedError, InvalidExperimentError, InvalidModelError, describe
from detcore_keras.data.data_settings import FitOptions, check_fit_option

if TYPE_CHECKING:
    from pathlib import Path

    from detcore import Trial
    from detcore.trial import TrialSetup
    from detcore_keras.backends.backend import Collective


class _Unset:
    """Distinguishes an omitted argument from None."""

    def __repr__(self) -> str:
        return "<not given>"


_UNSET: Any = _Unset()


class TFKerasTrialContext(TrialContext):
    """The context of a `TFKerasTrial`.

    Attributes:
        distributed: The `DistributedContext` of the trial's workers.
        experimental: The `TFKerasExperimentalContext`.
    """

    def __init__(self, setup: TrialSetup) -> None:
        super().__init__(setup)
        self.experimental = TFKerasExperimentalContext(self)
        self.wrapped_models: list[Any] = []
        self.wrapped_optimizers: list[Any] = []
        self.wrapped_datasets: list[Any] = []
        self._fit_settings: dict[str, Any] = {}
        self.collective: Collective | None = None
        if setup.distributed.size > 1:
            from detcore_keras.frameworks import backend

            # JAX connects its processes only before its first operation, so before the trial.
            self.collective = backend.open_collective(
                setup.distributed, compress=setup.settings.gradients.gradient_compression
            )

    @property
    def fit_options(self) -> FitOptions:
        """The combined settings of all calls of `configure_fit`."""
        return FitOptions(**self._fit_settings)

    def wrap_model(self, model: Any) -> Any:
        """Register the model to train. Call it before ``model.compile``.

        Args:
            model: A Keras model: functional, sequential or subclassed.

        Returns:
            The same model.

        Raises:
            InvalidModelError: If `model` is not a Keras model.
        """
        from detcore_keras.frameworks import backend, keras

        if not isinstance(model, keras.Model):
            raise InvalidModelError(
                f"context.wrap_model received {describe(model)}, which is not a Keras model.\n"
                f"This process trains {backend}, where a model is an instance of "
                f"{keras.Model.__module__.partition('.')[0]}.Model. Build it, wrap it, then "
                "compile it."
            )
        if not any(model is wrapped for wrapped in self.wrapped_models):
            self.wrapped_models.append(model)
        return model

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Register an optimizer that the model uses in addition to the optimizer of ``compile``.

        Its state then becomes part of every checkpoint. Its gradients are averaged over the
        workers, and summed over batches according to ``optimizations``. The optimizer passed to
        ``model.compile``, and optimizers that are attributes of the model, need no registration.

        Args:
            optimizer: A Keras optimizer object, not its name.

        Returns:
            The same optimizer.

        Raises:
            InvalidExperimentError: If `optimizer` is not an optimizer object.
        """
        from detcore_keras.frameworks import backend

        if not self.is_managed:
            return optimizer
        if not isinstance(optimizer, backend.optimizer_types):
            raise InvalidExperimentError(
                f"context.wrap_optimizer received {describe(optimizer)}, not an optimizer.\n"
                "Pass the object, such as keras.optimizers.Adam(1e-3), not its name."
            )
        if not any(optimizer is wrapped for wrapped in self.wrapped_optimizers):
            self.wrapped_optimizers.append(optimizer)
        return optimizer

    def wrap_dataset(self, dataset: Any, shard_dataset: bool = True) -> Any:
        """Shard a ``tf.data.Dataset`` between the workers, and mark it as ready for training.

        Call it right after the dataset is created, before shuffling and batching, so that sharding
        drops records early. Every dataset needs a separate call.

        Args:
            dataset: The dataset. Other objects are returned unchanged.
            shard_dataset: False if the trial gives each worker different data.

        Returns:
            The dataset to use instead.
        """
        from detcore_keras.frameworks import is_tf_dataset

        if not self.is_managed or not is_tf_dataset(dataset):
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

    def prepare_instance(self, trial: Trial, checkpoint: Path | None) -> None:
        """Make ``build_model`` build only one model, with the weights of a checkpoint."""
        keras_trial: Any = trial
        build = keras_trial.build_model
        models: list[Any] = []

        def build_model() -> Any:
            if not models:
                returned = build()
                model = self.wrapped_models[-1] if self.wrapped_models else returned
                model = model if returned is None else returned
                if checkpoint is not None:
                    from detcore_keras.state.load_weights import load_weights_from_checkpoint_path

                    load_weights_from_checkpoint_path(checkpoint, model)
                models.append(model)
            return models[0]

        keras_trial.build_model = build_model

    def configure_fit(
        self,
        verbose: bool = _UNSET,
        class_weight: Mapping[int, float] | None = _UNSET,
        workers: int = _UNSET,
        use_multiprocessing: bool = _UNSET,
        max_queue_size: int = _UNSET,
        shuffle: bool = _UNSET,
        validation_steps: int | None = _UNSET,
    ) -> None:
        """Set how data is fed. Later calls change only the settings that they name.

        Args:
            verbose: Whether progress may be printed; default True.
            class_weight: Factor of the loss for each class index; None for equal weights (default).
            workers: Number of threads or processes that prepare the items of a ``Sequence``. With
                0, the default, the training thread prepares them, which is exact after a resume.
            use_multiprocessing: Whether workers are processes instead of threads; default False.
            max_queue_size: Number of items that may be ready ahead; default 10.
            shuffle: Whether arrays and Sequences are read in a new order each epoch; default True.
                Shuffle a ``tf.data.Dataset`` with its own ``shuffle``.
            validation_steps: Batches in one validation of a ``tf.data.Dataset``; None for all
                batches (default).

        Raises:
            InvalidExperimentError: If a value has the wrong type or is out of range.
        """
        options = {
            "verbose": verbose,
            "class_weight": class_weight,
            "workers": workers,
            "use_multiprocessing": use_multiprocessing,
            "max_queue_size": max_queue_size,
            "shuffle": shuffle,
            "validation_steps": validation_steps,
        }
        options = {name: value for name, value in options.items() if value is not _UNSET}
        for name, value in options.items():
            check_fit_option(name, value)
        self._fit_settings.update(options)


class TFKerasExperimentalContext(CachingContext):
    """Experimental features, available as `TFKerasTrialContext.experimental`."""

    def __init__(self, context: TFKerasTrialContext) -> None:
        super().__init__(context)
        self._context = context

    def _decorator(
        self, key: Any, shuffle: bool, *, reshuffle: bool, train: bool
    ) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        from detcore_keras.data.tf_dataset_cache import open_cached_dataset

        context = self._context

        def decorate_function(make_dataset: Callable[[], Any]) -> Callable[[], Any]:
            def read_dataset() -> Any:
                dataset = open_cached_dataset(
                    key,
                    make_dataset,
                    root=context.setup.cache_dir,
                    shuffle_seed=context.get_trial_seed() if shuffle else None,
                    reshuffle=reshuffle,
                    shard=(context.distributed.get_rank(), context.distributed.get_size()),
                    drop_remainder=train,
                )
                context.wrapped_datasets.append(dataset)
                return dataset

            return read_dataset

        return decorate_function
