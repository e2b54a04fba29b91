"""Small training programs without detcore, some of which do not resume exactly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from library_programs import LIBRARY_PROGRAMS

__all__ = ["FAULTS", "OUTPUT", "run_by_hand", "write_program"]

OUTPUT = "final"
NUM_STEPS = 24
# `python train.py` starts and `python train.py --resume` resumes. KILL_AT is used by hand only.
PROGRAM = """
import json, os, signal, struct, sys, time
import numpy as np

FAULT, KIND = {fault!r}, {kind!r}
x = np.random.default_rng(3).normal(size=(40, 50))
y = x @ np.ones(50)
w, momentum, rate, start = np.zeros(50), np.zeros(50), 0.02, 0
noise = np.random.default_rng(4 if FAULT != "seed" else None)
order = np.random.default_rng(5)
indices = order.permutation(40)
if "--resume" in sys.argv and FAULT != "start over":
    with np.load("checkpoint.npz") as file:
        w, start = file["w"], int(file["step"])
        if FAULT != "optimizer":
            momentum = file["momentum"]
        if FAULT != "schedule":
            rate = float(file["rate"])
        if FAULT != "generator":
            noise.bit_generator.state = json.loads(str(file["noise"]))
        if FAULT != "order":
            indices = file["indices"]
            order.bit_generator.state = json.loads(str(file["order"]))
for step in range(start, {num_steps}):
    if step % 10 == 0 and step:
        indices = order.permutation(40)
    batch = indices[step % 10 * 4 : step % 10 * 4 + 4]
    if FAULT == "position" and "--resume" in sys.argv:
        batch = indices[(step - start) % 10 * 4 : (step - start) % 10 * 4 + 4]
    inputs = x[batch] + noise.normal(scale=0.1, size=(4, 50))
    momentum = 0.9 * momentum + inputs.T @ (inputs @ w - y[batch]) / 4
    w = w - rate * momentum
    rate *= 0.99
    if (step + 1) % 3 == 0:
        np.savez(
            "partial.npz", w=w, momentum=momentum, rate=rate, step=step + 1, indices=indices,
            noise=json.dumps(noise.bit_generator.state),
            order=json.dumps(order.bit_generator.state),
        )
        os.replace("partial.npz", "checkpoint.npz")
    if step + 1 == int(os.environ.get("KILL_AT", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
os.mkdir("final")
if KIND == "npy":
    np.save("final/w.npy", w)
    np.save("final/rate.npy", rate)
elif KIND == "safetensors":
    header = {{"w": {{"dtype": "F64", "shape": [50], "data_offsets": [0, 400]}}}}
    text = json.dumps(header).encode()
    open("final/w.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + w.tobytes())
elif KIND == "h5":
    import h5py
    with h5py.File("final/w.h5", "w") as file:
        file["layer/w"] = w
elif KIND == "torch":
    import torch
    torch.save({{"model": {{"w": torch.from_numpy(w).float()}}, "rate": rate}}, "final/w.pt")
elif KIND == "text":
    open("final/w.txt", "w").write(repr(w.tolist()))
else:
    np.savez("final/w.npz", w=w, rate=rate)
"""
# Each fault, and the format of the output.
FAULTS = {
    "none": "npz",
    "start over": "npy",
    "optimizer": "safetensors",
    "schedule": "npz",
    "generator": "npy",
    "order": "npz",
    "position": "safetensors",
    "seed": "npz",
    "nothing": "safetensors",
    "optimizer ": "text",
}


def write_program(folder: Path, fault: str, kind: str) -> None:
    """Write ``train.py`` with a fault, whose output has a format, or that uses a library."""
    folder.mkdir(parents=True)
    program = LIBRARY_PROGRAMS.get(kind, PROGRAM).format(
        fault=fault.strip(), kind=kind, num_steps=NUM_STEPS
    )
    (folder / "train.py").write_text(program)


def run_by_hand(folder: Path, fault: str, kind: str) -> bool:
    """Train uninterrupted and with two kills; return whether the output has the same bytes."""
    outputs = []
    for name, kills in (("one", []), ("other", [7, 17])):
        write_program(folder / name, fault, kind)
        options: list[str] = []
        for kill in (*kills, 0):
            process = subprocess.run(
                [sys.executable, "train.py", *options],
                cwd=folder / name,
                env={**os.environ, "KILL_AT": str(kill)},
                check=False,
            )
            assert process.returncode == (-signal.SIGKILL if kill else 0)
            options = ["--resume"]
        # Hugging Face also saves a pickle of the arguments.
        files = [
            path for path in sorted((folder / name / OUTPUT).iterdir()) if path.suffix != ".bin"
        ]
        outputs.append([_read_numbers(path) for path in files])
    return outputs[0] == outputs[1]


def _read_numbers(path: Path) -> bytes:
    if path.suffix != ".npz":
        return path.read_bytes()
    import numpy as np

    with np.load(path) as file:
        return b"".join(file[name].tobytes() for name in sorted(file.files))
