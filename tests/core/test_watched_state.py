"""Loops with the Core API whose state is watched: each resume is checked."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from detcore.core.state_parts import name_parts
from detcore.data import convert_array
from detcore.errors import InvalidDataTypeError

# Killed at step 28, after a checkpoint at step 20.
SCRIPT = """
import json, os, signal, sys
import numpy as np
from detcore import core

FAULT = ""
noise = np.random.default_rng(3)  # saved, except with a fault
with core.init(resume=True) as context:
    weights, moments, steps = np.zeros(3), [0.0], context.info.steps_completed
    is_resumed = context.info.latest_checkpoint is not None
    if is_resumed:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            state = json.loads((path / "state.json").read_text())
        weights = np.array(state["weights"])
        if FAULT != "moment":
            moments[:] = state["moments"]
        if FAULT != "noise":
            noise.bit_generator.state = state["noise"]

    def state():
        parts = {"model": {"weights": weights}, "optimizer": {"groups": [{"moments": moments}]}}
        return parts if FAULT == "noise" else {**parts, "noise": noise.bit_generator.state}

    context.watch_state(state)
    while steps < 40:
        steps += 1
        batch = np.full(3, float(steps)) + noise.normal(size=3)
        context.train.digest_batch(steps, content=[batch])
        moments[0] = 0.9 * moments[0] + batch.mean()
        weights += 0.1 * moments[0]
        if steps % 5 == 0:
            context.train.report_training_metrics(steps, {"norm": float(abs(weights).sum())})
        if steps == 28 and not is_resumed:
            os.kill(os.getpid(), signal.SIGKILL)
        if steps % 20 == 0:
            document = {"weights": weights.tolist(), "moments": moments,
                        "noise": noise.bit_generator.state}
            def write(path):
                (path / "state.json").write_text(json.dumps(document))
            SAVE
"""
SAVES = {
    "store_path": """with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                write(path)""",
    "save_async": """context.checkpoint.save_async(write, {"steps_completed": steps})
            context.checkpoint.wait()""",
}


def run_killed(home: Any, *, save: str = "store_path", fault: str = "") -> tuple[int, str]:
    """Kill a script and resume it; return the exit code and the output of the resumed run."""
    script = SCRIPT.replace("SAVE", SAVES[save]).replace('FAULT = ""', f'FAULT = "{fault}"')
    code, _, stderr = home.run(script)
    assert code == -9, stderr
    code, _, stderr = home.run(script)
    return code, stderr


def read_resumes(home: Any) -> list[dict[str, Any]]:
    with home.database() as database:
        return [dict(event.payload) for event in database.events(1, "resume_compared")]


@pytest.mark.parametrize("save", SAVES)
def test_exact_loop_is_recorded(home: Any, save: str) -> None:
    code, stderr = run_killed(home, save=save)
    assert code == 0, stderr
    assert read_resumes(home) == [
        {"start_step": 20, "last_step": 25, "num_compared": 5, "difference": None}
    ]
    (audit, _) = sorted(home.path.rglob("audit.json"))
    assert {"model.weights", "optimizer.groups.0.moments", "noise.state.state"} <= set(
        json.loads(audit.read_text())["parts"]
    )


def test_unrestored_part_is_an_error(home: Any) -> None:
    code, stderr = run_killed(home, fault="moment")
    assert code == 1
    assert "optimizer.groups.0.moments was saved and not restored" in stderr
    assert read_resumes(home) == []


def test_unwatched_generator_is_reported(home: Any) -> None:
    code, stderr = run_killed(home, fault="noise")
    assert code == 0, stderr
    (record,) = read_resumes(home)
    assert record["difference"] == {"step": 21, "kind": "record content", "tensors": []}
    assert "differ from the earlier run: step 21, record content" in stderr


def test_parts_are_named_by_keys_and_indices() -> None:
    tree = {"a": {"b": [np.ones(2), {"c": None}]}, "random": (3, (1, 2), 0.5), 4: "text"}
    assert list(name_parts(tree)) == ["a.b.0", "a.b.1.c", "random.0", "random.1", "random.2", "4"]
    with pytest.raises(InvalidDataTypeError, match=r"part 'a\.0' of the watched state is"):
        name_parts({"a": [object()]})


class Tensor:
    """A tensor that NumPy can read only after it was detached and moved, like PyTorch's."""

    def __init__(self, *, is_detached: bool = False) -> None:
        self._is_detached = is_detached

    def __array__(self, *args: Any, **options: Any) -> Any:
        if not self._is_detached:
            raise RuntimeError("it requires a gradient")
        return np.arange(3.0)

    def detach(self) -> Tensor:
        return Tensor(is_detached=True)

    def cpu(self) -> Tensor:
        return self


def test_tensor_with_gradient_is_converted() -> None:
    assert convert_array(Tensor()).tolist() == [0.0, 1.0, 2.0]
