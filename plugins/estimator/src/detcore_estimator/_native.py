"""The native form: a script that makes its estimator itself and has detcore train it."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore import core
from detcore.config import (
    ExperimentConfig,
    load_config,
    load_mapping,
    resolve_constants,
    smoke_config,
    trial_seed,
)
from detcore.environment import read_environment
from detcore.errors import ConfigError, ContextStateError, InvalidExperimentError, describe
from detcore.trial import TrialSetup, open_trial, prepare_process
from detcore.types import Framework, TrialInfo
from detcore_estimator._context import EstimatorContext
from detcore_estimator._trial import EstimatorTrial
from detcore_estimator.plugin import detcore_register_framework

if TYPE_CHECKING:
    from detcore.core import ScriptExperiment
    from detcore.distributed import DistributedContext

__all__ = ["EstimatorNativeContext", "NativeTrial", "init"]

_logger = logging.getLogger("detcore.estimator")

_COME_BACK = 75  # sysexits' EX_TEMPFAIL: run again later
_SEARCHER: Mapping[str, Any] = {"name": "single", "metric": "loss"}
_LENGTH = "max_length"


def init(
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    local: bool = False,
    test: bool = False,
    context_dir: str | os.PathLike[str] = "",
    command: list[str] | None = None,
    master_url: str | None = None,
) -> EstimatorNativeContext:
    """Make the context with which a script trains an estimator.

    Call it once, at the beginning of the script: it seeds Python, NumPy and TensorFlow and switches
    TensorFlow to V1 behaviour. Nothing is recorded before ``train_and_evaluate``.

    In a script by itself training happens here, in this process, or in those that ``detcore
    launch`` has started. Under ``detcore run``, with the script as ``entrypoint``, it is that
    trial's: `config` and `test` are then those of the run.

    Args:
        config: The experiment's configuration, as a dictionary or the path of an experiment file.
            In a dictionary everything may be left out: ``searcher`` is then one trial, judged by
            ``loss``, as long as ``max_steps`` of the ``TrainSpec`` says.
        local: Accepted for compatibility. Training happens in this process either way.
        test: Train one batch, validate on one, save one checkpoint.
        context_dir: Folder of the code, which checkpoints get a copy of; default: the script
            alone.
        command: For clusters, which this release does not have.
        master_url: For clusters, which this release does not have.

    Returns:
        The context.

    Raises:
        InvalidExperimentError: If `command` or `master_url` asks for a cluster, or the
            configuration for a search.
        ConfigError: If the configuration has mistakes, or there is no folder `context_dir`.
    """
    _refuse_cluster(command=command, master_url=master_url)
    for name, value in (("local", local), ("test", test)):
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {describe(value)}; it is True or False")
    environment = read_environment()
    if environment.trial_info is not None:
        return _of_a_run(core.read_trial_info(environment), config)
    return _of_a_script(config, test, _code_folder(context_dir))


class EstimatorNativeContext(EstimatorContext):
    """The context of a script that trains an estimator; made by `init`.

    Has what a trial's context has: ``wrap_optimizer``, ``wrap_dataset``, hyperparameters.

    Attributes:
        serving_input_receiver_fns: Functions that describe the inputs of exported models, by name;
            every checkpoint gets a SavedModel for each. Set it before `train_and_evaluate`.
    """

    def __init__(
        self, setup: TrialSetup, *, experiment_config: ExperimentConfig, has_length: bool
    ) -> None:
        """Take what `init` found.

        Args:
            setup: What is known before training.
            experiment_config: The configuration.
            has_length: Whether it says how long to train; else ``max_steps`` does.
        """
        super().__init__(setup)
        self.serving_input_receiver_fns: Mapping[str, Callable[..., Any]] = {}
        self._experiment_config = experiment_config
        self._has_length = has_length
        self._is_used = False

    def get_tensorboard_path(self) -> Path:
        """Return the folder for event files of this trial.

        Raises:
            ContextStateError: If a script by itself asks before training began.
        """
        if self.setup.tensorboard_path is None:
            raise ContextStateError(
                "get_tensorboard_path() was called before train_and_evaluate().\n"
                "The folder is that of the trial, which is recorded when training begins.\n"
                "Call it in model_fn or in an input_fn."
            )
        return super().get_tensorboard_path()

    def train_and_evaluate(self, estimator: Any, train_spec: Any, eval_spec: Any) -> None:
        """Train, validate and save checkpoints, as the configuration says. Called once.

        The estimator is trained as one that ``EstimatorTrial.build_estimator`` returned is, and
        the specs are read likewise.

        Args:
            estimator: A ``tf.estimator.Estimator`` or a `detcore_estimator.Estimator`.
            train_spec: A ``TrainSpec`` of either.
            eval_spec: An ``EvalSpec`` of either.

        Raises:
            SystemExit: With code 75, if the trial was asked to make way (a signal) and has saved a
                checkpoint. Under ``detcore run`` it can be resumed.
            DetcoreError: If a rule is broken, such as a dataset that was not wrapped.
        """
        if self._is_used:
            raise ContextStateError(
                "train_and_evaluate() was called twice on one context.\n"
                "One context is one trial, and it is over. Start the script again, or search over "
                "hyperparameters with detcore run."
            )
        self._is_used = True
        config = self._config_with_length(train_spec)
        trial = NativeTrial(self, estimator, train_spec, eval_spec)
        script = self._script(config)
        storage = script.config.get("checkpoint_storage")
        code_files = self._code_files()
        with core.init(
            distributed=self.distributed, checkpoint_storage=storage, script=script
        ) as opened:
            with open_trial(opened, _framework(), config, context=self) as ready:
                outcome = ready.train(trial, code_files=code_files)
            if outcome.is_preempted:
                raise SystemExit(_COME_BACK)

    def _config_with_length(self, train_spec: Any) -> ExperimentConfig:
        if self._has_length:
            return self._experiment_config
        max_steps = getattr(train_spec, "max_steps", None)
        if max_steps is None:
            raise InvalidExperimentError(
                "nothing says how long to train: the configuration has no searcher.max_length, and "
                "the TrainSpec no max_steps.\n"
                "Pass one of them, such as:\n"
                '  init(config={"searcher": {"max_length": {"batches": 1000}}})'
            )
        plain = self._experiment_config.model_dump(mode="json")
        plain["searcher"][_LENGTH] = {"batches": int(max_steps)}
        return ExperimentConfig.model_validate(plain)

    def _script(self, config: ExperimentConfig) -> ScriptExperiment:
        """Return what is recorded if this is a script by itself."""
        info = self.info
        assert info is not None  # init gives one
        if info.trial_id:
            return core.ScriptExperiment()
        return core.ScriptExperiment(
            config=config.model_dump(mode="json"),
            hparams=self.setup.hparams,
            seed=self.setup.seed,
            name=self.setup.config.get("name"),
            model_dir=Path(info.model_dir) if info.model_dir else None,
            test_mode=self.setup.test_mode,
        )

    def _code_files(self) -> list[str] | None:
        """Return the files that checkpoints get a copy of; None: all code of the trial's folder."""
        info = self.info
        assert info is not None  # init gives one
        if info.model_dir:  # a run's, or context_dir
            return None
        # Beside a script there may be anything: a home folder, /tmp.
        file = core.script_file()
        return [file.name] if file is not None else []


class NativeTrial(EstimatorTrial):
    """The trial of a script: it hands on what ``train_and_evaluate`` was given."""

    def __init__(
        self, context: EstimatorNativeContext, estimator: Any, train_spec: Any, eval_spec: Any
    ) -> None:
        self.context = context  # type: ignore[assignment]  # no EstimatorTrialContext
        self._parts = (estimator, train_spec, eval_spec)
        self._serving = context.serving_input_receiver_fns

    def build_estimator(self) -> Any:
        """Return the estimator."""
        return self._parts[0]

    def build_train_spec(self) -> Any:
        """Return the ``TrainSpec``."""
        return self._parts[1]

    def build_validation_spec(self) -> Any:
        """Return the ``EvalSpec``."""
        return self._parts[2]

    def build_serving_input_receiver_fns(self) -> Any:
        """Return what the script set on its context."""
        return self._serving


def _framework() -> Framework:
    return detcore_register_framework()


def _refuse_cluster(**given: Any) -> None:
    named = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    if named:
        raise InvalidExperimentError(
            f"init was given {' and '.join(named)}, which is for training on a cluster.\n"
            "This release trains on this machine; clusters come with a later release.\n"
            "Leave it out to train here, or write an experiment file with the script as its "
            "entrypoint: detcore run CONFIG.yaml"
        )


def _code_folder(context_dir: str | os.PathLike[str]) -> str:
    if not os.fspath(context_dir):
        return ""
    folder = Path(context_dir).absolute()
    if not folder.is_dir():
        raise ConfigError(f"context_dir is {os.fspath(context_dir)!r}: there is no folder {folder}")
    return str(folder)


def _of_a_run(info: TrialInfo, config: object) -> EstimatorNativeContext:
    """Return the context of a trial that ``detcore run`` started."""
    if config is not None:
        _logger.info("the config given to init is not used: the experiment file's is")
    experiment_config = ExperimentConfig.model_validate(info.config)
    distributed = _workers()
    prepare_process(_framework(), info.trial_seed, experiment_config, distributed)
    return _context(
        info,
        experiment_config,
        distributed,
        has_length=True,
        tensorboard_path=Path(info.trial_dir) / "tensorboard",
    )


def _of_a_script(config: Any, test: bool, code_folder: str) -> EstimatorNativeContext:
    """Return the context of a script by itself; its trial is recorded when training begins."""
    experiment_config, has_name, has_length = _read_config(config)
    if experiment_config.searcher.name != "single":
        raise InvalidExperimentError(
            f"searcher.name is {experiment_config.searcher.name!r}, but a script by itself trains "
            "one trial.\n"
            "Set it to 'single', or search with the script as the entrypoint of an experiment "
            "file: detcore run CONFIG.yaml"
        )
    if test:
        experiment_config, has_length = smoke_config(experiment_config), True
    distributed = _workers()
    if distributed.size > 1:
        # Each worker has drawn a seed where the configuration gives none: the chief's counts.
        chiefs = distributed.broadcast(experiment_config.model_dump(mode="json"))
        experiment_config = ExperimentConfig.model_validate(chiefs)
    plain = experiment_config.model_dump(mode="json")
    seed = plain["reproducibility"]["experiment_seed"]
    if not has_name:
        plain["name"] = None
    info = TrialInfo(
        experiment_id=0,
        trial_id=0,
        run_id=1,
        trial_seed=trial_seed(seed),
        hparams=resolve_constants(experiment_config.hyperparameters, seed=seed),
        config=plain,
        model_dir=code_folder,
        trial_dir="",
        database_url="",
        test_mode=test,
    )
    prepare_process(_framework(), info.trial_seed, experiment_config, distributed)
    return _context(
        info, experiment_config, distributed, has_length=has_length, tensorboard_path=None
    )


def _workers() -> DistributedContext:
    """Return the workers that detcore started, this one among them; else this one alone."""
    alone = read_environment().num_workers == 1
    return core.DistributedContext() if alone else core.DistributedContext.from_env()


def _read_config(config: Any) -> tuple[ExperimentConfig, bool, bool]:
    """Return the configuration, and whether it gives a name and a length."""
    if isinstance(config, str | os.PathLike):
        return load_config(Path(config)).config, True, True
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"config is {describe(config)}; it is a dictionary, the path of an experiment file, or "
            "None"
        )
    given = copy.deepcopy(dict(config or {}))
    searcher = given.get("searcher", {})
    if not isinstance(searcher, Mapping):
        return load_mapping(given).config, False, False  # raises, and says what is wrong
    has_length = _LENGTH in searcher
    given["searcher"] = {**_SEARCHER, **({} if has_length else {_LENGTH: 1}), **searcher}
    return load_mapping(given).config, "name" in given, has_length


def _context(
    info: TrialInfo,
    experiment_config: ExperimentConfig,
    distributed: DistributedContext,
    *,
    has_length: bool,
    tensorboard_path: Path | None,
) -> EstimatorNativeContext:
    environment = read_environment()
    return EstimatorNativeContext(
        TrialSetup(
            config=info.config,
            hparams=info.hparams,
            seed=info.trial_seed,
            distributed=distributed,
            info=info,
            tensorboard_path=tensorboard_path,
            cache_dir=environment.home / "cache",
            steps_completed=info.steps_completed,
            test_mode=info.test_mode,
        ),
        experiment_config=experiment_config,
        has_length=has_length,
    )
