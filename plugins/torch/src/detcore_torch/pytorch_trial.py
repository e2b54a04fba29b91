"""`PyTorchTrial`, the base class of users' trials. This module does not import PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detcore import Trial
from detcore.errors import InvalidExperimentError

if TYPE_CHECKING:
    from detcore_torch.callbacks import PyTorchCallback
    from detcore_torch.data.data_loader import DataLoader
    from detcore_torch.metric_reducers import Reducer
    from detcore_torch.pytorch_context import PyTorchTrialContext


class PyTorchTrial(Trial):
    """A training job in PyTorch, one batch at a time.

    ``__init__`` creates models, optimizers and schedulers and wraps them with the context. Define
    either `evaluate_batch` or `evaluate_full_dataset`.

    Attributes that training changes are part of each checkpoint: numbers, strings, arrays, tensors,
    random generators, objects with ``state_dict``, and containers of these.

    Example::

        class Digits(PyTorchTrial):
            def __init__(self, context):
                self.context = context
                self.model = context.wrap_model(torch.nn.Linear(64, 10))
                self.optimizer = context.wrap_optimizer(
                    torch.optim.Adam(self.model.parameters(), context.get_hparam("lr"))
                )

            def build_training_data_loader(self):
                return DataLoader(dataset, self.context.get_per_slot_batch_size(), shuffle=True)

            def build_validation_data_loader(self):
                return DataLoader(held_out, self.context.get_per_slot_batch_size())

            def train_batch(self, batch, epoch_idx, batch_idx):
                x, y = batch
                loss = torch.nn.functional.cross_entropy(self.model(x), y)
                self.context.backward(loss)
                self.context.step_optimizer(self.optimizer)
                return {"loss": loss}

            def evaluate_batch(self, batch):
                x, y = batch
                return {
                    "validation_loss": torch.nn.functional.cross_entropy(self.model(x), y)
                }
    """

    context: PyTorchTrialContext

    def __init__(self, context: PyTorchTrialContext) -> None:
        """Store the context. Subclasses wrap their models and optimizers here."""
        super().__init__(context)

    def build_training_data_loader(self) -> DataLoader:
        """Return a `detcore_torch.DataLoader` over all training data, the same on each worker."""
        raise _missing_method_error(self, "build_training_data_loader")

    def build_validation_data_loader(self) -> DataLoader:
        """Return a `detcore_torch.DataLoader` over all validation data, the same on each worker."""
        raise _missing_method_error(self, "build_validation_data_loader")

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Train on one batch.

        Args:
            batch: A batch of the training data, on the device.
            epoch_idx: Pass over the training data, from 0.
            batch_idx: Batches trained before this batch, over all starts of the trial.

        Returns:
            The loss, a scalar tensor, or metrics by name: scalar tensors and numbers.
        """
        raise _missing_method_error(self, "train_batch")

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Evaluate one batch; gradients are off and the models in evaluation mode.

        Args:
            batch: A batch of the validation data, on the device.

        Returns:
            Metrics by name: scalar tensors and numbers.
        """
        raise _missing_method_error(self, "evaluate_batch")

    def evaluate_full_dataset(self, data_loader: Any) -> Mapping[str, Any]:
        """Evaluate all validation data in one call, on the chief only.

        Args:
            data_loader: A ``torch.utils.data.DataLoader`` over all batches of the validation data,
                not moved to the device (see ``context.to_device``).

        Returns:
            Metrics by name: scalar tensors and numbers.
        """
        raise _missing_method_error(self, "evaluate_full_dataset")

    def evaluation_reducer(self) -> Reducer | Mapping[str, Reducer]:
        """Return the reduction of `evaluate_batch`'s metrics; the default is the mean.

        The mean weights each batch by its number of records, so it does not depend on how the
        records were split.

        Returns:
            One reducer for all metrics, or reducers by metric name.
        """
        from detcore_torch.metric_reducers import Reducer

        return Reducer.AVG

    def build_callbacks(self) -> Mapping[str, PyTorchCallback]:
        """Return callbacks by name; they are called in this order, on every worker."""
        return {}


def _missing_method_error(trial: PyTorchTrial, name: str) -> InvalidExperimentError:
    return InvalidExperimentError(
        f"{type(trial).__name__} has no method {name}.\n"
        f"Define {name} in the class. Its documentation: help(detcore_torch.PyTorchTrial.{name})"
    )
