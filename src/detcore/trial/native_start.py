"""Shared code of the native forms of frameworks: scripts whose model detcore trains."""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore import core
from detcore.contract.errors import ConfigError, InvalidExperimentError, describe
from detcore.contract.trial import TrialSetup
from detcore.contract.values import Framework, TrialInfo
from detcore.environment import read_environment
from detcore.trial.trial_loop import open_trial, prepare_process

if TYPE_CHECKING:
    from detcore.config import ExperimentConfig
    from detcore.contract.trial import Trial, TrialContext
    from detcore.core import ScriptExperiment
    from detcore.distributed import DistributedContext


_EXIT_TEMPFAIL = 75  # EX_TEMPFAIL in sysexits.h: run again later
_LENGTH_FIELD = "max_length"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NativeStart:
    """Values for creating a script's context. Returned by `start_native`.

    Attributes:
        framework: The framework that trains.
        config: The configuration of a standalone script; None in a trial of ``detcore run``.
        info: The trial's identity. For a standalone script, its ids are 0 until training starts.
        distributed: This worker's rank and its peers.
        has_length: Whether the configuration gives the training length.
        has_metric: Whether it gives the searcher's metric. Otherwise none is recorded, and each
            validation counts as the best.
    """

    framework: Framework
    info: TrialInfo
    distributed: DistributedContext
    config: ExperimentConfig | None = None
    has_length: bool = True
    has_metric: bool = True

    def setup(self) -> TrialSetup:
        """Return the values for creating the context."""
        info = self.info
        return TrialSetup(
            config=info.config,
            settings=info.settings,
            hparams=info.hparams,
            seed=info.trial_seed,
            distributed=self.distributed,
            info=info,
            tensorboard_path=Path(info.trial_dir) / "tensorboard" if info.trial_dir else None,
            cache_dir=read_environment().home / "cache",
            steps_completed=info.steps_completed,
            test_mode=info.test_mode,
        )

    def train(
        self,
        trial: Trial,
        context: TrialContext,
        length: Mapping[str, int] | None,
        *,
        settings: Mapping[str, Any] | None = None,
        resume: bool = False,
    ) -> None:
        """Record the experiment, if this is a standalone script, and train.

        Args:
            trial: Adapter for the script's objects.
            context: Context created from `setup`.
            length: Training length, such as ``{"batches": 100}``, if the configuration gives none.
            settings: Fields of `TrialSettings` that replace those of the experiment.
            resume: Whether a standalone script continues its last start, as in `core.init`.

        Raises:
            SystemExit: With code 75, if the trial was preempted and has saved a checkpoint.
            DetcoreError: If the script violates a rule.
        """
        script = self._describe_script(context, length)
        with core.init(distributed=context.distributed, script=script, resume=resume) as opened:
            with open_trial(opened, self.framework, context=context, settings=settings) as ready:
                outcome = ready.train(trial, code_files=self._code_files())
            if outcome.is_preempted:
                raise SystemExit(_EXIT_TEMPFAIL)

    def _describe_script(
        self, context: TrialContext, length: Mapping[str, int] | None
    ) -> ScriptExperiment:
        """Return the values to record for a standalone script."""
        config = self.config
        if config is None:
            return core.ScriptExperiment()
        plain = config.model_dump(mode="json")
        if length is not None and not self.has_length:
            plain["searcher"][_LENGTH_FIELD] = dict(length)
            plain = type(config).model_validate(plain).model_dump(mode="json")
        if not self.has_metric:
            del plain["searcher"]["metric"]
        setup = context.setup
        return core.ScriptExperiment(
            config=plain,
            hparams=setup.hparams,
            seed=setup.seed,
            name=setup.config.get("name"),
            model_dir=Path(self.info.model_dir) if self.info.model_dir else None,
            test_mode=setup.test_mode,
        )

    def _code_files(self) -> list[str] | None:
        """Return the files to copy into checkpoints; None for all code in the trial's directory."""
        if self.info.model_dir:  # set by detcore run or context_dir
            return None
        # The script's directory may be a home directory with any files.
        file = core.script_file()
        return [file.name] if file is not None else []


def start_native(
    framework: Framework,
    *,
    config: Any = None,
    local: object = False,
    test: object = False,
    context_dir: str | os.PathLike[str] = "",
    command: object = None,
    master_url: object = None,
    distributed: DistributedContext | None = None,
    is_prepared: bool = False,
) -> NativeStart:
    """Read the arguments of a native form's ``init``, and prepare this process for training.

    Args:
        framework: The framework that trains. Its `metric` is the default for the configuration.
        config: A dictionary, the path of an experiment file, or None. Ignored in a trial of
            ``detcore run``, which has a configuration.
        local: Accepted for compatibility.
        test: Whether to train one batch, validate on one, and save one checkpoint.
        context_dir: Directory of the code to copy into checkpoints. Default: only the script.
        command: Only for clusters; must be None.
        master_url: Only for clusters; must be None.
        distributed: This worker's rank and its peers. Default: the workers that a launcher started,
            or a single worker.
        is_prepared: Whether the script has seeded its generators and created its model.

    Raises:
        InvalidExperimentError: If `command` or `master_url` requests a cluster, or the
            configuration requests a search.
        ConfigError: If an argument or the configuration has mistakes.
    """
    _refuse_cluster(command=command, master_url=master_url)
    for name, value in (("local", local), ("test", test)):
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {describe(value)}; expected True or False")
    environment = read_environment()
    workers = distributed or _find_workers()
    if environment.trial_info is None:
        code_dir = _check_code_directory(context_dir)
        start = _start_script(framework, config, bool(test), code_dir, workers)
    else:
        if config is not None:
            logging.getLogger("detcore.trial").info(
                "the config passed to init is ignored: the experiment file is used instead"
            )
        start = NativeStart(
            framework=framework, info=core.read_trial_info(environment), distributed=workers
        )
    if not is_prepared:
        prepare_process(framework, start.info, workers)
    return start


def _refuse_cluster(**arguments: Any) -> None:
    descriptions = [f"{name}={value!r}" for name, value in arguments.items() if value is not None]
    if descriptions:
        raise InvalidExperimentError(
            f"init was called with {' and '.join(descriptions)}, which is for training on a "
            "cluster.\n"
            "This release of the native form trains on this machine only.\n"
            "Omit it to train here, or write an experiment file with the script as its "
            "entrypoint:  detcore run CONFIG.yaml"
        )


def _check_code_directory(context_dir: str | os.PathLike[str]) -> str:
    if not os.fspath(context_dir):
        return ""
    folder = Path(context_dir).absolute()
    if not folder.is_dir():
        raise ConfigError(
            f"context_dir is {os.fspath(context_dir)!r}, but the directory {folder} does not exist"
        )
    return str(folder)


def _start_script(
    framework: Framework,
    raw_config: Any,
    test: bool,
    code_folder: str,
    distributed: DistributedContext,
) -> NativeStart:
    """Return the start of a standalone script, whose trial is recorded when training starts."""
    from detcore.config import ExperimentConfig, resolve_constants, smoke_config, trial_seed

    config, has_name, has_length = _read_config(raw_config, framework.metric)
    if config.searcher.name != "single":
        raise InvalidExperimentError(
            f"searcher.name is {config.searcher.name!r}, but a standalone script trains one "
            "trial.\n"
            "Set it to 'single', or search with the script as the entrypoint of an experiment "
            "file:  detcore run CONFIG.yaml"
        )
    if test:
        config, has_length = smoke_config(config), True
    if distributed.size > 1:
        # Without a configured seed, each worker has drawn a different one. All use the chief's.
        chief_config = distributed.broadcast(config.model_dump(mode="json"))
        config = ExperimentConfig.model_validate(chief_config)
    plain = config.model_dump(mode="json")
    seed = config.reproducibility.experiment_seed
    if not has_name:
        plain["name"] = None
    info = TrialInfo(
        experiment_id=0,
        trial_id=0,
        run_id=1,
        trial_seed=trial_seed(seed),
        hparams=resolve_constants(config.hyperparameters, seed=seed),
        config=plain,
        model_dir=code_folder,
        trial_dir="",
        test_mode=test,
        settings=config.trial_settings(),
    )
    return NativeStart(
        framework=framework,
        config=config,
        info=info,
        distributed=distributed,
        has_length=has_length,
    )


def _find_workers() -> DistributedContext:
    """Return the workers that detcore started, or a single worker."""
    alone = read_environment().num_workers == 1
    return core.DistributedContext() if alone else core.DistributedContext.from_env()


def _read_config(config: Any, metric: str) -> tuple[ExperimentConfig, bool, bool]:
    """Return the configuration, and whether it gives a name and a length."""
    from detcore.config import load_config, load_mapping

    if isinstance(config, str | os.PathLike):
        return load_config(Path(config)).config, True, True
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"config is {describe(config)}; expected a dictionary, the path of an experiment file, "
            "or None"
        )
    fields = copy.deepcopy(dict(config or {}))
    searcher = fields.get("searcher", {})
    if not isinstance(searcher, Mapping):
        return load_mapping(fields).config, False, False  # raises the error
    has_length = _LENGTH_FIELD in searcher
    length = {} if has_length else {_LENGTH_FIELD: 1}
    fields["searcher"] = {"name": "single", "metric": metric, **length, **searcher}
    return load_mapping(fields).config, "name" in fields, has_length
