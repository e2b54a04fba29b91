"""The choice of the launcher that starts the trials of an experiment."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.launch import Launcher, LocalLauncher, SupportsCheck, find_preload
from detcore.runner._named import find_launcher
from detcore.runner._starting import count_slots

if TYPE_CHECKING:
    from detcore.config import ExperimentConfig
    from detcore.runner._listener import RunSettings

__all__ = ["choose_launcher", "ready_launcher"]

_logger = logging.getLogger("detcore.runner")


def choose_launcher(config: ExperimentConfig, model_dir: Path, settings: RunSettings) -> Launcher:
    """Return the launcher for the trials of an experiment; see `ready_launcher`.

    With detcore's own the trials of a search are forked from a process that has imported their
    framework, where that makes no difference to them.
    """
    make, early = find_launcher(config, settings.plugins), settings.early
    if make is not None:
        if early is not None:
            early.close()
        return make()
    preload, why_not = None, "one trial only"
    if config.searcher.name != "single":
        preload, why_not = find_preload(config.entrypoint, model_dir, settings.plugins)
    if preload is None:
        _logger.debug("every trial imports its framework by itself: %s", why_not)
    return LocalLauncher(
        preload=preload, notice=settings.listener.notice, early=early, plugins=settings.plugins
    )


@contextlib.contextmanager
def ready_launcher(
    config: ExperimentConfig, model_dir: Path, settings: RunSettings
) -> Iterator[Launcher]:
    """Open the launcher for the trials of an experiment; refuse trials that it can never start.

    Args:
        config: The experiment's configuration.
        model_dir: Folder of the user's code.
        settings: The settings of the run; the worker that was started early is used, or ended.

    Raises:
        DetcoreError: If the launcher cannot be made, or could not start a trial.
    """
    num_workers, _ = count_slots(config, max_slots=settings.max_slots)
    with contextlib.closing(choose_launcher(config, model_dir, settings)) as launcher:
        if isinstance(launcher, SupportsCheck):
            launcher.check_trial(config.model_dump(mode="json"), slots=num_workers)
        yield launcher
