"""A small character-level language model, trained on Python's own manual.

The text is included in Python (the topics of ``help("for")``). Hyperparameters configure the model.
"""

from __future__ import annotations

import math
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from detcore_torch import DataLoader, LRScheduler, PyTorchTrial, PyTorchTrialContext

TEXT = "\n".join(text for _, text in sorted(topics.items()))
CHARACTERS = {character: number for number, character in enumerate(sorted(set(TEXT)))}


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of a text, with the next character of each character."""

    def __init__(self, text: str, length: int) -> None:
        self.numbers = torch.tensor([CHARACTERS[character] for character in text])
        self.length = length

    def __len__(self) -> int:
        return (len(self.numbers) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self.length
        window = self.numbers[start : start + self.length + 1]
        return window[:-1], window[1:]


class LanguageModel(nn.Module):
    """A transformer that predicts the next character."""

    def __init__(self, *, width: int, num_layers: int, num_heads: int, length: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(CHARACTERS), width)
        self.positions = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, num_heads, 4 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, len(CHARACTERS))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the logits of each next character, ``(window, position, character), float32``."""
        values = self.characters(numbers) + self.positions.weight
        return self.scores(self.layers(values, mask=self.mask, is_causal=True))


class LanguageTrial(PyTorchTrial):
    """Trains the model with warm-up, gradient clipping and gradient accumulation."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        names = ("width", "num_layers", "num_heads", "length")
        configuration = {name: context.get_hparam(name) for name in names}
        self.model = context.wrap_model(LanguageModel(**configuration))
        rate = context.get_hparam("learning_rate")
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), rate))
        warm_up = context.get_hparam("warm_up")
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.LambdaLR(
                self.optimizer, lambda step: min(1.0, (step + 1) / warm_up)
            ),
            LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        )
        self.length = configuration["length"]

    def build_training_data_loader(self) -> DataLoader:
        windows = Windows(TEXT[: len(TEXT) * 9 // 10], self.length)
        return DataLoader(windows, self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(Windows(TEXT[len(TEXT) * 9 // 10 :], self.length), batch_size=64)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = self.compute_loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0)
        )
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"bits_per_character": self.compute_loss(batch) / math.log(2)}

    def compute_loss(self, batch: Any) -> torch.Tensor:
        """Return the mean cross-entropy of the next characters, in nats."""
        numbers, next_numbers = batch
        return functional.cross_entropy(self.model(numbers).flatten(0, 1), next_numbers.flatten())
