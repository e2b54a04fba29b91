"""Read the tensors of files without running code in them, and compare two sets of files."""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.errors import RunError
from detcore_replay.diverge.digest_comparison import measure_difference
from detcore_replay.resume_check.check_result import format_counts

Array = npt.NDArray[Any]

_NUMPY_TYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
# TensorFlow writes the graph of Python objects, which contains no values.
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorDifference:
    """A tensor that differs between two files.

    Attributes:
        file: The file, relative to the compared directory.
        tensor: Name of the tensor.
        reason: How it differs.
    """

    file: str
    tensor: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileComparison:
    """The comparison of two sets of files.

    Attributes:
        num_tensors: Number of compared tensors.
        num_files: Number of files that contain them, or of all files if none contains tensors.
        differences: The tensors or files that differ.
        notes: Files that were not compared as tensors, with the reason.
    """

    num_tensors: int
    num_files: int
    differences: tuple[TensorDifference, ...]
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
    names = list(dict.fromkeys([*_list_files(one), *_list_files(other)]))
    differences: list[TensorDifference] = []
    unread: dict[str, str] = {}
    num_tensors = num_files = 0
    for name in names:
        files = (one / name, other / name)
        missing = [place for place, file in zip(("uninterrupted", "resumed"), files, strict=True)
                   if not file.exists()]  # fmt: skip
        tensors, reason = _read_files([file for file in files if file.exists()])
        if missing and tensors:
            differences.append(_describe_file(name, f"does not exist after the {missing[0]} run"))
        elif tensors:
            num_files += 1
            num_tensors += len(tensors[0])
            differences += _compare_tensors(name, *tensors)
        elif missing:
            unread[name] = f"does not exist after the {missing[0]} run"
        elif files[0].read_bytes() != files[1].read_bytes():
            unread[name] = f"has different bytes{reason}"
    if num_files or differences:
        notes = tuple(f"not compared: {name or one.name} {text}" for name, text in unread.items())
        return FileComparison(
            num_tensors=num_tensors,
            num_files=num_files,
            differences=tuple(differences),
            notes=notes,
        )
    return FileComparison(
        num_tensors=0,
        num_files=len(names),
        differences=tuple(_describe_file(name, text) for name, text in unread.items()),
        notes=("no file has tensors of a known format, so bytes were compared",),
    )


def _list_files(path: Path) -> list[str]:
    """Return the relative names of files; "" for a single file."""
    if path.is_file() or not path.exists():
        return [""] if path.exists() else []
    files = sorted(file for file in path.rglob("*") if file.is_file())
    # The tensors of a TensorFlow checkpoint are read with its index.
    return [str(file.relative_to(path)) for file in files if ".data-0" not in file.name]


def _describe_file(name: str, reason: str) -> TensorDifference:
    return TensorDifference(file=name, tensor="", reason=reason)


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
        if kind == "BF16":
            tensors[name] = _widen(np.frombuffer(content, "<u2")).reshape(entry["shape"])
        elif kind in _NUMPY_TYPES:
            tensors[name] = np.frombuffer(content, _NUMPY_TYPES[kind]).reshape(entry["shape"])
        else:  # types that NumPy does not have, such as F8_E4M3
            tensors[name] = np.frombuffer(content, "u1")
    return tensors


def _widen(values: Array) -> Array:
    """Return bfloat16 values, given as integers, as float32."""
    return (values.astype("<u4") << 16).view("<f4")


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
        yield (
            name,
            np.asarray(value) if isinstance(value, bool | int | float) else np.asarray(repr(value)),
        )


def _compare_tensors(
    file: str, one: Mapping[str, Array], other: Mapping[str, Array]
) -> Iterator[TensorDifference]:
    for name in dict.fromkeys([*one, *other]):
        if name not in one or name not in other:
            which = "uninterrupted" if name not in one else "resumed"
            reason = f"does not exist after the {which} run"
        elif (one[name].dtype, one[name].shape) != (other[name].dtype, other[name].shape):
            reason = " and ".join(f"{a[name].dtype}{list(a[name].shape)}" for a in (one, other))
        elif _get_bytes(one[name]) != _get_bytes(other[name]):
            reason = _describe_values(one[name], other[name])
        else:
            continue
        yield TensorDifference(file=file, tensor=name, reason=reason)


def _get_bytes(array: Array) -> bytes:
    return repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()


def _describe_values(one: Array, other: Array) -> str:
    text = f"{one.dtype}{list(one.shape)}"
    if not one.dtype.hasobject:
        rows = [np.ascontiguousarray(array).reshape(-1).view("u1") for array in (one, other)]
        is_different = (rows[0] != rows[1]).reshape(one.size, -1).any(axis=1)
        text += f", {np.count_nonzero(is_different)} of {one.size} values differ"
    measured = measure_difference(one, other)
    return text if measured is None else f"{text}, by up to {measured[0]:.3g}"
