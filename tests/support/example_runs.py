"""The examples, run as a user runs them, and small files for them to read."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from toy_command import Detcore, Finished

__all__ = ["EXAMPLES", "checkpoint_of", "run_example", "short", "write_idx"]

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


def short(batches: int, *, metric: str = "val_accuracy") -> dict[str, Any]:
    """Return the settings of a run of a few batches that validates at its end only."""
    searcher = {"name": "single", "metric": metric, "smaller_is_better": False}
    return {
        "searcher": {**searcher, "max_length": {"batches": batches}},
        "min_validation_period": {"batches": 0},
        "min_checkpoint_period": {"batches": 0},
    }


def checkpoint_of(detcore: Detcore, finished: Finished) -> Path:
    """Return the folder of the only trial's latest checkpoint."""
    (trial,) = finished.summary["trials"]
    uuid: str = trial["latest_checkpoint"]
    return detcore.home / "checkpoints" / uuid


def write_idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    """Write an IDX file of bytes, compressed if its name says so."""
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
