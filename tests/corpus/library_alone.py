"""Replace detcore's functions by the resume of a library, as a control.

The scripts of the corpus stay unchanged: their `fit`, `train` and `training` become the loops that
the libraries' documentation shows, with the libraries' own checkpoints.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["LIBRARIES", "replace_adapters"]

# Directories of scripts with such a control.
LIBRARIES = ("accelerate", "keras", "lightning", "transformers")
_FOLDER = Path("library")


def replace_adapters(library: str) -> None:
    """Replace the function of one library's adapter."""
    module, name, function = {
        "accelerate": ("detcore_torch.for_accelerate", "training", _train_accelerate),
        "keras": ("detcore_keras", "fit", _fit_keras),
        "lightning": ("detcore_torch.for_lightning", "fit", _fit_lightning),
        "transformers": ("detcore_torch.for_transformers", "train", _train_transformers),
    }[library]
    setattr(importlib.import_module(module), name, function)


def _fit_lightning(
    trainer: Any,
    model: Any,
    *data: Any,
    hparams: Mapping[str, object] | None = None,
    metric: str = "val_loss",
    smaller_is_better: bool = True,
    save_every: int | None = None,
    **options: Any,
) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    period = {"every_n_train_steps": save_every} if save_every else {"every_n_epochs": 1}
    trainer.callbacks.append(ModelCheckpoint(str(_FOLDER), save_last=True, **period))
    trainer.fit(model, *data, ckpt_path="last", **options)


def _train_transformers(trainer: Any, **_: Any) -> Any:
    from transformers.trainer_utils import get_last_checkpoint

    folder = trainer.args.output_dir
    latest = get_last_checkpoint(folder) if Path(folder).is_dir() else None
    return trainer.train(resume_from_checkpoint=latest)


class _Run:
    """The loop of Accelerate's documentation, with `save_state` and `load_state`."""

    def __init__(
        self, accelerator: Any, loader: Any, validate: Callable[[], Any], periods: Mapping[str, int]
    ) -> None:
        self._accelerator, self._loader, self._validate = accelerator, loader, validate
        self._periods = periods
        self.step = max([0, *(int(path.name) for path in _FOLDER.glob("[0-9]*"))])
        self.epoch = 0

    def report(self, **_: Any) -> None:
        """Ignore metrics."""

    def __iter__(self) -> Iterator[Any]:
        if self.step:
            self._accelerator.load_state(str(_FOLDER / str(self.step)))
        first, skipped = divmod(self.step, self._periods["epoch"])
        accumulated = self._accelerator.gradient_accumulation_steps
        for epoch in range(first, math.ceil(self._periods["length"] / self._periods["epoch"])):
            self.epoch = epoch
            self._loader.set_epoch(self.epoch)
            batches = self._loader
            if skipped:
                batches = self._accelerator.skip_first_batches(batches, accumulated * skipped)
                skipped = 0
            for batch in batches:
                yield batch
                if self._accelerator.sync_gradients:
                    self._end_step()
                if self.step == self._periods["length"]:
                    return

    def _end_step(self) -> None:
        self.step += 1
        if self.step % self._periods["validate"] == 0:
            self._validate()
            for model in self._accelerator._models:
                model.train()
        if self.step % self._periods["save"] == 0:
            self._accelerator.save_state(str(_FOLDER / str(self.step)))


@contextlib.contextmanager
def _train_accelerate(
    accelerator: Any,
    loader: Any,
    *,
    validate: Callable[[], Any],
    epochs: float | None = None,
    max_steps: int | None = None,
    validate_every: int | None = None,
    save_every: int | None = None,
    **_: Any,
) -> Iterator[_Run]:
    epoch = math.ceil(len(loader) / accelerator.gradient_accumulation_steps)
    length = max_steps or math.ceil(epoch * (epochs or 1))
    period = validate_every or epoch
    periods = {"epoch": epoch, "length": length, "validate": period, "save": save_every or period}
    yield _Run(accelerator, loader, validate, periods)


def _fit_keras(model: Any, *data: Any, callbacks: Any = (), **options: Any) -> Any:
    from detcore_keras.frameworks import keras

    backup = keras.callbacks.BackupAndRestore(str(_FOLDER))
    for name in ("save_every", "hparams", "metric", "smaller_is_better", "checkpoint_storage"):
        options.pop(name, None)
    return model.fit(*data, callbacks=[*(callbacks or ()), backup], **options)
