"""Placement of trials: capacity of the cluster, and waiting trials."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import RayNodes
from ray_runs import BATCH, SLOW, RayRuns
from toy_command import MODEL_DIR

from detcore.errors import RunError
from detcore.records import Database
from detcore_ray import RayLauncher, RaySettings

Expect = Callable[[int], dict[str, Any]]


def run(detcore: RayRuns, *, launcher: dict[str, Any] | None = None, **changes: Any) -> Any:
    return detcore("run", detcore.ray_config(launcher=launcher, **changes), MODEL_DIR, "--json")


@pytest.mark.soak
def test_trials_run_concurrently_or_wait_for_room(detcore: RayRuns) -> None:
    """Four trials with 2 CPUs each, on three nodes with 2 CPUs each."""
    changes: dict[str, Any] = {
        "searcher": {
            "name": "random", "metric": "val_loss", "max_length": {"batches": 20},
            "max_trials": 4,
        },
        "hyperparameters": {
            **SLOW, "pause_s": 0.2,
            "learning_rate": {"type": "double", "minval": 0.01, "maxval": 0.05},
        },
    }  # fmt: skip
    finished = run(
        detcore, launcher={"cpus_per_slot": 2}, resources={"slots_per_trial": 1, "max_slots": 4},
        **changes,
    )  # fmt: skip
    assert finished.code == 0, finished.output
    assert "ray: waiting for room for 1 bundle of {CPU: 2} (PACK); the cluster has 0 of 6 CPU" in (
        finished.output
    )
    alone = detcore("run", detcore.config(**changes), MODEL_DIR)
    assert alone.code == 0, alone.output
    with Database.open(f"sqlite:///{detcore.home / 'detcore.db'}") as database:
        trials = database.list_trials(1)
        results = [
            [
                [row.metrics for row in database.metrics(trial.id, "validation")]
                for trial in database.list_trials(number)
            ]
            for number in (1, 2)
        ]
    assert [trial.state.value for trial in trials] == ["COMPLETED"] * 4
    # Three trials ran concurrently.
    began = sorted(trial.current_run.started_at for trial in trials if trial.current_run)
    ended = sorted(trial.ended_at for trial in trials if trial.ended_at)
    assert began[2] < ended[0], (began, ended)
    # The results equal those of a local run.
    assert results[0] == results[1]
    assert all(results[0])


def test_trial_too_large_for_cluster_is_rejected(detcore: RayRuns) -> None:
    finished = run(detcore, launcher={"cpus_per_slot": 3})
    assert finished.code == 1
    text = " ".join(finished.output.split())
    assert "the cluster cannot hold a trial of 1 bundle of {CPU: 3} (PACK: on as few nodes as" in (
        text
    )
    assert len(re.findall(r"node \S+: \{CPU: 2\}", text)) == 3, text
    assert "launcher.wait_for_nodes: true" in text
    assert text.count("the cluster cannot hold a trial") == 1, text
    refused = run(detcore, launcher={"strategy": "STRICT_SPREAD"}, resources={"slots_per_trial": 4})
    assert refused.code == 1
    assert "a trial of 4 bundles of {CPU: 1} (STRICT_SPREAD:" in refused.output
    assert detcore("experiment", "list", "--json").summary == {"experiments": []}


@pytest.mark.soak
def test_waiting_trial_can_be_interrupted(detcore: RayRuns, nodes: RayNodes) -> None:
    needs = {"resources": {"rare": 1}, "wait_for_nodes": True}
    process = detcore.begin(hyperparameters=BATCH, launcher=needs)
    assert process.stdout is not None
    waiting = next(line for line in process.stdout if "waiting for room" in line)
    assert "0 of 0 rare free; its current nodes are too small" in waiting
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 75, stdout + stderr

    process = detcore.start("run", "--resume", 1)
    assert process.stdout is not None
    assert any("waiting for room" in line for line in process.stdout)
    nodes.add("rare", resources={"rare": 1})
    try:
        stdout, _ = process.communicate(timeout=200)
        assert process.returncode == 0, stdout
        assert "ray: placed after" in stdout
    finally:
        nodes.kill("rare")


def test_interrupt_reaches_all_workers(detcore: RayRuns, expect: Expect) -> None:
    expected = expect(3)
    process = detcore.begin(
        hyperparameters=detcore.slow(pause_from=10), resources={"slots_per_trial": 3},
        scheduling_unit=100, launcher={"strategy": "STRICT_SPREAD"},
    )  # fmt: skip
    detcore.has_checkpoints(1)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=200)
    assert process.returncode == 75, stdout
    detcore.hurry()
    finished = detcore("run", "--resume", 1, "--json")
    assert finished.code == 0, finished.output
    assert detcore.state() == expected


@pytest.mark.parametrize("is_killed", [False, True], ids=["undisturbed", "killed"])
def test_machine_without_shared_home_reports(
    detcore: RayRuns, nodes: RayNodes, tmp_path: Path, is_killed: bool
) -> None:
    """Its whole log arrives on the runner's machine, even if its worker is killed."""
    store = tmp_path / "store"  # a checkpoint directory that both machines see
    store.mkdir()
    with nodes.elsewhere(detcore.home, address="127.0.0.5", resource="far"):
        process = detcore.begin(
            launcher={"resources": {"far": 1}, "wait_for_nodes": True},
            hyperparameters=SLOW,
            checkpoint_storage={
                "type": "directory", "container_path": str(store), "save_trial_latest": 1000,
            },
            max_restarts=1,
        )  # fmt: skip
        if is_killed:
            detcore.wait_for(lambda: len([*store.glob("*/manifest.json")]) > 1, timeout_s=200)
            os.kill(detcore.pids()[0], signal.SIGKILL)
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output
    with Database.open(f"sqlite:///{detcore.home / 'detcore.db'}") as database:
        [trial] = database.list_trials(1)
        assert (trial.state.value, trial.num_restarts) == ("COMPLETED", int(is_killed))
        rows = database.metrics(1, "validation")
        uuids = {checkpoint.uuid for checkpoint in database.list_checkpoints(states=["COMPLETED"])}
    assert {row.steps_completed for row in rows} == {10, 20, 30, 40}
    assert uuids == {path.parent.name for path in store.glob("*/manifest.json")}


def test_unreachable_cluster_is_reported(detcore: RayRuns) -> None:
    finished = run(detcore, launcher={"address": "127.0.0.1:1"})
    assert finished.code == 1
    assert finished.output.count("no Ray cluster answers at 127.0.0.1:1") == 1
    assert detcore("experiment", "list", "--json").summary == {"experiments": []}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"address": "ray://head:10001"}, "the address of a Ray client server"),
        ({"strategy": "NEAR"}, "launcher.strategy: "),
        ({"cpus_per_slot": -1}, "launcher.cpus_per_slot: "),
        ({"resources": {"tpu": "two"}}, "launcher.resources.tpu: "),
        ({"cpus_per_slot": 0}, "a slot without resources cannot be placed"),
        ({"lease_s": 0.5}, "launcher.lease_s: "),
        ({"adress": "local"}, "launcher.adress: "),
    ],
)
def test_invalid_ray_settings_are_rejected(
    detcore: RayRuns, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(RunError, match=re.escape(message)):
        RayLauncher(**settings)
    config = detcore.config(entrypoint=["true"], launcher={"name": "ray", **settings})
    checked = detcore("config", "check", config)
    assert checked.code == 2
    (name,) = settings
    assert name in checked.stderr or message in checked.stderr, checked.stderr


def test_valid_ray_settings_are_accepted() -> None:
    settings = RaySettings(
        resources=None, variables={"N": 3, "FLAG": True}, cpus_per_slot=0.5, lease_s=2
    )
    assert settings.bundle == {"CPU": 0.5}
    assert settings.variables == {"N": "3", "FLAG": "True"}
    assert RaySettings.model_validate_json(settings.model_dump_json()) == settings


def test_secrets_are_not_in_ray_logs(detcore: RayRuns, nodes: RayNodes) -> None:
    """Secrets are arguments of calls, which Ray does not log."""
    secret = "a-token-that-nobody-is-to-see"
    printing = "import os; print(os.environ['DETCORE_JOB_KEY'], os.environ['SUITE_TOKEN'])"
    config = detcore.ray_config(
        entrypoint=["python3", "-c", printing], launcher={"variables": {"SUITE_TOKEN": secret}}
    )
    finished = detcore("run", config, MODEL_DIR)
    assert secret in finished.output
    words = finished.output.split()
    key = words[words.index(secret) - 1]
    assert len(key) == 64
    files = [path for path in nodes.logs.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        text = path.read_bytes()
        assert secret.encode() not in text, path
        assert key.encode() not in text, path


def test_local_cluster_ends_with_run(detcore: RayRuns) -> None:
    finished = run(detcore, launcher={"address": "local"}, hyperparameters=BATCH)
    assert finished.code == 0, finished.output
    assert "ray" not in finished.stderr.lower(), finished.stderr
