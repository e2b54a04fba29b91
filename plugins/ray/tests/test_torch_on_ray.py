"""A torch process group of workers on two nodes, one of which dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray_nodes import RayNodes
from ray_runs import RayRuns

TRAIN = """
import os, time
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from detcore import core

with core.init(distributed=core.DistributedContext.from_env()) as context:
    place, seed = context.distributed, context.info.trial_seed
    distributed.init_process_group("gloo")  # by the variables that it finds
    assert (distributed.get_rank(), distributed.get_world_size()) == (place.rank, place.size)
    assert (place.cross_size, place.local_size) == (2, 1), (place.cross_size, place.local_size)
    torch.manual_seed(seed)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    steps, loss = 0, torch.tensor(0.0)
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            state = torch.load(path / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        steps = state["steps"]
    for operation in context.searcher.operations():
        while steps < operation.length:
            torch.manual_seed(seed + steps * place.size + place.rank)
            x = torch.randn(8, 4)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            time.sleep(PAUSE)
            if steps % 10 == 0 and place.rank == 0:
                with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**state, "steps": steps}, path / "state.pt")
        if place.rank == 0:
            context.train.report_validation_metrics(steps, {"val_loss": loss.item()})
            operation.report_completed(loss.item())
    distributed.destroy_process_group()
"""


def run(
    detcore: RayRuns, nodes: RayNodes, model_dir: Path, *, pause_s: float, kills: bool
) -> dict[str, Any]:
    """Run to the end; return the content of the last checkpoint."""
    import torch

    model_dir.mkdir()
    (model_dir / "train.py").write_text(TRAIN.replace("PAUSE", str(pause_s)))
    config = detcore.ray_config(
        entrypoint="python3 train.py",
        resources={"slots_per_trial": 2},
        max_restarts=1,
        launcher={"strategy": "STRICT_SPREAD"},
    )
    process = detcore.start("run", config, model_dir)
    victim = nodes.of_process(detcore.pids(2 if kills else 1)[1])
    before = len(detcore.committed())
    if kills:
        detcore.has_checkpoints(before + 1)
        nodes.kill(victim)
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stdout + stderr
    trial_id = 2 if kills else 1
    assert detcore.trial(trial_id).num_restarts == kills
    path = detcore.home / "checkpoints" / detcore.latest(trial_id) / "state.pt"
    state: dict[str, Any] = torch.load(path)
    return state


@pytest.mark.soak
def test_process_group_recovers_from_node_death(
    detcore: RayRuns, nodes: RayNodes, tmp_path: Path
) -> None:
    """The trial restarts on the remaining nodes, and its result is bit-exact."""
    expected = run(detcore, nodes, tmp_path / "expected", pause_s=0.0, kills=False)
    state = run(detcore, nodes, tmp_path / "killed", pause_s=0.2, kills=True)
    assert state["steps"] == expected["steps"] == 40
    assert {name: value.tolist() for name, value in state["model"].items()} == {
        name: value.tolist() for name, value in expected["model"].items()
    }
