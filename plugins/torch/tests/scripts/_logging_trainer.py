"""A Trainer of transformers that writes a ledger of the records it trains on."""

from transformers import Trainer


class LoggingTrainer(Trainer):
    def __init__(self, used, **more):
        super().__init__(**more)
        self.used = used
        self.losses = 0

    def compute_loss(self, model, inputs, **more):
        ids = inputs.pop("ids")
        if model.training:
            self.losses += 1
            self.used.log(self.state.global_step + 1, int(self.state.epoch), ids)
        return super().compute_loss(model, inputs, **more)
