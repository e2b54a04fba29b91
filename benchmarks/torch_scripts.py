"""Measure the CPU time that detcore adds to scripts of PyTorch libraries, and to a loop.

Each script trains with and without its adapter, without end, in a process forked from a process
that has imported everything. The processes take turns of a few batches in a random order. The CPU
time is that of the process with all of its threads. Scripts report every 50 steps and save nothing
in a turn. Compare a ratio with the null control.

    python benchmarks/torch_scripts.py [--rounds 20] [--batches 50] [--only trial] [--quick]
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import random
import socket
import statistics
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _report import parse_options, print_table, with_quartiles
from _trial_setup import BenchmarkClock, make_setup
from torch.nn import functional

ENDLESS = 1 << 20  # batches
REPORT_EVERY = 50
BATCH = 32
VARIANTS = ("without detcore", "null control: the same again", "detcore")


class Turns:
    """The end of a turn in the process of a variant.

    Args:
        link: Socket that is connected to the parent.
        batches: Number of batches in a turn.
    """

    def __init__(self, link: socket.socket, batches: int) -> None:
        self._link = link
        self._batches = batches
        self._count = 0
        self._began = 0.0

    def count(self) -> None:
        """Count a batch. At the end of a turn, wait for the next turn."""
        self._count += 1
        if self._count % self._batches == 0:
            self._link.send(struct.pack("d", time.process_time() - self._began))
            self.wait()

    def wait(self) -> None:
        """Wait for a turn. Ends the process after the last turn."""
        if not self._link.recv(1):
            os._exit(0)
        self._began = time.process_time()


def convolutions() -> Any:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(256, 10),
    )


@functools.cache
def scans() -> Any:
    """Return images and labels with the shapes of scikit-learn's digits."""
    return torch.utils.data.TensorDataset(torch.rand(1437, 1, 8, 8), torch.randint(10, (1437,)))


def scan_loader(kind: Any = torch.utils.data.DataLoader) -> Any:
    return kind(scans(), BATCH, shuffle=True)


def run_trial(turns: Turns, *, with_detcore: bool) -> None:
    """Train a `PyTorchTrial`, or the same model in a plain loop."""
    from detcore_torch import DataLoader, PyTorchTrial, PyTorchTrialContext
    from detcore_torch.pytorch_controller import TorchController

    if not with_detcore:
        _plain_loop(turns)

    class Trial(PyTorchTrial):
        def __init__(self, context: Any) -> None:
            self.context = context
            self.model = context.wrap_model(convolutions())
            self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters()))

        def build_training_data_loader(self) -> Any:
            return scan_loader(DataLoader)

        build_validation_data_loader = build_training_data_loader

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            turns.count()
            images, labels = batch
            loss = functional.cross_entropy(self.model(images), labels)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": loss}

        def evaluate_batch(self, batch: Any) -> Any:
            raise NotImplementedError

    class Clock(BenchmarkClock):
        def at_boundary(self, steps: int) -> bool:
            return True

    context = PyTorchTrialContext(make_setup(Path.cwd(), BATCH))
    clock: Any = Clock(REPORT_EVERY)
    TorchController(Trial(context), context).run(clock)


def _plain_loop(turns: Turns) -> None:
    model, loader = convolutions(), scan_loader()
    optimizer = torch.optim.Adam(model.parameters())
    losses: list[Any] = []
    while True:
        for images, labels in loader:
            turns.count()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            if len(losses) == REPORT_EVERY:
                print(torch.stack(losses).mean().item())
                losses.clear()


def run_trainer(turns: Turns, *, with_detcore: bool) -> None:
    """Train a small language model with the Trainer of transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from detcore_torch.for_transformers import train

    class Counted(Trainer):  # type: ignore[misc]  # transformers has no types
        def training_step(self, *args: Any, **more: Any) -> Any:
            turns.count()
            return super().training_step(*args, **more)

    config = GPT2Config(
        vocab_size=80, n_positions=64, n_embd=64, n_layer=2, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(80, (1437, 64))]
    arguments = TrainingArguments(
        "output", max_steps=ENDLESS, per_device_train_batch_size=4, logging_steps=REPORT_EVERY,
        eval_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = Counted(
        GPT2LMHeadModel(config), arguments, train_dataset=rows, eval_dataset=rows[:16]
    )
    if with_detcore:
        train(trainer)
    else:
        trainer.train()


def run_lightning(turns: Turns, *, with_detcore: bool) -> None:
    """Train a small network with the Trainer of Lightning."""
    import lightning

    from detcore_torch.for_lightning import fit

    class Network(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = convolutions()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            turns.count()
            images, labels = batch
            loss = functional.cross_entropy(self.layers(images), labels)
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", functional.cross_entropy(self.layers(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    trainer = lightning.Trainer(
        max_steps=ENDLESS, accelerator="cpu", log_every_n_steps=REPORT_EVERY, logger=False,
        val_check_interval=ENDLESS, check_val_every_n_epoch=None, num_sanity_val_steps=0,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    data = {"train_dataloaders": scan_loader(), "val_dataloaders": scan_loader()}
    if with_detcore:
        fit(trainer, Network(), **data, save_every=0)
    else:
        trainer.fit(Network(), **data)


def run_accelerate(turns: Turns, *, with_detcore: bool) -> None:
    """Train a small network in a loop with Accelerate."""
    from accelerate import Accelerator

    from detcore_torch.for_accelerate import training

    accelerator = Accelerator(cpu=True)
    model = convolutions()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.Adam(model.parameters()), scan_loader()
    )

    def train(batch: Any) -> Any:
        turns.count()
        images, labels = batch
        with accelerator.accumulate(model):
            loss = functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return loss

    if with_detcore:
        with training(
            accelerator, loader, validate=lambda: {"val_loss": 0.0}, max_steps=ENDLESS,
            report_every=REPORT_EVERY, validate_every=ENDLESS, save_every=0,
        ) as run:  # fmt: skip
            for batch in run:
                run.report(train_loss=train(batch))
    losses: list[Any] = []
    while True:
        for batch in loader:
            losses.append(train(batch).detach())
            if len(losses) == REPORT_EVERY:
                print(torch.stack(losses).mean().item())
                losses.clear()


# Name, training function, and the module that is imported before the processes start.
SCRIPTS: dict[str, tuple[str, Callable[..., None], str]] = {
    "trial": ("`PyTorchTrial`, a plain loop", run_trial, "detcore_torch"),
    "trainer": ("`Trainer`", run_trainer, "detcore_torch.for_transformers"),
    "lightning": ("Lightning", run_lightning, "detcore_torch.for_lightning"),
    "accelerate": ("Accelerate", run_accelerate, "detcore_torch.for_accelerate"),
}


class Variant:
    """The process of a variant.

    Args:
        run: Function that trains.
        with_detcore: Whether it trains with detcore.
        batches: Number of batches in a turn.
        folder: Directory of its files, which is created here.
    """

    def __init__(
        self, run: Callable[..., None], *, with_detcore: bool, batches: int, folder: Path
    ) -> None:
        self._link, child_link = socket.socketpair()
        folder.mkdir()
        self._log = folder / "output.txt"
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._link.close()
            self._become(child_link, run, with_detcore, batches, folder)
        child_link.close()

    def turn_s(self) -> float:
        """Return the CPU seconds of a turn."""
        self._link.send(b"g")
        answer = self._link.recv(8)
        if not answer:
            raise SystemExit(f"a script ended:\n{self._log.read_text()[-4000:]}")
        (seconds,) = struct.unpack("d", answer)
        return float(seconds)

    def close(self) -> None:
        """End the process, and wait for it."""
        self._link.close()
        os.waitpid(self._pid, 0)

    def _become(
        self,
        link: socket.socket,
        run: Callable[..., None],
        with_detcore: bool,
        batches: int,
        folder: Path,
    ) -> None:
        try:
            output = self._log.open("a", buffering=1)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.stdout = sys.stderr = output
            os.chdir(folder)
            os.environ["DETCORE_HOME"] = str(folder / "home")
            turns = Turns(link, batches)
            turns.wait()
            run(turns, with_detcore=with_detcore)
        except BaseException:  # noqa: BLE001  # keeps a reference until the process ends
            traceback.print_exc()
        finally:
            os._exit(1)


def measure(
    run: Callable[..., None], *, rounds: int, batches: int, folder: Path
) -> dict[str, list[float]]:
    """Return the CPU microseconds of a batch in each round, by variant."""
    variants = {
        name: Variant(
            run, with_detcore=name == VARIANTS[-1], batches=batches, folder=folder / str(number)
        )
        for number, name in enumerate(VARIANTS)
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    for number in range(rounds + 2):  # the first two turns import and allocate
        random.shuffle(order)
        for name in order:
            seconds = variants[name].turn_s()
            if number > 1:
                times[name].append(seconds / batches * 1e6)
    for process in reversed(
        variants.values()
    ):  # later processes inherit the sockets of earlier processes
        process.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batches", type=int, default=50, help="batches of a turn")
    parser.add_argument("--only", choices=SCRIPTS, action="append")
    options = parse_options(parser, rounds=1, batches=2, only=["trial", "accelerate"])
    torch.set_num_threads(1)
    rows = []
    for name in options.only or SCRIPTS:
        title, run, module = SCRIPTS[name]
        importlib.import_module(module)
        scans()
        with tempfile.TemporaryDirectory() as folder:
            times = measure(
                run, rounds=options.rounds, batches=options.batches, folder=Path(folder)
            )
        base = times[VARIANTS[0]]
        for variant, batch_times in times.items():
            ratios = [time / base_time for time, base_time in zip(batch_times, base, strict=True)]
            added = statistics.median(batch_times) - statistics.median(base)
            rows.append([
                title, variant, f"{statistics.median(batch_times):.0f}", f"{added:.1f}",
                with_quartiles(ratios, 3),
            ])  # fmt: skip
    print_table(["script", "variant", "CPU us/batch", "added, us", "CPU ratio [q1, q3]"], rows)


if __name__ == "__main__":
    main()
