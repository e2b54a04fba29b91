"""Files of a checkpoint: tensors as safetensors, all other values as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcore.errors import InvalidCheckpointError
from detcore.types import TensorInfo
from detcore_torch.state.tensor_layouts import Layout, describe_layouts, place_tensors
from detcore_torch.state.tensor_tree import decode_tree, encode_tree

_VERSION = 1
_MEMORY = "memory"  # the only header key: safetensors writes several keys in any order
_DAMAGED = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclasses.dataclass(slots=True)
class StateFiles:
    """The contents of a checkpoint's files.

    Attributes:
        tensors: Tensors by file and name; they may share memory with training.
        aliases: By file, names of tensors that share the memory of another tensor in the file.
        layouts: By file, memory layouts of tensors, as from `describe_layouts`.
        documents: JSON values by file.
    """

    tensors: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    aliases: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    layouts: dict[str, dict[str, Layout]] = dataclasses.field(default_factory=dict)
    documents: dict[str, Any] = dataclasses.field(default_factory=dict)

    def add_tensors(self, file: str, tensors: Mapping[str, Any]) -> None:
        """Add a file of tensors; tensors that share memory (tied weights) are written once."""
        names: dict[tuple[Any, ...], str] = {}
        unique: dict[str, Any] = {}
        for name, tensor in tensors.items():
            tensor = tensor.detach()
            key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
            if tensor.numel() and key in names:
                self.aliases.setdefault(file, {})[name] = names[key]
                continue
            names[key] = name
            unique[name] = tensor
        self.tensors[file] = unique
        self.layouts[file] = describe_layouts(unique)

    def add_state(self, name: str, state: Mapping[str, object]) -> None:
        """Add nested plain values and tensors as ``name.json`` and ``name.safetensors``.

        Raises:
            InvalidExperimentError: If a value would need a pickle.
        """
        tensors: dict[str, Any] = {}
        encoded = {k: encode_tree(value, tensors, f"{name}.{k}") for k, value in state.items()}
        self.documents[f"{name}.json"] = {"version": _VERSION, **encoded}
        self.add_tensors(f"{name}.safetensors", tensors)

    def copy_tensors(self) -> StateFiles:
        """Return files that share no memory with training."""
        tensors = {
            file: {name: tensor.to("cpu", copy=True) for name, tensor in table.items()}
            for file, table in self.tensors.items()
        }
        return StateFiles(tensors, self.aliases, self.layouts, self.documents)

    def write(self, directory: Path) -> None:
        """Write all files."""
        from safetensors.torch import save_file

        for file, table in self.tensors.items():
            plain = _separate_memory(table)
            aliases = self.aliases.get(file, {})
            layouts = {n: dataclasses.astuple(layout) for n, layout in self.layouts[file].items()}
            memory = json.dumps({"aliases": aliases, "layouts": layouts})
            metadata = {_MEMORY: memory} if aliases or layouts else None
            save_file(plain, directory / file, metadata=metadata)
        for file, value in self.documents.items():
            (directory / file).write_text(json.dumps(value), encoding="utf-8")

    def list_tensors(self) -> list[TensorInfo]:
        """Return the tensors' entries in the manifest."""
        return [
            TensorInfo(name, tuple(tensor.shape), str(tensor.dtype).partition(".")[2], file)
            for file, table in self.tensors.items()
            for name, tensor in table.items()
        ]


def _separate_memory(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return tensors on the CPU, each with separate memory, as the format requires."""
    separated = {}
    addresses: set[int] = set()
    for name, tensor in table.items():
        plain = tensor.cpu().contiguous()
        storage = plain.untyped_storage()
        if storage.nbytes() != plain.nbytes or storage.data_ptr() in addresses:
            plain = plain.clone()  # a view of a larger tensor, or of another tensor's memory
        addresses.add(plain.untyped_storage().data_ptr())
        separated[name] = plain
    return separated


def read_tensors(path: Path) -> dict[str, Any]:
    """Read a file of tensors to the CPU, with the memory layouts of the saved tensors.

    A tensor that was saved under several names is one tensor again.

    Raises:
        InvalidCheckpointError: If the file is missing or damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
            memory = json.loads((file.metadata() or {}).get(_MEMORY, "{}"))
            layouts = {name: Layout(*fields) for name, fields in memory.get("layouts", {}).items()}
            # Tensors in the file share memory that is not aligned.
            placed = place_tensors(tensors, layouts)
            placed |= {
                name: placed[original] for name, original in memory.get("aliases", {}).items()
            }
    except FileNotFoundError as error:
        raise InvalidCheckpointError(
            f"the checkpoint has no file {path}.\n"
            "It was copied only in part, or the file was deleted. Download the checkpoint again."
        ) from error
    except (SafetensorError, OSError, *_DAMAGED) as error:
        raise InvalidCheckpointError(
            f"{path} is damaged: {error}.\nRestore an earlier checkpoint, or download it again."
        ) from error
    return placed


def read_state(directory: Path, name: str) -> dict[str, Any]:
    """Read values that `StateFiles.add_state` added.

    Raises:
        InvalidCheckpointError: If they are missing, damaged, or of another version.
    """
    path = directory / f"{name}.json"
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidCheckpointError(
            f"{directory} has no file {path.name}, so it is not a checkpoint of a PyTorchTrial.\n"
            "Use the directory of a checkpoint that detcore-torch wrote, with all of its files."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointError(
            f"{path} is damaged: {error}.\nRestore an earlier checkpoint, or download it again."
        ) from error
    if not isinstance(state, dict) or state.get("version") != _VERSION:
        raise InvalidCheckpointError(
            f"{path} is not of version {_VERSION}.\n"
            "It was written by another version of detcore-torch, or the file was changed.\n"
            "Resume with the version that wrote the checkpoint."
        )
    decoded: dict[str, Any] = decode_tree(state, read_tensors(directory / f"{name}.safetensors"))
    decoded.pop("version")
    return decoded
