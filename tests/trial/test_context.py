"""What a trial is given."""

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


def test_batch_sizes_come_from_the_hyperparameters() -> None:
    assert context(global_batch_size=33).get_global_batch_size() == 33
    assert context(global_batch_size=33).get_per_slot_batch_size() == 33


@pytest.mark.parametrize("value", ["32", 32.0, True, 0, -1])
def test_a_batch_size_that_is_no_number_of_records_is_refused(value: object) -> None:
    with pytest.raises(InvalidExperimentError, match="must be an integer, at least 1"):
        context(global_batch_size=value).get_global_batch_size()


def test_a_missing_batch_size_says_where_it_goes() -> None:
    with pytest.raises(InvalidExperimentError, match=r"(?s)is not set.*global_batch_size: 32"):
        context().get_global_batch_size()


def test_a_missing_hyperparameter_lists_those_that_are_there() -> None:
    with pytest.raises(ValueError, match="unknown hyperparameter 'lr'; defined: beta, depth"):
        context(depth=1, beta=2).get_hparam("lr")


def test_what_is_handed_out_can_be_changed_without_harm() -> None:
    made = context(layers=[1, 2])
    made.get_hparam("layers").append(3)
    made.get_hparams()["layers"].append(3)
    made.get_data_config()["path"].append("b")
    made.get_experiment_config()["data"]["path"].append("b")
    assert made.get_hparam("layers") == [1, 2]
    assert made.get_data_config() == {"path": ["a"]}


def test_a_stop_request_is_a_boolean_and_can_be_taken_back() -> None:
    made = context()
    assert not made.get_stop_requested()
    made.set_stop_requested(True)
    assert made.get_stop_requested()
    made.set_stop_requested(False)
    assert not made.get_stop_requested()
    with pytest.raises(CheckFailedError, match="requires True or False, got 'yes'"):
        made.set_stop_requested("yes")  # type: ignore[arg-type]


def test_a_context_for_debugging_needs_only_what_the_trial_reads() -> None:
    made = TrialContext.from_config(
        {"hyperparameters": {"global_batch_size": 8, "lr": {"type": "const", "val": 0.1}}}
    )
    assert made.get_hparams() == {"global_batch_size": 8, "lr": 0.1}
    assert not made.is_managed
    assert made.get_experiment_id() == made.get_trial_id() == made.get_initial_batch() == 0
    assert made.distributed.get_size() == 1


def test_env_has_what_old_trials_read_of_it() -> None:
    context = TrialContext.from_config(
        {"hyperparameters": {"rate": 0.5}, "reproducibility": {"experiment_seed": 7}}
    )
    assert context.env.hparams == {"rate": 0.5}
    assert context.env.trial_seed == context.get_trial_seed()
    assert context.env.experiment_config == context.get_experiment_config()
    with pytest.raises(AttributeError, match=r"(?s)context.env.container_gpus.*list_physical_dev"):
        _ = context.env.container_gpus
