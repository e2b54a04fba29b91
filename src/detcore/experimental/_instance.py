"""A trial for debugging, in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore._distributions import MissingDistributionError
from detcore.contract.errors import ConfigError, InvalidExperimentError, describe
from detcore.environment import read_environment
from detcore.experimental._arguments import PLAIN_HYPERPARAMETERS, load_given
from detcore.trial import Trial

if TYPE_CHECKING:
    from detcore.contract.values import Framework
    from detcore.hooks import PluginManager
    from detcore.trial import InstanceRecord

__all__ = ["create_trial_instance"]


def create_trial_instance(
    trial_def: type[Trial],
    checkpoint_dir: str | os.PathLike[str],
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    hparams: Mapping[str, Any] | None = None,
) -> Trial:
    """Make a trial in this process, to call its methods and look at their results.

    Nothing is recorded and nothing trains by itself. Python, NumPy and the framework are seeded as
    in a worker. ``trial.context.checkpoints`` (`detcore.trial.InstanceCheckpoints`) restores the
    training state from `checkpoint_dir`, validates, and saves checkpoints there. A Keras trial's
    ``build_model()`` returns the model with the weights of the newest checkpoint in it.

    Args:
        trial_def: The trial class.
        checkpoint_dir: Folder of checkpoints, or one checkpoint; made if it is not there. Event
            files go to ``tensorboard`` in it.
        config: The experiment's configuration, as for `detcore.experimental.create`.
        hparams: The trial's hyperparameters; default: those of the experiment's first trial:
            constants as they are, ranges drawn with ``reproducibility.experiment_seed``.

    Returns:
        The trial.

    Raises:
        ConfigError: If the configuration has mistakes, or `hparams` lacks some of it.
        InvalidExperimentError: If `trial_def` is no trial class.
        PluginNotFoundError: If no plugin trains it.
    """
    from detcore.config import resolve_constants, trial_seed
    from detcore.contract.values import TrialInfo
    from detcore.distributed import DistributedContext
    from detcore.hooks import PluginManager
    from detcore.trial import (
        InstanceCheckpoints,
        TrialSetup,
        find_framework,
        import_object,
        prepare_process,
    )

    if not (isinstance(trial_def, type) and issubclass(trial_def, Trial)):
        raise InvalidExperimentError(f"trial_def is {describe(trial_def)}, not a trial class")
    environment = read_environment()
    plugins = PluginManager(environment)
    framework = find_framework(trial_def, plugins.frameworks())
    loaded = load_given(
        config,
        trial_class=trial_def,
        framework=framework,
        plugins=plugins,
        environment=environment.config_overrides,
    )
    plain = loaded.config.model_dump(mode="json")
    seed = plain["reproducibility"]["experiment_seed"]
    if hparams is None:
        values = resolve_constants(loaded.config.hyperparameters, seed=seed)
    else:
        is_given = not isinstance(config, Mapping | None) or "hyperparameters" in (config or {})
        values = _checked(hparams, loaded.config.hyperparameters if is_given else None)
    folder = Path(checkpoint_dir).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    info = TrialInfo(
        experiment_id=0,
        trial_id=0,
        run_id=1,
        trial_seed=trial_seed(seed),
        hparams=values,
        config=plain,
        model_dir=str(Path.cwd()),
        trial_dir=str(folder),
    )
    alone = DistributedContext()
    prepare_process(framework, info.trial_seed, loaded.config.trial_settings(), alone)
    context = import_object(framework.context_class)(
        TrialSetup(
            config=plain,
            hparams=values,
            seed=info.trial_seed,
            distributed=alone,
            info=info,
            tensorboard_path=folder / "tensorboard",
            cache_dir=environment.home / "cache",
        )
    )
    trial = trial_def(context)
    context.checkpoints = InstanceCheckpoints(
        folder,
        trial=trial,
        context=context,
        framework=framework,
        record=lambda: _record(trial_def, framework, plugins),
    )
    context.begin_instance(trial, context.checkpoints.latest)
    return trial


def _checked(hparams: object, wanted: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the hyperparameters that were given, if none is missing."""
    if not isinstance(hparams, Mapping):
        raise ConfigError(f"hparams is {describe(hparams)}; it is a dictionary, or None")
    if wanted is None:
        return {**PLAIN_HYPERPARAMETERS, **hparams}
    missing = list(_missing(hparams, wanted, ""))
    if missing:
        raise ConfigError(
            f"hparams lacks {', '.join(missing)}; the configuration's hyperparameters are: "
            f"{', '.join(sorted(map(str, wanted)))}.\n"
            "A trial reads its hyperparameters from hparams alone, where that is given.\n"
            "Give all of them a value, or leave hparams out to have the values drawn."
        )
    return dict(hparams)


def _missing(given: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in wanted.items():
        if name not in given:
            yield f"{prefix}{name}"
        elif isinstance(value, Mapping) and "type" not in value:
            group = given[name]
            yield from _missing(group if isinstance(group, Mapping) else {}, value, f"{name}.")


def _record(trial_def: type[Trial], framework: Framework, plugins: PluginManager) -> InstanceRecord:
    from detcore.experimental._where import find_class
    from detcore.trial import InstanceRecord, list_code

    folder = Path.cwd()
    provider = plugins.provider_of_framework(framework.name)
    versions = {provider.distribution: provider.version}
    try:
        entrypoint = find_class(trial_def, folder).entrypoint
    except (InvalidExperimentError, MissingDistributionError):
        # Typed at a prompt, or code of another folder: its checkpoints hold the state alone.
        name = f"{trial_def.__module__}:{trial_def.__qualname__}"
        return InstanceRecord(entrypoint=name, code_dir=folder, code_files=(), versions=versions)
    return InstanceRecord(
        entrypoint=entrypoint, code_dir=folder, code_files=list_code(folder), versions=versions
    )
