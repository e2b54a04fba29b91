"""`detcore check-resume` on PyTorch trials, and the formats of PyTorch, safetensors and HDF5."""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
from checked_programs import OUTPUT, run_by_hand, write_program
from toy_command import Detcore

from detcore_replay.resume_check.tensor_files import compare_files, read_tensors

MODEL = """
import torch
from detcore_torch import DataLoader, PyTorchTrial

def draw_noise():
    generator = torch.Generator().manual_seed(5)
    while True:
        yield torch.randn(8, 8, generator=generator)

NOISE = draw_noise()

class Line(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        layers = torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
        self.model = context.wrap_model(torch.nn.Sequential(*layers))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters()))

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        x = x + {scale} * next(NOISE)
        loss = ((self.model(x)[:, 0] - y) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return dict(loss=loss)

    def evaluate_batch(self, batch):
        return dict(val_loss=((self.model(batch[0])[:, 0] - batch[1]) ** 2).mean())

    def build_training_data_loader(self):
        x = torch.randn(96, 8, generator=torch.Generator().manual_seed(3))
        return DataLoader(torch.utils.data.TensorDataset(x, x[:, 0]), 8, shuffle=True)

    def build_validation_data_loader(self):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(4))
        return DataLoader(torch.utils.data.TensorDataset(x, x[:, 0]), 8)
"""


@pytest.mark.parametrize("scale", [pytest.param(0.0, marks=pytest.mark.soak), 0.1])
def test_generator_of_torch_trial_is_named(tmp_path: Path, scale: float) -> None:
    with Detcore(tmp_path) as detcore:
        code = detcore.write_code("model_def.py", MODEL.format(scale=scale))
        config = detcore.write_config(
            {
                "name": "line",
                "entrypoint": "model_def:Line",
                "hyperparameters": {"global_batch_size": 8},
                "searcher": {"name": "single", "metric": "val_loss", "max_length": {"epochs": 9}},
            }
        )
        result = detcore("check-resume", config, code, timeout_s=250)
    assert result.code == (scale > 0), result.output
    if scale:
        assert "resume is not exact: step " in result.stdout
        line = "  in model_def.py:6: generator = torch.Generator().manual_seed(5)"
        assert line in result.stdout


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("none", "torch"),
        ("optimizer", "torch"),
        ("none", "h5"),
        ("generator", "h5"),
        ("none", "trainer"),
        ("none", "lightning"),  # which restores no generator
    ],
)
@pytest.mark.soak
def test_program_is_judged_as_by_hand(tmp_path: Path, fault: str, kind: str) -> None:
    is_equal = run_by_hand(tmp_path / "hand", fault, kind)
    assert is_equal == (fault == "none" and kind != "lightning")
    write_program(tmp_path / "code", fault, kind)
    start = f"{sys.executable} train.py"
    with Detcore(tmp_path) as detcore:
        words = ["--start", start, "--resume", f"{start} --resume", "--output", OUTPUT]
        result = detcore.python(
            "-m", "detcore", "check-resume", *words, cwd=tmp_path / "code", timeout_s=250
        )
    assert result.code == (not is_equal), result.output


@pytest.mark.parametrize("fault", ["none", "generator"])
@pytest.mark.parametrize("library", ["trainer", "lightning"])
@pytest.mark.soak
def test_script_of_library_is_checked(tmp_path: Path, library: str, fault: str) -> None:
    write_program(tmp_path / "code", fault, library)
    with Detcore(tmp_path) as detcore:
        words = [sys.executable, "train.py", "--detcore"]
        result = detcore.python(
            "-m", "detcore", "check-resume", "--", *words, cwd=tmp_path / "code", timeout_s=250
        )
    assert result.code == (fault != "none"), result.output
    if fault == "none":
        assert "resume is exact" in result.stdout
    else:
        assert "in train.py:6: generator = torch.Generator().manual_seed(5)" in result.stdout


def test_formats_are_read_bit_by_bit(tmp_path: Path) -> None:
    tensors = {
        "a": torch.tensor([[1.5, -0.0], [float("nan"), 3e38]]).bfloat16(),
        "b": torch.arange(3),
        "c": torch.tensor([True, False]),
    }
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    torch.save({"model": tensors, "steps": [3, 0.5]}, tmp_path / "x.pt")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["group/b"] = np.arange(3)
    numbers = {name: tensor.float().numpy() for name, tensor in tensors.items()}
    read = read_tensors(tmp_path / "x.safetensors")
    assert read is not None
    for name, array in numbers.items():
        np.testing.assert_array_equal(read[name], array)
    read = read_tensors(tmp_path / "x.pt")
    assert read is not None
    assert list(read) == ["model.a", "model.b", "model.c", "steps.0", "steps.1"]
    np.testing.assert_array_equal(read["model.a"], numbers["a"])
    read = read_tensors(tmp_path / "x.h5")
    assert read is not None
    np.testing.assert_array_equal(read["group/b"], np.arange(3))


def test_pickles_are_not_run(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        torch.save({"path": Path(name)}, tmp_path / name / "x.pt")
        torch.save({"w": torch.ones(2)}, tmp_path / name / "w.pt")
    comparison = compare_files(tmp_path / "one", tmp_path / "other")
    assert (comparison.num_tensors, comparison.differences) == (1, ())
    (note,) = comparison.notes
    assert note.startswith("not compared: x.pt has different bytes and cannot be read as tensors")
