"""Information about this process's trial, for scripts written for Determined."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from detcore.core.context_opening import read_trial_info
from detcore.environment import read_environment

if TYPE_CHECKING:
    from detcore.contract.values import TrialInfo


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The trial of ``detcore run`` that this process belongs to.

    Attributes:
        trial: The trial: ``hparams``, ``trial_id``, ``trial_seed``, ``experiment_id``, ...
    """

    trial: TrialInfo

    @property
    def task_type(self) -> str:
        """Always "TRIAL"."""
        return "TRIAL"

    @property
    def latest_checkpoint(self) -> str | None:
        """UUID of the checkpoint to restore; None at the first start."""
        return self.trial.latest_checkpoint

    @property
    def user_data(self) -> dict[str, Any]:
        """The section ``data`` of the configuration."""
        return dict(self.trial.config.get("data") or {})

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"get_cluster_info().{name} does not exist: it described a Determined cluster.\n"
            "It has trial, latest_checkpoint, task_type and user_data. The ranks of workers are in "
            "context.distributed."
        )


def get_cluster_info() -> ClusterInfo | None:
    """Return the trial of this process; None outside of ``detcore run``."""
    environment = read_environment()
    if environment.trial_info is None:
        return None
    return ClusterInfo(read_trial_info(environment))
