"""`init` and `Trainer`, with which a script trains a `PyTorchTrial` itself.

```python
import detcore_torch

with detcore_torch.init(hparams={"global_batch_size": 32, "lr": 0.01}) as context:
    trainer = detcore_torch.Trainer(Digits(context), context)
    trainer.fit(max_length=detcore_torch.Epoch(10), validation_period=detcore_torch.Epoch(1))
```
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from detcore.core import DistributedContext
from detcore.environment import read_environment
from detcore.errors import ConfigError, ContextStateError, InvalidExperimentError, describe
from detcore.trial import NativeStart, start_native
from detcore.types import Length, Unit
from detcore_torch.plugin import detcore_register_framework
from detcore_torch.pytorch_context import PyTorchTrialContext

if TYPE_CHECKING:
    from detcore_torch.pytorch_trial import PyTorchTrial

_logger = logging.getLogger("detcore.torch")


@dataclasses.dataclass(frozen=True, slots=True)
class TrainUnit:
    """A length or a period. Use `Batch`, `Epoch` or `Record`.

    Attributes:
        value: The number of units; >= 1.
    """

    unit: ClassVar[Unit]

    value: int

    def to_length(self, argument: str) -> Length:
        """Return the length.

        Args:
            argument: Name of the argument of `Trainer.fit`, for the message.

        Raises:
            InvalidExperimentError: If the value is not a positive number.
        """
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < 1:
            raise InvalidExperimentError(
                f"{argument} is {type(self).__name__}({self.value!r}).\n"
                "Pass one number, at least 1. detcore has periods, and no lists of single steps."
            )
        return Length(self.value, self.unit)


class Batch(TrainUnit):
    """A number of batches."""

    unit = Unit.BATCHES


class Epoch(TrainUnit):
    """A number of epochs."""

    unit = Unit.EPOCHS


class Record(TrainUnit):
    """A number of records; ``global_batch_size`` converts it to batches."""

    unit = Unit.RECORDS


@contextlib.contextmanager
def init(
    *,
    hparams: Mapping[str, Any] | None = None,
    exp_conf: Mapping[str, Any] | None = None,
    distributed: DistributedContext | None = None,
    aggregation_frequency: int = 1,
    enable_tensorboard_logging: bool = True,
) -> Iterator[PyTorchTrialContext]:
    """Create the context of a script that trains with `Trainer`.

    It seeds Python, NumPy and PyTorch. A standalone script trains in this process, or in the
    processes that torchrun or ``detcore launch`` started. If it is interrupted, its next start
    resumes. Under ``detcore run``, with the script as ``entrypoint``, it trains the run's trial.

    Args:
        hparams: Hyperparameters by name. Those of the trial of ``detcore run`` replace and extend
            them.
        exp_conf: Configuration of a standalone script, with the fields of an experiment file.
            ``reproducibility.experiment_seed`` is 0 by default, so that each start of the script
            creates the same objects.
        distributed: This worker's rank and its peers. Default: the workers that a launcher started,
            or a single worker.
        aggregation_frequency: Number of batches whose gradients are combined into one update; 1 for
            the configured number.
        enable_tensorboard_logging: Accepted for compatibility: metrics are written to event files.

    Yields:
        The context.

    Raises:
        ConfigError: If the configuration is invalid.
    """
    config = None
    if read_environment().trial_info is None:
        config = _make_config(hparams, exp_conf, aggregation_frequency)
    workers = distributed or DistributedContext.from_env()
    start = start_native(detcore_register_framework(), config=config, distributed=workers)
    if config is not None:
        start = dataclasses.replace(start, has_metric="metric" in config["searcher"])
    setup = start.setup()
    settings = setup.settings
    if aggregation_frequency != 1:
        gradients = dataclasses.replace(
            settings.gradients, aggregation_frequency=aggregation_frequency
        )
        settings = dataclasses.replace(settings, gradients=gradients)
    values = {**(hparams or {}), **setup.hparams}
    context = PyTorchTrialContext(dataclasses.replace(setup, settings=settings, hparams=values))
    context.start = start
    context.get_hparams()  # the script reads them elsewhere, so none is reported as unread
    context.set_enable_tensorboard_logging(enable_tensorboard_logging)
    yield context


def _make_config(
    hparams: Mapping[str, Any] | None, exp_conf: Mapping[str, Any] | None, aggregation: int
) -> dict[str, Any]:
    """Return the configuration of a standalone script, which trains one trial."""
    config = dict(exp_conf or {})
    searcher = config.get("searcher") or {}
    names = ("metric", "smaller_is_better", "max_length")
    config["searcher"] = {name: searcher[name] for name in names if name in searcher}
    if hparams is not None:
        config["hyperparameters"] = dict(hparams)
    config["reproducibility"] = {"experiment_seed": 0, **(config.get("reproducibility") or {})}
    if aggregation != 1:
        optimizations = config.get("optimizations") or {}
        config["optimizations"] = {**optimizations, "aggregation_frequency": aggregation}
    return config


class Trainer:
    """Trains a `PyTorchTrial` in a script.

    Args:
        trial: The trial, created with the context of `init`.
        context: That context.

    Raises:
        ContextStateError: If `init` did not create the context.
    """

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        if context.start is None:
            raise ContextStateError(
                f"Trainer was given {describe(context)}, which detcore_torch.init did not create.\n"
                "Create the trial and the trainer inside:  with detcore_torch.init() as context:"
            )
        self._trial = trial
        self._context = context
        self._start = context.start
        self._is_used = False

    def configure_profiler(self, *arguments: object, **options: object) -> None:
        """Accepted for compatibility, without effect: use ``torch.profiler`` in the trial."""
        self._context.set_profiler(*arguments, **options)

    def fit(
        self,
        checkpoint_period: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        max_length: TrainUnit | None = None,
        reporting_period: TrainUnit | None = None,
        checkpoint_policy: str | None = None,
        latest_checkpoint: str | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
    ) -> None:
        """Train up to a length, with validations, checkpoints and reports.

        Periods and policy take precedence over those of the experiment file; None leaves them to
        the file. The length of a trial of ``detcore run`` is the one that its search method
        requests.

        Args:
            checkpoint_period: Maximum length between two checkpoints.
            validation_period: Maximum length between two validations. A validation also follows the
                last batch.
            max_length: Length of the training of a standalone script, unless ``exp_conf`` gives it.
            reporting_period: Number of batches between two reports; other units have no effect.
            checkpoint_policy: Validations after which a checkpoint is saved: "best", "all" or
                "none".
            latest_checkpoint: Accepted for compatibility: an interrupted trial resumes from its
                latest checkpoint. Any other checkpoint is an error.
            step_zero_validation: Whether to validate before the first batch.
            test_mode: Whether a standalone script trains one batch, validates one batch and saves
                one checkpoint.
            profiling_enabled: Accepted for compatibility, without effect.

        Raises:
            SystemExit: With code 75, if the trial was preempted and has saved a checkpoint.
            ContextStateError: If `fit` was called before.
            InvalidExperimentError: If an argument cannot be used.
        """
        if self._is_used:
            raise ContextStateError(
                "trainer.fit() was called twice.\n"
                "A context trains one trial, which has ended. Start the script again."
            )
        self._is_used = True
        self._check_checkpoint(latest_checkpoint)
        if profiling_enabled:
            self._context.set_profiler()
        settings = _read_settings(
            checkpoint_policy=checkpoint_policy,
            min_checkpoint_period=checkpoint_period,
            min_validation_period=validation_period,
            perform_initial_validation=step_zero_validation or None,
            scheduling_unit=reporting_period,
        )
        start, length = self._prepare_start(max_length, is_test=test_mode)
        if self._context.test_mode:
            settings = {}
        start.train(self._trial, self._context, length, settings=settings, resume=True)

    def _check_checkpoint(self, latest_checkpoint: str | None) -> None:
        resumed_from = self._start.info.latest_checkpoint
        if latest_checkpoint not in (None, resumed_from):
            raise InvalidExperimentError(
                f"latest_checkpoint is {latest_checkpoint!r}, and this trial resumes from "
                f"{resumed_from or 'no checkpoint'}.\n"
                "An interrupted trial resumes from its latest checkpoint without this argument. To "
                "start from the weights of another checkpoint, call "
                "detcore_torch.load_weights_from_checkpoint_path in the trial's __init__."
            )

    def _prepare_start(
        self, max_length: TrainUnit | None, *, is_test: bool
    ) -> tuple[NativeStart, Mapping[str, int] | None]:
        """Return the start, and the length of a standalone script that has no configured length."""
        start = self._start
        length = None if max_length is None else max_length.to_length("max_length")
        if start.config is None:
            configured = start.info.settings.max_length
            if length not in (None, configured):
                _logger.info("max_length of fit is ignored: searcher.max_length is %s", configured)
            return start, None
        if is_test:
            from detcore.config import smoke_config

            setup = dataclasses.replace(self._context.setup, test_mode=True)
            self._context.setup = setup
            smoke = smoke_config(start.config)
            return dataclasses.replace(start, config=smoke, has_length=True), None
        if length is not None:
            start = dataclasses.replace(start, has_length=False)
            return start, {length.unit.value: length.count}
        if start.has_length:
            return start, None
        raise InvalidExperimentError(
            "trainer.fit() has no length to train.\n"
            "Pass it, for example:  trainer.fit(max_length=detcore_torch.Epoch(10))"
        )


def _read_settings(**arguments: Any) -> dict[str, Any]:
    """Return the fields of `TrialSettings` for arguments of `Trainer.fit` that are not None."""
    settings = {name: value for name, value in arguments.items() if value is not None}
    for name, value in settings.items():
        if isinstance(value, TrainUnit):
            settings[name] = value.to_length(name)
    policy = settings.get("checkpoint_policy", "best")
    if policy not in ("best", "all", "none"):
        raise ConfigError(f"checkpoint_policy is {policy!r}; expected 'best', 'all' or 'none'")
    if "scheduling_unit" in settings:
        period = settings.pop("scheduling_unit")
        if period.unit is Unit.BATCHES:
            settings["scheduling_unit"] = period.count
        else:
            _logger.info(
                "reporting_period has no effect, because it is not in batches: metrics are "
                "reported before each validation and checkpoint, and at scheduling_unit"
            )
    return settings
