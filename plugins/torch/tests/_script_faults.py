"""Faults in the restored state of the scripts ``resumed_*.py``, each planted in a forked child."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from detcore.errors import InexactResumeError
from detcore.trial.clock import ScheduledPollingClock

FILE = "faults.json"
Plant = Callable[[], Any]


def misalign(tensor: Any) -> None:
    memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape)
    tensor.data = memory.copy_(tensor)


def swap(one: Any, other: Any) -> None:
    one.data, other.data = other.data.clone(), one.data.clone()


def list_faults(state: Any, network: Any, progress: Any) -> dict[str, Plant]:
    """Return functions that plant a fault, by its name.

    Args:
        state: The restored `TrainingState`.
        network: The `Network` of the script.
        progress: Its callback or registered object, a `Progress`.
    """
    (optimizer,), (scheduler,), (scaler,) = state.optimizers, state.schedulers, state.scalers
    first, last = optimizer.state[network.first.weight], optimizer.state[network.last.weight]
    scale = scaler.state_dict()
    return {
        "optimizer slot": lambda: first["exp_avg"].zero_(),
        "missing slot": lambda: last.pop("exp_avg_sq"),
        "swapped slots": lambda: swap(last["exp_avg"], last["exp_avg_sq"]),
        "misaligned slot": lambda: misalign(first["exp_avg"]),
        "step of the optimizer": lambda: last["step"].zero_(),
        "learning rate": lambda: optimizer.param_groups[0].update(lr=0.05),
        "weight": lambda: network.last.weight.data.mul_(1.001),
        "layout of a weight": lambda: network.first.weight.set_(
            network.first.weight.data.t().contiguous().t()
        ),
        "buffer": lambda: network.mean.zero_(),
        "buffer that is not persistent": lambda: network.seen.zero_(),
        "requires_grad": lambda: network.first.bias.requires_grad_(True),
        "mode of a module": lambda: network.dropout.train(not network.dropout.training),
        "attribute of a module": lambda: setattr(network.dropout, "p", 0.2),
        "scheduler": lambda: setattr(scheduler, "last_epoch", 0),
        "scaler": lambda: scaler.load_state_dict({**scale, "scale": 8.0}),
        "count of the scaler": lambda: scaler.load_state_dict({**scale, "_growth_tracker": 1}),
        "PyTorch's generator": lambda: torch.rand(1),
        "NumPy's generator": lambda: np.random.rand(),
        "Python's generator": lambda: random.random(),
        "counter": lambda: setattr(progress, "count", 0),
        "average": lambda: progress.average["last.bias"].zero_(),
        "swapped average": lambda: swap(network.last.weight, progress.average["last.weight"]),
        "own generator": lambda: progress.generator.random(),
    }


# The part that the error names. Lightning's module contains the network.
PARTS = {
    "optimizer slot": r"optimizer\.state\['(network\.)?first\.weight'\]\['exp_avg'\] was",
    "missing slot": r"optimizer\.state\['(network\.)?last\.weight'\]\['exp_avg_sq'\] was",
    "swapped slots": r"optimizer\.state\['(network\.)?last\.weight'\]\['exp_avg'\] was",
    "misaligned slot": r"\['(network\.)?first\.weight'\]\['exp_avg'\]\.alignment exists now",
    "step of the optimizer": r"optimizer\.state\['(network\.)?last\.weight'\]\['step'\] was",
    "learning rate": r"optimizer\.param_groups\[0\]\['lr'\] was",
    "weight": r"model\.(network\.)?last\.weight was",
    "layout of a weight": r"model\.(network\.)?first\.weight was saved with the strides",
    "buffer": r"model\.(network\.)?mean was",
    "buffer that is not persistent": r"model\.(network\.)?seen was",
    "requires_grad": r"first\.bias\.requires_grad was .* it was False and is True",
    "mode of a module": r"dropout\.training was",
    "attribute of a module": r"dropout\.p was",
    "scheduler": r"scheduler\.last_epoch was",
    "scaler": r"scaler\.scale was",
    "count of the scaler": r"scaler\.growth_tracker was .* and is 1",
    "PyTorch's generator": r"random\.torch was",
    "NumPy's generator": r"random\.numpy was",
    "Python's generator": r"random\.python was",
    "counter": r"Progress\W+count.* was",
    "average": r"Progress\W+average'?\]?\['last\.bias'\] was",
    "swapped average": r"model\.(network\.)?last\.weight was(.|\n)*Progress\W+average",
    "own generator": r"Progress\W+generator",
    "data position": r"data\.position was|trainer\.state\.global_step was",
}
LIBRARY_PARTS = {
    "trainer": {
        "end of training": r"trainer\.is_stopping was .* it was False and is True",
        "best metric": r"trainer\.state\.best_metric was",
        "counter of the library": r"callback EarlyStoppingCallback\.\w+_counter was",
        "best model": r"best model\['tensors'\]\['last\.bias'\] was",
        "attribute of the trainer": r"trainer\.num_losses was",
    },
    "lightning": {
        "end of training": r"trainer\.should_stop was .* it was False and is True",
        "metric": r"trainer\.callback_metrics\['val_loss'\] was",
        "counter of the library": r"callback EarlyStopping\['wait_count'\] was",
        "attribute of the model": r"model\.num_losses was",
    },
    "accelerate": {
        "variable of the loop": r"loop/count was .* it was 30 and is 31",
        "generator of the loop": r"loop/noise was",
    },
}


def plant_each(
    network: Any, progress: Any, more: Callable[[], Mapping[str, Plant]], *, is_resumed: bool
) -> None:
    """In a resumed process, plant each fault in a child, and write the errors to `FILE`."""
    watch = ScheduledPollingClock.watch

    def plant_and_watch(clock: Any, state: Any) -> None:
        faults = {**list_faults(state(), network, progress), **more()}
        errors = {name: _find_error(plant, clock, state) for name, plant in faults.items()}
        Path(FILE).write_text(json.dumps(errors))
        watch(clock, state)

    def _find_error(plant: Plant, clock: Any, state: Any) -> str:
        source, target = os.pipe()
        drawn = random.getstate()
        if os.fork() == 0:
            random.setstate(drawn)  # Python seeds it again in a child
            message = "silent"
            try:
                with torch.no_grad():
                    plant()
                watch(clock, state)
            except InexactResumeError as error:
                message = str(error)
            except BaseException as error:  # noqa: BLE001  # the end of the child, shown by the test
                message = f"the fault could not be planted: {error!r}"
            os.write(target, message.encode())
            os._exit(0)
        os.close(target)
        with os.fdopen(source) as file:
            message = file.read()
        os.wait()
        return message

    if is_resumed:
        ScheduledPollingClock.watch = plant_and_watch  # type: ignore[method-assign]
