"""Values that a trial's context provides."""

from __future__ import annotations

import pytest

from detcore import TrialContext
from detcore.distributed import DistributedContext
from detcore.errors import CheckFailedError, InvalidExperimentError
from detcore.trial import TrialSetup


def context(**hparams: object) -> TrialContext:
    return TrialContext(
        TrialSetup(
            config={"data": {"path": ["a"]}},
            hparams=hparams,
            seed=3,
            distributed=DistributedContext(),
        )
    )


def test_batch_sizes_follow_hyperparameters() -> None:
    assert context(global_batch_size=33).get_global_batch_size() == 33
    assert context(global_batch_size=33).get_per_slot_batch_size() == 33


@pytest.mark.parametrize("value", ["32", 32.0, True, 0, -1])
def test_invalid_batch_size_is_refused(value: object) -> None:
    with pytest.raises(InvalidExperimentError, match="must be an integer, at least 1"):
        context(global_batch_size=value).get_global_batch_size()


def test_missing_batch_size_is_explained() -> None:
    with pytest.raises(InvalidExperimentError, match=r"(?s)is not set.*global_batch_size: 32"):
        context().get_global_batch_size()


def test_missing_hyperparameter_lists_names() -> None:
    with pytest.raises(ValueError, match="unknown hyperparameter 'lr'; defined: beta, depth"):
        context(depth=1, beta=2).get_hparam("lr")


def test_context_returns_copies() -> None:
    trial_context = context(layers=[1, 2])
    trial_context.get_hparam("layers").append(3)
    trial_context.get_hparams()["layers"].append(3)
    trial_context.get_data_config()["path"].append("b")
    trial_context.get_experiment_config()["data"]["path"].append("b")
    assert trial_context.get_hparam("layers") == [1, 2]
    assert trial_context.get_data_config() == {"path": ["a"]}


def test_stop_request_can_be_withdrawn() -> None:
    trial_context = context()
    assert not trial_context.get_stop_requested()
    trial_context.set_stop_requested(True)
    assert trial_context.get_stop_requested()
    trial_context.set_stop_requested(False)
    assert not trial_context.get_stop_requested()
    with pytest.raises(CheckFailedError, match="requires True or False, got 'yes'"):
        trial_context.set_stop_requested("yes")  # type: ignore[arg-type]


def test_debug_context_requires_only_used_values() -> None:
    trial_context = TrialContext.from_config(
        {"hyperparameters": {"global_batch_size": 8, "lr": {"type": "const", "val": 0.1}}}
    )
    assert trial_context.get_hparams() == {"global_batch_size": 8, "lr": 0.1}
    assert not trial_context.is_managed
    assert (
        trial_context.get_experiment_id()
        == trial_context.get_trial_id()
        == trial_context.get_initial_batch()
        == 0
    )
    assert trial_context.distributed.get_size() == 1


def test_env_supports_old_trials() -> None:
    context = TrialContext.from_config(
        {"hyperparameters": {"rate": 0.5}, "reproducibility": {"experiment_seed": 7}}
    )
    assert context.env.hparams == {"rate": 0.5}
    assert context.env.trial_seed == context.get_trial_seed()
    assert context.env.experiment_config == context.get_experiment_config()
    with pytest.raises(AttributeError, match=r"(?s)context.env.container_gpus.*list_physical_dev"):
        _ = context.env.container_gpus
