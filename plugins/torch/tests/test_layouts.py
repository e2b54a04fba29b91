"""Restored tensors have the saved memory layout, which determines the order of sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _lab import Lab, LineTrial
from torch.nn import functional

from detcore.errors import InvalidCheckpointError
from detcore_torch.state.state_files import StateFiles, read_tensors
from detcore_torch.state.tensor_tree import decode_tree, encode_tree


class LBFGSTrial(LineTrial):
    """LBFGS with a closure, as in tutorials."""

    def __init__(self, context: Any) -> None:
        self.context = context
        layers = torch.nn.Linear(3, 37), torch.nn.Tanh(), torch.nn.Linear(37, 1)
        self.model = context.wrap_model(torch.nn.Sequential(*layers))
        optimizer = torch.optim.LBFGS(self.model.parameters(), 0.1, max_iter=4, history_size=5)
        self.optimizer = context.wrap_optimizer(optimizer)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        x, y = (tensor.float() for tensor in batch)

        def compute_loss() -> Any:
            self.optimizer.zero_grad()
            loss = functional.mse_loss(self.model(x), y)
            loss.backward()
            return loss

        return {"loss": self.optimizer.step(compute_loss)}


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_lbfgs_resumes_bit_exactly(tmp_path: Path, cut: int) -> None:
    expected = Lab(LBFGSTrial).train(14)
    Lab(LBFGSTrial).train(cut).save(tmp_path)
    later = Lab(LBFGSTrial, steps_completed=cut).restore(tmp_path).train(14)
    for name, value in expected.trial.model.state_dict().items():
        assert torch.equal(later.trial.model.state_dict()[name], value), name


def restored(tensors: dict[str, Any], folder: Path, *, copied: bool) -> dict[str, Any]:
    files = StateFiles()
    files.add_tensors("file.safetensors", tensors)
    (files.copy_tensors() if copied else files).write(folder)
    return read_tensors(folder / "file.safetensors")


def unusual_tensors() -> dict[str, Any]:
    flat = torch.arange(100.0)
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    return {
        "flat": flat,
        "middle": flat[7:27].view(4, 5),
        "column": flat[:90].view(9, 10)[:, 3],
        "same": flat,
        "images": images,
        "transposed": torch.randn(6, 7).t(),
        "expanded": torch.randn(4, 1).expand(4, 5),
        "everywhere": torch.tensor(2.0).expand(3),
        "slice": torch.randn(50, dtype=torch.float64)[3:20],
        "odd": torch.arange(40, dtype=torch.uint8)[5:9],
        "scalar": torch.tensor(3.5),
        "none": torch.zeros(0, 3),
        "windows": torch.arange(9.0).unfold(0, 3, 1),
        "bfloat16": torch.randn(3, 4, dtype=torch.bfloat16).t(),
    }


@pytest.mark.parametrize("copied", [False, True])
def test_layouts_are_restored(tmp_path: Path, copied: bool) -> None:
    tensors = unusual_tensors()
    result = restored(tensors, tmp_path, copied=copied)
    assert result.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(result[name], tensor), name
        assert result[name].stride() == tensor.stride(), name
        offset = tensor.storage_offset() * tensor.element_size()
        assert not tensor.numel() or result[name].data_ptr() % 64 == offset % 64, name
    result["flat"].fill_(-1)
    shared = [name for name, tensor in result.items() if tensor.numel() and (tensor == -1).all()]
    assert shared == ["column", "flat", "middle", "same"]


def test_file_does_not_depend_on_addresses(tmp_path: Path) -> None:
    files = []
    for number in range(8):
        allocations = [
            torch.empty(11 * number + 1) for _ in range(number)
        ]  # moves later allocations
        torch.manual_seed(1)
        folder = tmp_path / str(number)
        folder.mkdir()
        restored(unusual_tensors(), folder, copied=bool(number % 2))
        files.append((folder / "file.safetensors").read_bytes())
        assert len(allocations) == number
    assert len(set(files)) == 1


def test_array_keeps_memory_order(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {}
    array = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    encoded = encode_tree({"array": array}, tensors, "state")
    result = decode_tree(encoded, restored(tensors, tmp_path, copied=True))["array"]
    assert np.array_equal(result, array)
    assert result.strides == array.strides


def test_layout_that_does_not_fit_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    restored({"x": torch.randn(3, 4).t()}, tmp_path, copied=False)
    content = path.read_bytes()
    for layout in (b"[0, 0, [1, 9]]", b"[0, 0, [1]]   ", b"[0, -4, [1,4]]", b'"wrong"       '):
        escaped = layout.replace(b'"', b'\\"')[:14].ljust(14)
        assert content.count(b"[0, 0, [1, 4]]") == 1
        path.write_bytes(content.replace(b"[0, 0, [1, 4]]", escaped))
        if layout == b"[0, 0, [1, 9]]":  # other strides of the same numbers
            assert read_tensors(path)["x"].stride() == (1, 9)
            continue
        with pytest.raises(InvalidCheckpointError, match="is damaged"):
            read_tensors(path)
