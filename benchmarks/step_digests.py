"""What step digests add to each step of a PyTorch trial.

Trials of the same model, with and without digests, are in one process and take turns in a random
order, so that other load on the machine falls on all alike. CPU time is that of the process; read
the ratio beside that of the null control. A unit has 100 steps.

    python benchmarks/step_digests.py [--rounds 40] [--steps 400] [--quick]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from _report import parse_options, print_table, with_quartiles
from _trial_setup import BenchmarkClock, make_setup

from detcore.data import StepDigests
from detcore.trial import TrialSetup
from detcore_torch import PyTorchTrial, PyTorchTrialContext
from detcore_torch._controller import TorchController

UNIT_STEPS = 100
BATCH = 32
# Hidden units of a model that reads digits, and of one whose step is more like those of users.
WIDTHS = {"digits": 32, "1,024 hidden units": 1024}


class Classifier(PyTorchTrial):
    """Digits of random pixels."""

    def __init__(self, context: Any) -> None:
        self.context = context
        width = context.get_hparam("width")
        model = torch.nn.Sequential(
            torch.nn.Linear(64, width),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(width, 10),
        )
        self.model = context.wrap_model(model)
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(model.parameters()))
        self.data = torch.utils.data.TensorDataset(torch.rand(1797, 64), torch.randint(10, (1797,)))

    def loss(self, batch: Any) -> Any:
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.model(images), labels)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        return {"val_loss": self.loss(batch)}

    def build_training_data_loader(self) -> Any:
        return torch.utils.data.DataLoader(self.data, BATCH, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return torch.utils.data.DataLoader(self.data, BATCH)


class Clock(BenchmarkClock):
    """Ends a turn after some steps, and digests at each unit as detcore's clock does."""

    def __init__(self, digests: StepDigests | None) -> None:
        super().__init__(UNIT_STEPS)
        self.digests = digests
        self.stop = 0

    def boundary(
        self,
        steps_completed: int,
        training_metrics: Any,
        batch_metrics: Sequence[Mapping[str, float]] | None = None,
        *,
        n_records: int | None = None,
    ) -> bool:
        if self.digests is not None:
            self.digests.log_metrics(steps_completed, batch_metrics or ())
            self.digests.log_state(steps_completed)
            self.digests.flush()
        return super().boundary(steps_completed, training_metrics, batch_metrics)

    def at_boundary(self, steps: int) -> bool:
        return steps < self.stop


class Variant:
    """A trial with its controller and its clock."""

    def __init__(self, folder: Path, width: int, *, every: int) -> None:
        digests = None
        if every:
            path = folder / "digests-1.bin"
            digests = StepDigests(path, run_id=1, start_step=0, every=every)
        plain = make_setup(folder, BATCH)
        setup = TrialSetup(
            config={},
            hparams={**plain.hparams, "width": width},
            seed=1,
            distributed=plain.distributed,
            digests=digests,
        )
        context = PyTorchTrialContext(setup)
        self.controller = TorchController(Classifier(context), context)
        self.clock = Clock(digests)
        if digests is not None:
            digests.watch(self.controller.state_tensors)

    def cpu_s(self, steps: int) -> float:
        """Train, and return the CPU seconds."""
        self.clock.stop += steps
        began = time.process_time()
        self.controller.run(self.clock)  # type: ignore[arg-type]  # what a run needs of a clock
        return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=400)
    options = parse_options(parser, rounds=2, steps=100)
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory(prefix="step-digests-") as name:
        for model, width in WIDTHS.items():
            rows += _measure(Path(name) / model, model, width, options)
    print_table(["variant", "CPU us/step", "added, us", "CPU ratio [q1, q3]"], rows)


def _measure(folder: Path, model: str, width: int, options: argparse.Namespace) -> list[list[str]]:
    every = {
        "without": 0, "null control: without again": 0, "every tenth step (default)": 10,
        "every step": 1,
    }  # fmt: skip
    names = list(every)
    variants = {each: Variant(folder / each, width, every=every[each]) for each in names}
    for variant in variants.values():
        variant.cpu_s(UNIT_STEPS)
    times: dict[str, list[float]] = {each: [] for each in names}
    for _ in range(options.rounds):
        for each in random.sample(names, len(names)):
            times[each].append(variants[each].cpu_s(options.steps) / options.steps * 1e6)
    rows = []
    for each in names:
        pairs = list(zip(times[each], times[names[0]], strict=True))
        added = statistics.median(mine - theirs for mine, theirs in pairs)
        ratios = [mine / theirs for mine, theirs in pairs]
        median = statistics.median(times[each])
        rows.append(
            [f"{model}, {each}", f"{median:.1f}", f"{added:.1f}", with_quartiles(ratios, 3)]
        )
    return rows


if __name__ == "__main__":
    main()
