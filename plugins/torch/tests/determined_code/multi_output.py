"""Two outputs, arrays of NumPy in batches, and mixed precision, in the style of Determined 0.19."""

import logging

import numpy as np
import torch
from determined import pytorch
from toy_data import points


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 16)
        self.classes = torch.nn.Linear(16, 3)
        self.norm = torch.nn.Linear(16, 1)

    def forward(self, features):
        hidden = self.body(features).relu()
        return {"classes": self.classes(hidden), "norm": self.norm(hidden).squeeze(1)}


def collate(records):
    features = np.stack([features.numpy() for features, _ in records])
    return {
        "features": features,
        "targets": {
            "classes": np.array([int(label) for _, label in records]),
            "norm": np.linalg.norm(features, axis=1),
        },
        "names": ["record"] * len(records),
    }


class Trial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        logging.info("trial %s, seed %s", context.get_trial_id(), context.get_trial_seed())
        self.model = context.wrap_model(context.autocast_forward_pass(Model()))
        self.optimizer = context.wrap_optimizer(
            torch.optim.AdamW(self.model.parameters(), lr=context.get_hparam("learning_rate")),
            backward_passes_per_step=1,
        )
        context.experimental.use_amp()
        context.experimental.disable_auto_to_device()
        context.experimental.disable_dataset_reproducibility_checks()
        context.set_profiler(schedule=None)

    def build_training_data_loader(self):
        return torch.utils.data.DataLoader(
            points(),
            batch_size=self.context.get_per_slot_batch_size(),
            shuffle=True,
            collate_fn=collate,
        )

    def build_validation_data_loader(self):
        return torch.utils.data.DataLoader(points(30), batch_size=10, collate_fn=collate)

    def losses(self, batch):
        assert isinstance(batch["features"], np.ndarray)
        outputs = self.model(self.context.to_device(batch["features"]))
        targets = self.context.to_device(batch["targets"])
        return {
            "class_loss": torch.nn.functional.cross_entropy(outputs["classes"], targets["classes"]),
            "norm_loss": torch.nn.functional.mse_loss(outputs["norm"], targets["norm"]),
        }

    def train_batch(self, batch, epoch_idx, batch_idx):
        losses = self.losses(batch)
        loss = losses["class_loss"] + 0.1 * losses["norm_loss"]
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss, **losses}

    def evaluate_batch(self, batch):
        losses = self.losses(batch)
        return {"validation_loss": losses["class_loss"], **losses}

    def evaluation_reducer(self):
        return {
            "validation_loss": pytorch.Reducer.AVG,
            "class_loss": pytorch.Reducer.AVG,
            "norm_loss": pytorch.Reducer.MAX,
        }
