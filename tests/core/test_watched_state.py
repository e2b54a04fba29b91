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


# Statements that plant a fault, and the part that the error names.
FAULTS = {
    "optimizer slot": ("slots[0][1][:] = 0", "optimizer.0.1 was saved and not restored"),
    "missing slot": ("del slots[1]", "optimizer.1.0 was saved and not restored"),
    "swapped slots": ("slots[0].reverse()", "optimizer.0.0 was saved and not restored"),
    "weight": ("weights[1, 2] += 1e-12", "model.weights was saved and not restored"),
    "layout": ("weights = np.asfortranarray(weights)", "model.weights was saved with the strides"),
    "type": ("weights = weights.astype('f4')", "model.weights was saved as float64"),
    "swapped average": ("weights, average = average, weights", "average was saved and not"),
    "schedule": ("counts['schedule']['step'] = 0", "schedule.step was saved and not restored"),
    "scaler": ("counts['scaler']['scale'] = 8.0", "scaler.scale was saved and not restored"),
    "counter": ("counts['wait'] = 0", "wait was saved and not restored"),
    "data position": ("counts['position'][1] = 19", "position was saved and not restored"),
    "flag": ("counts['frozen'] = False", "frozen was saved and not restored"),
    "own generator": ("noise.random()", "random.noise.state.state was saved and not restored"),
    "Python's generator": ("random.random()", "random.python.1 was saved and not restored"),
    "text": ("counts['mode'] = 'train'", "mode was saved as"),
}
FAULTY_SCRIPT = """
import json, os, pickle, random, signal
import numpy as np
from detcore import core
from detcore.errors import InexactResumeError

noise = np.random.default_rng(3)
weights, average, slots = np.zeros((2, 3)), np.zeros((2, 3)), [[np.ones(3), np.zeros(3)], [[0.5]]]
counts = {"schedule": {"step": 0}, "scaler": {"scale": 8.0}, "wait": 0, "position": [0, 0],
          "frozen": False, "mode": "train"}

def state():
    generators = {"noise": noise.bit_generator.state, "python": random.getstate()}
    return {"model": {"weights": weights}, "average": average, "optimizer": slots, **counts,
            "random": generators}

def find_error(statement):
    source, target = os.pipe()
    drawn = random.getstate()
    if os.fork() == 0:
        random.setstate(drawn)  # Python seeds it again in a child
        exec(statement, globals())
        try:
            context.watch_state(state)
            os.write(target, b"silent")
        except InexactResumeError as error:
            os.write(target, str(error).encode())
        os._exit(0)
    os.close(target)
    with os.fdopen(source) as file:
        return file.read()

with core.init(resume=True) as context:
    steps = context.info.steps_completed
    if steps:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            weights, average, slots, counts, noise, drawn = pickle.loads(
                (path / "state.pkl").read_bytes())
        random.setstate(drawn)
        print(json.dumps({name: find_error(statement) for name, statement in FAULTS.items()}))
    context.watch_state(state)
    while steps < 30:
        steps += 1
        weights += noise.normal(size=3) * random.random()
        average += 0.1 * (weights - average)
        slots[0][1] += weights[0]
        counts["schedule"]["step"], counts["wait"], counts["position"][1] = steps, steps, steps
        counts["scaler"]["scale"], counts["frozen"], counts["mode"] = 2.0 * steps, True, "tune"
        context.train.report_training_metrics(steps, {"norm": float(abs(weights).sum())})
        if steps == 20:
            with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                content = (weights, average, slots, counts, noise, random.getstate())
                (path / "state.pkl").write_bytes(pickle.dumps(content))
        if steps == 25 and not context.info.steps_completed:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_faults_are_named(home: Any) -> None:
    script = f"FAULTS = { {name: fault for name, (fault, _) in FAULTS.items()} }{FAULTY_SCRIPT}"
    code, _, stderr = home.run(script)
    assert code == -9, stderr
    code, stdout, stderr = home.run(script)
    assert code == 0, stderr
    assert [record["difference"] for record in read_resumes(home)] == [None]
    errors = json.loads(stdout)
    for name, (_, part) in FAULTS.items():
        assert part in errors[name], f"{name}: {errors[name]}"


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
