"""Create a trial in this process for debugging."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.environment import read_environment
from detcore.errors import (
    CheckpointNotFoundError,
    InvalidExperimentError,
    describe,
)
from detcore.trial import InstanceCheckpoints, SupportsTensors, Trial, ValidationResult

if TYPE_CHECKING:
    from detcore.checkpoint import Manifest
    from detcore.config import ExperimentConfig
    from detcore.environment import Environment
    from detcore.plugins import PluginManager
    from detcore.storage import StorageBackend
    from detcore.types import Framework


_TRIAL_FILE = "trial.json"


def create_trial_instance(
    trial_def: type[Trial],
    checkpoint_dir: str | os.PathLike[str],
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    hparams: Mapping[str, Any] | None = None,
) -> Trial:
    """Create a trial in this process, to call its methods and inspect their results.

    Nothing is recorded, and training does not start. Python, NumPy and the framework are seeded as
    in a worker. ``trial.context.checkpoints`` (`detcore.trial.InstanceCheckpoints`) restores the
    training state from `checkpoint_dir`, validates, and saves checkpoints there. A Keras trial's
    ``build_model()`` returns the model with the weights of the newest checkpoint.

    Args:
        trial_def: The trial class.
        checkpoint_dir: Directory of checkpoints, or one checkpoint. It is created if it does not
            exist. Event files are written to its subdirectory ``tensorboard``.
        config: The experiment's configuration, as for `detcore.client.create`.
        hparams: Hyperparameters that replace those of the experiment's first trial, which are its
            constants, and values drawn from its ranges with ``reproducibility.experiment_seed``.

    Returns:
        The trial.

    Raises:
        ConfigError: If the configuration is invalid.
        InvalidExperimentError: If `trial_def` is not a trial class.
        PluginNotFoundError: If no plugin supports its framework.
    """
    from detcore.client import load_trial_config
    from detcore.plugins import PluginManager
    from detcore.trial import find_framework

    if not (isinstance(trial_def, type) and issubclass(trial_def, Trial)):
        raise InvalidExperimentError(f"trial_def is {describe(trial_def)}, not a trial class")
    environment = read_environment()
    plugins = PluginManager(environment)
    framework = find_framework(trial_def, plugins.frameworks())
    trial_config = load_trial_config(
        config,
        trial_class=trial_def,
        framework=framework,
        plugins=plugins,
        environment=environment.config_overrides,
    )
    folder = Path(checkpoint_dir).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    context = _make_context(framework, trial_config.config, hparams, folder, environment)
    trial = trial_def(context)
    context.checkpoints = _Checkpoints(folder, trial, framework, plugins)
    context.prepare_instance(trial, context.checkpoints.latest)
    return trial


def _make_context(
    framework: Framework,
    config: ExperimentConfig,
    hparams: Mapping[str, Any] | None,
    folder: Path,
    environment: Environment,
) -> Any:
    """Return the context of a single trial, after seeding this process like a worker."""
    from detcore.config import resolve_constants, trial_seed
    from detcore.distributed import DistributedContext
    from detcore.trial import TrialSetup, import_object, prepare_process
    from detcore.types import TrialInfo

    document, settings = config.model_dump(mode="json"), config.trial_settings()
    seed = config.reproducibility.experiment_seed
    values = {**resolve_constants(config.hyperparameters, seed=seed), **(hparams or {})}
    info = TrialInfo(
        experiment_id=0,
        trial_id=0,
        run_id=1,
        trial_seed=trial_seed(seed),
        hparams=values,
        config=document,
        model_dir=str(Path.cwd()),
        trial_dir=str(folder),
        settings=settings,
    )
    alone = DistributedContext()
    prepare_process(framework, info, alone)
    return import_object(framework.context_class)(
        TrialSetup(
            config=document,
            settings=settings,
            hparams=values,
            seed=info.trial_seed,
            distributed=alone,
            info=info,
            tensorboard_path=folder / "tensorboard",
            cache_dir=environment.home / "cache",
        )
    )


class _Checkpoints(InstanceCheckpoints):
    """The checkpoints of a trial in a directory. Data and model are created on first use."""

    def __init__(
        self, directory: Path, trial: Trial, framework: Framework, plugins: PluginManager
    ) -> None:
        self.directory = directory
        self._trial = trial
        self._framework = framework
        self._plugins = plugins
        self._controller: Any = None
        self._steps_completed = 0

    @property
    def latest(self) -> Path | None:
        checkpoints = [(manifest.created, uuid) for uuid, manifest in self._list_manifests()]
        if checkpoints:
            return self.directory / max(checkpoints)[1]
        return self.directory if (self.directory / _TRIAL_FILE).is_file() else None

    def restore(self, checkpoint: str | os.PathLike[str] | None = None) -> Path:
        folder = Path(checkpoint) if checkpoint is not None else self.latest
        if folder is None or not folder.is_dir():
            raise CheckpointNotFoundError(
                f"checkpoint not found: {folder if folder is not None else self.directory}.\n"
                "Download a checkpoint (detcore checkpoint download UUID), or save a checkpoint "
                "with context.checkpoints.save()."
            )
        self._build_controller().restore(folder)
        self._steps_completed = _read_steps(folder)
        return folder

    def save(self, steps_completed: int | None = None) -> Path:
        from detcore.checkpoint import CheckpointContext
        from detcore.trial import build_trial_record, copy_code, list_code

        controller, context = self._build_controller(), self._trial.context
        assert context.info is not None  # passed above
        entrypoint, is_in_code = self._find_entrypoint()
        steps = self._steps_completed if steps_completed is None else steps_completed
        record = build_trial_record(context.info, self._framework.name, entrypoint)
        record["steps_completed"] = steps
        provider = self._plugins.find_framework_provider(self._framework.name)
        code = Path.cwd()
        with self._open_storage() as storage:
            checkpoints = CheckpointContext(storage=storage, distributed=context.distributed)
            checkpoints.versions[provider.distribution] = provider.version
            metadata = {"steps_completed": steps, "framework": self._framework.name}

            def tensors() -> Any:
                return controller.tensors() if isinstance(controller, SupportsTensors) else ()

            with checkpoints.store_path(metadata, tensors=tensors) as (path, uuid):
                controller.save(path)
                text = json.dumps(record, indent=2, sort_keys=True)
                (path / _TRIAL_FILE).write_text(text + "\n", encoding="utf-8")
                files = list_code(code) if is_in_code else ()
                copy_code(code, files, path / "code", config=context.setup.config)
        return self.directory / uuid

    def validate(self) -> dict[str, float]:
        result = self._build_controller().validate()
        return dict(result.metrics if isinstance(result, ValidationResult) else result)

    def close(self) -> None:
        if self._controller is not None:
            self._controller.close()
            self._controller = None

    def _build_controller(self) -> Any:
        from detcore.trial import import_object

        if self._controller is None:
            make = import_object(self._framework.controller)
            self._controller = make(self._trial, self._trial.context)
        return self._controller

    def _find_entrypoint(self) -> tuple[str, bool]:
        """Return the import path of the trial class, and whether it is in this directory."""
        from detcore.client import find_class

        kind = type(self._trial)
        try:
            return find_class(kind, Path.cwd()).entrypoint, True
        except InvalidExperimentError:
            # A class from a prompt or another directory: its checkpoints contain only the state.
            return f"{kind.__module__}:{kind.__qualname__}", False

    def _list_manifests(self) -> Iterator[tuple[str, Manifest]]:
        from detcore.checkpoint import MANIFEST_FILE, read_manifest

        with self._open_storage() as storage:
            for path in sorted(self.directory.glob(f"*/{MANIFEST_FILE}")):
                uuid = path.parent.name
                yield uuid, read_manifest(storage, uuid)

    @contextlib.contextmanager
    def _open_storage(self) -> Iterator[StorageBackend]:
        from detcore.storage import open_storage

        # Always a local directory, whatever URL schemes plugins register.
        storage = open_storage(str(self.directory), home=self.directory, plugins=None)
        with contextlib.closing(storage):
            yield storage


def _read_steps(folder: Path) -> int:
    try:
        record = json.loads((folder / _TRIAL_FILE).read_text(encoding="utf-8"))
        return int(record["steps_completed"])
    except (OSError, ValueError, TypeError, KeyError):
        return 0  # a checkpoint of another system, without this field
