"""Run the examples like a user, and create small data files for them."""

from __future__ import annotations

import gzip
import importlib.util
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import yaml
from toy_command import Detcore, Finished

__all__ = [
    "EXAMPLES", "check_digits", "checkpoint_of", "idx_bytes", "load_module", "run_example",
    "run_script", "short", "write_idx", "write_pictures",
]  # fmt: skip

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(
    detcore: Detcore, example: str, *arguments: str, file: str = "const.yaml", **changes: Any
) -> Finished:
    """Run an example's own experiment file with some settings changed."""
    folder = EXAMPLES / example
    plain = yaml.safe_load((folder / file).read_text())
    path = detcore.tmp_path / "const.yaml"
    path.write_text(yaml.safe_dump({**plain, **changes}))
    return detcore("run", path, folder, "--json", *arguments, timeout_s=240)


def check_digits(detcore: Detcore, example: str, *arguments: str, epochs: int = 15) -> Finished:
    """Check that an example reaches 97 percent within a minute, and return the run."""
    # CPU time, because wall-clock time depends on the load of the machine.
    before = os.times()
    finished = run_example(detcore, example, *arguments)
    after = os.times()
    assert finished.code == 0, finished.stderr
    (trial,) = finished.summary["trials"]
    assert trial["steps_completed"] == epochs * 45
    assert trial["best_validation"] >= 0.97
    assert 1 < sum(after[2:4]) - sum(before[2:4]) < 60
    return finished


def run_script(script: str, *arguments: object) -> str:
    """Run a script like a user, and return the last line of its output."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1]


def short(batches: int, *, metric: str = "val_accuracy") -> dict[str, Any]:
    """Return settings for a few batches and one validation at the end."""
    searcher = {"name": "single", "metric": metric, "smaller_is_better": False}
    return {
        "searcher": {**searcher, "max_length": {"batches": batches}},
        "min_validation_period": {"batches": 0},
        "min_checkpoint_period": {"batches": 0},
    }


def checkpoint_of(detcore: Detcore, finished: Finished) -> Path:
    """Return the directory of the only trial's latest checkpoint."""
    (trial,) = finished.summary["trials"]
    uuid: str = trial["latest_checkpoint"]
    return detcore.home / "checkpoints" / uuid


def load_module(example: str, name: str) -> ModuleType:
    """Import a module of an example under a unique name."""
    path = EXAMPLES / example / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{example}_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def idx_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """Encode an array as an IDX file of unsigned bytes."""
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    return header + array.astype(np.uint8).tobytes()


def write_idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    """Write an IDX file of bytes, compressed if its name ends with ``.gz``."""
    content = idx_bytes(array)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_pictures(folder: Path, suffix: str) -> None:
    """Write MNIST's four files with 1000 images, in which a bright column shows the label."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 800), ("t10k", 200)):
        labels = rng.integers(0, 10, size=count)
        images = rng.integers(0, 64, size=(count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            image[:, 2 * label : 2 * label + 8] += 150
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", labels)
