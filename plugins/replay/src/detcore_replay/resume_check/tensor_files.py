"""Read the tensors of files without running code in them, and compare two sets of files."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.data import digest_array
from detcore.errors import RunError
from detcore_replay.diverge.digest_comparison import measure_difference
from detcore_replay.resume_check.check_result import format_counts

Array = npt.NDArray[Any]

_PLACES = ("uninterrupted", "resumed")
_NO_TENSORS = "no file has tensors of a known format, so bytes were compared"
# Kinds of numbers in safetensors and in NumPy.
_KINDS = {"F": "f", "I": "i", "U": "u"}
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
# TensorFlow writes the graph of Python objects, which contains no values.
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileComparison:
    """The comparison of two sets of files.

    Attributes:
        num_tensors: Number of compared tensors.
        num_files: Number of files that contain them, or of all files if none contains tensors.
        differences: The tensors or files that differ, as lines.
        notes: Files that were not compared as tensors, with the reason.
    """

    num_tensors: int
    num_files: int
    differences: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def counts(self) -> str:
        """Such as "3 tensors in 1 file"."""
        files = format_counts(file=self.num_files)
        if not self.num_tensors:
            return files
        return f"{format_counts(tensor=self.num_tensors)} in {files}"


def compare_files(one: Path, other: Path) -> FileComparison:
    """Compare the tensors below two paths bit by bit.

    Files without tensors only count if no file has tensors.

    Raises:
        RunError: If the package that reads a file is not installed.
    """
    differences: list[str] = []
    unread: list[str] = []
    num_tensors = num_files = 0
    names = dict.fromkeys([*_list_files(one), *_list_files(other)])
    for name in names:
        files = (one / name, other / name)
        tensors, reason = _read_files([file for file in files if file.exists()])
        places = [place for place, file in zip(_PLACES, files, strict=True) if not file.exists()]
        label = name or one.name
        if places:
            lines = differences if tensors else unread
            lines.append(f"{label} does not exist after the {places[0]} run")
        elif tensors:
            num_files += 1
            num_tensors += len(tensors[0])
            differences += [f"{label}: {line}" for line in _compare_tensors(*tensors)]
        elif files[0].read_bytes() != files[1].read_bytes():
            unread.append(f"{label} has different bytes{reason}")
    has_tensors = bool(num_files or differences)
    notes = [f"not compared: {line}" for line in unread]
    return FileComparison(
        num_tensors=num_tensors,
        num_files=num_files if has_tensors else len(names),
        differences=tuple(differences if has_tensors else unread),
        notes=tuple(notes if has_tensors else [_NO_TENSORS]),
    )


def _list_files(path: Path) -> list[str]:
    """Return the relative names of files; "" for a single file."""
    if path.is_file() or not path.exists():
        return [""] if path.exists() else []
    files = sorted(file for file in path.rglob("*") if file.is_file())
    # The tensors of a TensorFlow checkpoint are read with its index.
    return [str(file.relative_to(path)) for file in files if ".data-0" not in file.name]


def _read_files(files: Sequence[Path]) -> tuple[list[dict[str, Array]], str]:
    """Return the tensors of each file, or an empty list and the reason."""
    try:
        tensors = [read_tensors(file) for file in files]
    except ImportError as error:
        raise RunError(
            f"{files[0].name} cannot be read, because {error.name} is not installed.\n"
            f"Install it here:  pip install {error.name}"
        ) from error
    except Exception as error:  # noqa: BLE001  (readers raise many types for unknown content)
        reason = str(error).partition("\n")[0]
        return [], f" and cannot be read as tensors ({type(error).__name__}: {reason})"
    return [part for part in tensors if part is not None], ""


def read_tensors(path: Path) -> dict[str, Array] | None:
    """Return the tensors in a file by name; None for an unknown format. Nothing is unpickled."""
    name, suffix = path.name, path.suffix
    if suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    if suffix == ".npy":
        return {"array": np.load(path, allow_pickle=False)}
    if suffix == ".safetensors":
        return _read_safetensors(path.read_bytes())
    if suffix in (".h5", ".hdf5"):
        return _read_hdf5(path.read_bytes())
    if suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            return _read_hdf5(archive.read("model.weights.h5"))
    if suffix == ".index":
        return _read_tensorflow(str(path.with_name(name.removesuffix(".index"))))
    if suffix in _TORCH_SUFFIXES:
        import torch

        return dict(_flatten(torch.load(path, map_location="cpu", weights_only=True), ""))
    return None


def _read_safetensors(data: bytes) -> dict[str, Array]:
    end = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:end]).items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        content, kind = data[end + start : end + stop], entry["dtype"]
        array: Array = np.frombuffer(content, "u1")  # also for types that NumPy does not have
        if kind == "BF16":
            array = (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4")
        elif kind[1:].isdigit():
            array = np.frombuffer(content, f"<{_KINDS[kind[0]]}{int(kind[1:]) // 8}")
        is_whole = array.size == math.prod(entry["shape"])
        tensors[name] = array.reshape(entry["shape"]) if is_whole else array
    return tensors


def _read_hdf5(data: bytes) -> dict[str, Array]:
    import h5py

    tensors: dict[str, Array] = {}
    with h5py.File(io.BytesIO(data), "r") as file:

        def add(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                tensors[name] = np.asarray(item[()])

        file.visititems(add)
    return tensors


def _read_tensorflow(prefix: str) -> dict[str, Array]:
    import tensorflow

    reader = tensorflow.train.load_checkpoint(prefix)
    names = sorted(reader.get_variable_to_shape_map())
    return {name: np.asarray(reader.get_tensor(name)) for name in names if name != _OBJECT_GRAPH}


def _flatten(value: Any, name: str) -> Iterator[tuple[str, Array]]:
    """Yield the tensors and values of nested containers with their paths."""
    import torch

    if isinstance(value, torch.Tensor):
        exact = value.float() if value.dtype is torch.bfloat16 else value
        yield name, exact.detach().cpu().resolve_conj().resolve_neg().numpy()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _flatten(item, f"{name}.{index}" if name else str(index))
    else:
        is_number = isinstance(value, bool | int | float)
        yield name, np.asarray(value if is_number else repr(value))


def _compare_tensors(one: Mapping[str, Array], other: Mapping[str, Array]) -> Iterator[str]:
    for name in dict.fromkeys([*one, *other]):
        pair = [part[name] for part in (one, other) if name in part]
        if len(pair) < 2:
            yield f"{name} does not exist after the {_PLACES[name in one]} run"
        elif (pair[0].dtype, pair[0].shape) != (pair[1].dtype, pair[1].shape):
            kinds = " and ".join(f"{array.dtype}{list(array.shape)}" for array in pair)
            yield f"{name} is {kinds}"
        elif digest_array(pair[0]) != digest_array(pair[1]):
            yield f"{name} {_describe_values(*pair)}"


def _describe_values(one: Array, other: Array) -> str:
    text = f"{one.dtype}{list(one.shape)}"
    if not one.dtype.hasobject:
        rows = [np.ascontiguousarray(array).reshape(-1).view("u1") for array in (one, other)]
        is_different = (rows[0] != rows[1]).reshape(one.size, -1).any(axis=1)
        text += f", {np.count_nonzero(is_different)} of {one.size} values differ"
    measured = measure_difference(one, other)
    return text if measured is None else f"{text}, by up to {measured[0]:.3g}"
