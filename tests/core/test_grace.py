"""How long there is after a signal, and who says so."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from detcore import core
from detcore.core.preempt_context import Grace, find_grace
from detcore.environment import read_environment
from detcore.errors import ConfigError

NOW = 1_000_000.0
SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(int(NOW) + 120)}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
OWN = {"DETCORE_GRACE_S": "12.5"}


@pytest.mark.parametrize(
    ("number", "variables", "configured_s", "expected"),
    [
        (signal.SIGTERM, {}, None, None),
        (signal.SIGINT, {**OWN, **SLURM}, 9.0, None),
        (signal.SIGTERM, {**OWN, **SLURM}, 9.0, Grace(9.0, "preemption_grace_s")),
        (signal.SIGTERM, {**OWN, **SLURM}, None, Grace(12.5, "DETCORE_GRACE_S")),
        (signal.SIGUSR1, OWN, None, Grace(12.5, "DETCORE_GRACE_S")),
        (signal.SIGTERM, SLURM, None, Grace(30.0, "Slurm's default KillWait")),
        (signal.SIGUSR1, SLURM, None, Grace(120.0, "SLURM_JOB_END_TIME")),
        (signal.SIGUSR1, {"SLURM_JOB_ID": "7"}, None, None),
        (signal.SIGUSR1, {**SLURM, "SLURM_JOB_END_TIME": "5"}, None, None),
        (signal.SIGUSR1, {**SLURM, "SLURM_JOB_END_TIME": "later"}, None, None),
        (signal.SIGTERM, KUBERNETES, None, Grace(30.0, "Kubernetes' default")),
        (signal.SIGUSR1, KUBERNETES, None, None),
        (signal.SIGTERM, {**KUBERNETES, **SLURM}, None, Grace(30.0, "Slurm's default KillWait")),
    ],
)
def test_grace_sources_have_precedence(
    number: int, variables: dict[str, str], configured_s: float | None, expected: Grace | None
) -> None:
    environment = read_environment({"DETCORE_HOME": "/h", **variables})
    assert find_grace(number, environment, configured_s=configured_s, now=NOW) == expected


@pytest.mark.parametrize(("seconds", "margin"), [(1.0, 0.5), (3.0, 1.5), (10.0, 1.5), (60.0, 6.0)])
def test_grace_reserves_a_margin(seconds: float, margin: float) -> None:
    assert Grace(seconds, "x").margin_s == pytest.approx(margin)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_invalid_grace_variable_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"DETCORE_GRACE_S is '{text}'"):
        read_environment({"DETCORE_HOME": "/h", "DETCORE_GRACE_S": text})


@pytest.mark.parametrize(
    ("name", "value"),
    [("grace_s", 0), ("grace_s", "30"), ("grace_s", True), ("checkpoint_exit_timeout_s", -1.0)],
)
def test_invalid_time_arguments_are_refused(alone: Any, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; expected a number of seconds"):
        core.init(**{name: value})  # type: ignore[arg-type]


def left(context: core.Context) -> Any:
    return context.preempt.seconds_left


def test_grace_counts_from_signal(alone: Any) -> None:
    with alone(grace_s=50.0) as context:
        assert left(context) is None
        signal.raise_signal(signal.SIGTERM)
        assert context.preempt.grace == Grace(50.0, "preemption_grace_s")
        assert 0.0 < left(context) <= 50.0
        # Later calls can only bring the kill closer.
        context.preempt.set_kill_time(Grace(90.0, "another worker"), 90.0)
        assert left(context) <= 50.0
        context.preempt.set_kill_time(Grace(9.0, "another worker"), 3.0)
        assert left(context) <= 3.0


def test_experiment_file_sets_grace(managed: Any) -> None:
    context, _ = managed({"preemption_grace_s": 44.0})
    with context:
        signal.raise_signal(signal.SIGTERM)
        assert context.preempt.grace == Grace(44.0, "preemption_grace_s")
        assert context.preempt.should_preempt()
