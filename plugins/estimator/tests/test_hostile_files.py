"""Malicious files are rejected with specific messages, and none of their code runs."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from _determined import Trap, restore_variable, write_checkpoint, write_saved_model
from forged_bundles import STRING, index_entry, index_header, write_bundle
from test_load import write_ours

from detcore.errors import InvalidCheckpointError, UnsafePathError
from detcore_estimator.checkpoint.bundle_index import find_index_fault
from detcore_estimator.checkpoint.tensorflow_files import find_tensorflow_checkpoint
from detcore_estimator.load_checkpoint import load_estimator_from_checkpoint_path

DATA = struct.pack("<3f", 1, 2, 3)

# Index entries for ``w``, a variable of three floats in a data file of 12 bytes.
REFUSED_UNREAD: dict[str, tuple[dict[str, bytes], str]] = {
    "10 GB": ({"w": index_entry([2_500_000_000], size=10**10)}, "12 bytes, .* need 10000000000"),
    "shape overflows": ({"w": index_entry([2**40, 2**40], size=12)}, r"shape \[1099511627776, "),
    "overflow without bytes": ({"w": index_entry([2**62, 2**62, 0], size=0)}, "impossible shape"),
    "negative shape": ({"w": index_entry([-3], size=12)}, r"shape \[-3\]"),
    "unknown size": ({"w": index_entry([-1], size=12)}, r"shape \[-1\]"),
    "300 axes": ({"w": index_entry([1] * 300, size=4)}, "dimensions: 300"),
    "unknown type": ({"w": index_entry([3], dtype=99, size=12)}, "type number 99"),
    "negative size": ({"w": index_entry([3], size=-12)}, "-12 bytes at offset 0"),
    "negative offset": ({"w": index_entry([3], size=12, offset=-8)}, "12 bytes at offset -8"),
    "malformed entry": ({"w": b"\xff\xfe\xfd"}, "cannot be read"),
}
GOOD = index_entry([3], size=12, data=DATA)
REFUSED_READING: dict[str, dict[str, bytes]] = {
    "size of 10 GB": {"w": index_entry([3], size=10**10, data=DATA)},
    "small size": {"w": index_entry([3], size=1, data=DATA)},
    "offset beyond the end": {"w": index_entry([3], size=12, offset=10**12, data=DATA)},
    "string type": {"w": index_entry([3], dtype=STRING, size=12, data=DATA)},
    "wrong checksum": {"w": index_entry([3], size=12, data=b"another")},
    "many data files": {"": index_header(2**30), "w": GOOD},
}


@pytest.mark.parametrize("case", REFUSED_UNREAD)
def test_forged_index_is_rejected_unread(tmp_path: Path, case: str) -> None:
    entries, message = REFUSED_UNREAD[case]
    write_bundle(tmp_path / "model.ckpt-2", entries, DATA)
    with pytest.raises(InvalidCheckpointError, match=message):
        find_tensorflow_checkpoint(tmp_path)


@pytest.mark.parametrize("case", REFUSED_READING)
def test_forged_tensor_is_rejected_when_read(tmp_path: Path, case: str) -> None:
    write_bundle(tmp_path / "model.ckpt-2", REFUSED_READING[case], DATA)
    with pytest.raises(InvalidCheckpointError, match="cannot be read from") as refused:
        restore_variable(tmp_path)
    assert "Graph execution error" not in str(refused.value)


def test_correct_forged_index_is_read(tmp_path: Path) -> None:
    write_bundle(tmp_path / "model.ckpt-2", {"w": GOOD}, DATA)
    assert restore_variable(tmp_path) == [1.0, 2.0, 3.0]


def test_tensorflow_indexes_are_accepted(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 3)
    assert find_index_fault(tmp_path / "model.ckpt-3.index") is None
    content = (tmp_path / "model.ckpt-3.index").read_bytes()
    for size in range(len(content)):
        (tmp_path / "cut").write_bytes(content[:size])
        assert find_index_fault(tmp_path / "cut") is not None


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    marker = tmp_path / "pickle-was-loaded"
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("model.ckpt-2.index", "model.ckpt-2.data-00000-of-00001", "checkpoint"):
        (folder / name).write_bytes(pickle.dumps(Trap(marker)))
    with pytest.raises(InvalidCheckpointError, match="not the index of a checkpoint"):
        find_tensorflow_checkpoint(folder)
    assert not marker.exists()


def test_state_file_with_parent_path_is_ignored(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "secret", 9, 9.0)
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, 2, 2.0)
    (folder / "checkpoint").write_text('model_checkpoint_path: "../secret/model.ckpt-9"\n')
    assert find_tensorflow_checkpoint(folder) == folder / "model.ckpt-2"
    for path in folder.glob("model.ckpt-*"):
        path.unlink()
    with pytest.raises(InvalidCheckpointError, match="holds no TensorFlow checkpoint"):
        find_tensorflow_checkpoint(folder)


SAVED_MODEL_CASES: dict[str, tuple[str, bytes, str]] = {
    "garbage": ("saved_model.pb", b"\x00\xff" * 50, "damaged"),
    "text": ("saved_model.pb", b"not a model at all", "damaged|no graph with the tags"),
    "empty": ("saved_model.pb", b"", "no graph with the tags"),
    "garbage variables": ("variables/variables.index", b"junk", "not the index"),
}


@pytest.mark.parametrize("case", SAVED_MODEL_CASES)
def test_damaged_saved_models_are_rejected(tmp_path: Path, case: str) -> None:
    name, content, message = SAVED_MODEL_CASES[case]
    folder = write_ours(tmp_path / "c", "serving")
    (folder / "serving" / "1700000000" / name).write_bytes(content)
    with pytest.raises(InvalidCheckpointError, match=message):
        load_estimator_from_checkpoint_path(folder)


def test_saved_model_with_impossible_shapes(tmp_path: Path) -> None:
    folder = write_ours(tmp_path / "c")
    export = folder / "serving" / "1"
    write_saved_model(export)
    write_bundle(export / "variables" / "variables", {"w": index_entry([-1], size=12)}, DATA)
    with pytest.raises(InvalidCheckpointError, match=r"shape \[-1\]"):
        load_estimator_from_checkpoint_path(folder)


@pytest.mark.parametrize("content", ["[]", "{", '"text"', json.dumps({"framework": ["x"]})])
def test_malformed_descriptions_are_rejected(tmp_path: Path, content: Any) -> None:
    folder = write_ours(tmp_path / "c", "serving")
    (folder / "trial.json").write_text(content)
    with pytest.raises(InvalidCheckpointError, match=r"damaged|not of an EstimatorTrial"):
        load_estimator_from_checkpoint_path(folder)


def test_link_to_a_system_file_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, 2)
    path = folder / "model.ckpt-2.data-00000-of-00001"
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(UnsafePathError, match="outside of the checkpoint"):
        find_tensorflow_checkpoint(folder)
