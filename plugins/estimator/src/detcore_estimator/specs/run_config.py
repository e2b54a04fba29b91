"""Define the settings of an estimator's run: folders, seeds, sessions and saving."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable
from typing import Any

from detcore.errors import ConfigError
from detcore_estimator.tensorflow_versions import tf, tf1

_DEFAULT_SAVE_SECS = 600
_SAVES = ("save_checkpoints_steps", "save_checkpoints_secs")
STRATEGIES = ("train_distribute", "eval_distribute", "experimental_distribute")


_NOT_GIVEN: Any = object()  # None switches saving off


@dataclasses.dataclass(frozen=True, eq=False)
class RunConfig:
    """Settings of a run, with the fields and defaults of ``tf.estimator.RunConfig``.

    Read-only; `replace` returns a changed copy. Fields that describe a cluster have the values of a
    single process (``is_chief`` is True, ``num_worker_replicas`` is 1). A trial with several
    workers ignores them.

    Args:
        model_dir: Directory for checkpoints and event files; None = a new directory.
        tf_random_seed: Seed of the graph; None = a different one each time.
        save_summary_steps: Steps between two summaries, >= 0; 0 or None = none.
        save_checkpoints_steps: Steps between two checkpoints, >= 0.
        save_checkpoints_secs: Seconds between two checkpoints, >= 0. The default is 600 if both
            settings are omitted. If both are None, no checkpoint is written.
        session_config: ``tf.compat.v1.ConfigProto`` of every session.
        keep_checkpoint_max: Number of checkpoints to keep, >= 0; 0 or None = all.
        keep_checkpoint_every_n_hours: Keep an additional checkpoint each time after this many
            hours, > 0.
        log_step_count_steps: Steps between two log lines, > 0; None = none.
        train_distribute: Must be None, because distribution strategies are not supported.
        device_fn: Called with each operation, returns its device.
        protocol: Has no effect in a single process.
        eval_distribute: Must be None.
        experimental_distribute: Must be None.
        experimental_max_worker_delay_secs: Has no effect in a single process.
        session_creation_timeout_secs: Has no effect in a single process.
        checkpoint_save_graph_def: Whether ``graph.pbtxt`` and ``.meta`` files are written.

    Raises:
        ConfigError: If a value is invalid. It is a ``ValueError``.
    """

    model_dir: str | os.PathLike[str] | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: Any = _NOT_GIVEN
    save_checkpoints_secs: Any = _NOT_GIVEN
    session_config: Any = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = 10000
    log_step_count_steps: int | None = 100
    train_distribute: Any = None
    device_fn: Callable[[Any], Any] | None = None
    protocol: str | None = None
    eval_distribute: Any = None
    experimental_distribute: Any = None
    experimental_max_worker_delay_secs: int | None = None
    session_creation_timeout_secs: float | None = 7200
    checkpoint_save_graph_def: bool = True

    # The cluster of a single process.
    cluster_spec = tf.train.ClusterSpec({})
    evaluation_master = ""
    global_id_in_cluster = 0
    is_chief = True
    master = ""
    num_ps_replicas = 0
    num_worker_replicas = 1
    service = None
    task_id = 0
    task_type = "worker"

    def __post_init__(self) -> None:
        """Set the defaults for saving, and check the values."""
        is_steps_given = self.save_checkpoints_steps is not _NOT_GIVEN
        changes: dict[str, Any] = {}
        if self.model_dir is not None:
            changes["model_dir"] = os.fspath(self.model_dir)
        if not is_steps_given:
            changes["save_checkpoints_steps"] = None
        if self.save_checkpoints_secs is _NOT_GIVEN:
            changes["save_checkpoints_secs"] = None if is_steps_given else _DEFAULT_SAVE_SECS
        for name, value in changes.items():
            object.__setattr__(self, name, value)
        _check_config(self)

    def replace(self, **changes: Any) -> RunConfig:
        """Return a copy with changed settings.

        If only one of ``save_checkpoints_steps`` and ``save_checkpoints_secs`` is changed, the
        other becomes None.

        Raises:
            ConfigError: If a value is invalid.
        """
        for name, other in itertools.permutations(_SAVES):
            if changes.get(name) is not None:
                changes.setdefault(other, None)
        return dataclasses.replace(self, **changes)


def default_session_config() -> Any:
    """Return the default session configuration, the same as in tf.estimator."""
    config = tf1.ConfigProto(allow_soft_placement=True)
    # One pass of the graph optimizer.
    config.graph_options.rewrite_options.meta_optimizer_iterations = 1
    return config


def refuse_cluster(config: Any) -> None:
    """Reject configurations that need several processes.

    Args:
        config: A `RunConfig` of detcore or ``tf.estimator``.

    Raises:
        ConfigError: If the configuration or the environment variable ``TF_CONFIG`` names a
            distribution strategy or a cluster.
    """
    for name in STRATEGIES:
        value = getattr(config, name, None)
        if value is not None:
            raise ConfigError(
                f"the RunConfig has {name}={value!r}.\n"
                "detcore_estimator.Estimator trains in one process and supports no strategy.\n"
                "Leave it out. For several workers, train it as a trial."
            )
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster")
    if cluster and sum(map(len, cluster.values())) > 1:
        raise ConfigError(
            f"the environment variable TF_CONFIG describes a cluster: {cluster}.\n"
            "detcore_estimator.Estimator trains in one process; each of the cluster's would train "
            "a separate model and write over the others' files.\n"
            "Unset TF_CONFIG; for several workers, train it as a trial."
        )


def _check_config(config: RunConfig) -> None:
    if config.model_dir == "":
        raise ConfigError("model_dir is an empty string; leave it out for a new directory")
    if config.save_checkpoints_steps is not None and config.save_checkpoints_secs is not None:
        raise ConfigError(
            f"save_checkpoints_steps={config.save_checkpoints_steps!r} and "
            f"save_checkpoints_secs={config.save_checkpoints_secs!r} cannot both be set"
        )
    for name, is_zero_allowed in _NUMBERS.items():
        _check_number(name, getattr(config, name), is_zero_allowed)
    seed = config.tf_random_seed
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ConfigError(f"tf_random_seed must be an integer or None, but it is {seed!r}")


# Settings that are numbers, and whether they may be 0.
_NUMBERS = {
    "save_summary_steps": True,
    "save_checkpoints_steps": True,
    "save_checkpoints_secs": True,
    "keep_checkpoint_max": True,
    "keep_checkpoint_every_n_hours": False,
    "log_step_count_steps": False,
    "session_creation_timeout_secs": False,
    "experimental_max_worker_delay_secs": True,
}


def _check_number(name: str, value: Any, is_zero_allowed: bool) -> None:
    if value is None:
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not (value > 0 or (is_zero_allowed and value == 0)):
        least = "0 or more" if is_zero_allowed else "greater than 0"
        raise ConfigError(f"{name} must be {least}, or None, but it is {value!r}")
