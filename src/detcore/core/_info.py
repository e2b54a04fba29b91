"""Reading which trial a process runs."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from detcore.errors import RunError
from detcore.types import TrialInfo

if TYPE_CHECKING:
    from detcore.environment import Environment

__all__ = ["read_trial_info"]


def read_trial_info(environment: Environment) -> TrialInfo:
    """Read the file in which the runner says which trial this process runs.

    Args:
        environment: Its `trial_info` names the file.

    Raises:
        RunError: If this process was not started by a runner, or the file cannot be used.
    """
    path = environment.trial_info
    if path is None:
        raise RunError(
            "DETCORE_TRIAL_INFO is not set: this process was not started for a trial.\n"
            "The runner sets it in the workers that it starts.\n"
            "Start an experiment with: detcore run CONFIG.yaml"
        )
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name for field in dataclasses.fields(TrialInfo)}
        unknown = sorted(set(fields) - known)
        if unknown:
            raise RunError(
                f"{path} has fields this release does not know: {', '.join(unknown)}.\n"
                "The runner and the worker must be of the same release of detcore."
            )
        return TrialInfo(**fields)
    except OSError as error:
        raise RunError(f"the trial's file {path} cannot be read: {error}") from error
    except (ValueError, TypeError) as error:
        raise RunError(f"{path} does not describe a trial: {error}") from error
