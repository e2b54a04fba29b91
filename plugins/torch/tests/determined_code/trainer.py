"""A script with the Trainer, in the style of Determined 0.22 to 0.38."""

import determined as det
import torch
from determined import pytorch
from toy_data import points


class Trial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, hparams: dict) -> None:
        self.context = context
        self.hparams = hparams
        self.writer = context.get_tensorboard_writer()
        self.model = context.wrap_model(
            torch.nn.Sequential(
                torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3)
            )
        )
        self.optimizer = context.wrap_optimizer(
            torch.optim.Adam(self.model.parameters(), lr=hparams["learning_rate"])
        )

    def build_training_data_loader(self) -> pytorch.DataLoader:
        batch_size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(points(), batch_size=batch_size, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(points(30), batch_size=10)

    def train_batch(self, batch, epoch_idx: int, batch_idx: int):
        features, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(features), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.writer.add_histogram("weights", next(self.model.parameters()), batch_idx)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        features, labels = batch
        scores = self.model(features)
        return {
            "accuracy": (scores.argmax(1) == labels).float().mean(),
            "validation_loss": torch.nn.functional.cross_entropy(scores, labels),
        }


def main() -> None:
    info = det.get_cluster_info()
    if info is None:
        hparams = {"learning_rate": 0.05, "global_batch_size": 8}
        latest_checkpoint = None
    else:
        assert info.task_type == "TRIAL"
        hparams = info.trial.hparams
        latest_checkpoint = info.latest_checkpoint
    with pytorch.init(hparams=hparams) as train_context:
        trial = Trial(train_context, hparams)
        trainer = pytorch.Trainer(trial, train_context)
        trainer.fit(
            max_length=pytorch.Epoch(2),
            validation_period=pytorch.Epoch(1),
            checkpoint_period=pytorch.Batch(5),
            reporting_period=pytorch.Batch(6),
            checkpoint_policy="none",
            latest_checkpoint=latest_checkpoint,
        )


if __name__ == "__main__":
    main()
