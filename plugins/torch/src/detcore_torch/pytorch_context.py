"""`PyTorchTrialContext`, which wraps the models, optimizers and schedulers of a `PyTorchTrial`."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from detcore.errors import (
    ContextStateError,
    InvalidExperimentError,
    InvalidModelError,
    describe,
)
from detcore_torch.determined_context import DeterminedContext, ExperimentalContext
from detcore_torch.libraries import torch
from detcore_torch.lr_scheduler import LRScheduler
from detcore_torch.metric_reducers import FunctionReducer, MetricReducer, WrappedReducer
from detcore_torch.process_group import WorkerGroup, settle_buckets

if TYPE_CHECKING:
    from detcore.trial import NativeStart, TrialSetup


class PyTorchTrialContext(DeterminedContext):
    """The context of a `detcore_torch.PyTorchTrial`.

    Attributes:
        models: The models that were passed to `wrap_model`, in order.
        optimizers: The optimizers, in order.
        lr_schedulers: The schedulers with their step modes, in order.
        scalers: The gradient scalers, in order.
        reducers: The reducers of metrics, in order.
        group: The workers' process group.
        experimental: Options of Determined's trials.
        before_update: Called with an optimizer's parameters before it updates them, or None.
        start: The start of a script that called `detcore_torch.init`, or None.
    """

    before_update: Callable[[list[Any]], object] | None = None
    start: NativeStart | None = None

    def __init__(self, setup: TrialSetup) -> None:
        super().__init__(setup)
        gradients = setup.settings.gradients
        self._aggregation = gradients.aggregation_frequency
        self._average = gradients.average_aggregated_gradients
        self._compress = gradients.gradient_compression
        self.models: list[Any] = []
        self.optimizers: list[Any] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.scalers: list[Any] = []
        self.reducers: list[WrappedReducer] = []
        self.group = WorkerGroup(setup.distributed)
        self._wrapped: list[Any] = []
        self._batch_index: int | None = None
        self._epoch_length: int | None = None
        self._is_stepping = False
        self._is_ready = False
        self.experimental = ExperimentalContext(self)
        self._has_scaled_step = False

    @functools.cached_property
    def device(self) -> Any:
        """This worker's device: its GPU, or the CPU on a machine without GPUs."""
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def to_device(self, data: Any) -> Any:
        """Move tensors, also in dicts, lists and tuples, to this worker's device.

        NumPy arrays of numbers become tensors. For other objects with a method ``to``, such as a
        ``PackedSequence`` or a tokenizer batch, that method is called.
        """
        if isinstance(data, torch.Tensor):
            return data.to(self.device, non_blocking=True)
        if isinstance(data, np.ndarray) and data.dtype.kind in "biufc":
            is_usable = data.flags.writeable and all(stride >= 0 for stride in data.strides)
            return torch.from_numpy(data if is_usable else data.copy()).to(self.device)
        if callable(getattr(type(data), "to", None)):
            return data.to(self.device)
        if isinstance(data, Mapping):
            return {key: self.to_device(value) for key, value in data.items()}
        if isinstance(data, tuple) and hasattr(data, "_fields"):
            return type(data)(*(self.to_device(value) for value in data))
        if isinstance(data, list | tuple):
            return type(data)(self.to_device(value) for value in data)
        return data

    def move_batch(self, batch: Any) -> Any:
        """Move a batch to the device, unless the trial moves its batches itself."""
        return self.to_device(batch) if self.experimental.moves_batches else batch

    def wrap_model(self, model: Any, *, find_unused_parameters: bool = False) -> Any:
        """Move a model to the device, and average its gradients over the workers.

        Call this in ``__init__``, before creating the optimizer, for every model that is trained or
        saved in checkpoints.

        Args:
            model: The model.
            find_unused_parameters: Whether a step may leave out parameters of the model; see
                ``torch.nn.parallel.DistributedDataParallel``.

        Returns:
            The model to call: a ``DistributedDataParallel`` wrapper if there are several workers
            and trainable parameters, otherwise the model itself. Checkpoints contain the model's
            state.

        Raises:
            InvalidModelError: If `model` is not a ``torch.nn.Module``.
            ContextStateError: If the model was wrapped before, or training has started.
        """
        self._check_wrapping(model, torch.nn.Module, "wrap_model", self.models)
        model = model.to(self.device)
        self.models.append(model)
        if self.distributed.size == 1 or not any(p.requires_grad for p in model.parameters()):
            return model
        self.group.open()
        wrapped = torch.nn.parallel.DistributedDataParallel(
            model,
            device_ids=None if self.device.type == "cpu" else [self.device],
            find_unused_parameters=find_unused_parameters,
            **_without_buffers(),
        )
        settle_buckets(wrapped)
        if self._compress:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        self._wrapped.append(wrapped)
        return wrapped

    def wrap_optimizer(
        self,
        optimizer: Any,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> Any:
        """Register an optimizer, so that its state is part of checkpoints.

        Args:
            optimizer: An optimizer over parameters of a model that `wrap_model` returned.
            backward_passes_per_step: Ignored; accepted for compatibility.
            fp16_compression: Ignored; set ``optimizations.gradient_compression``.
            average_aggregated_gradients: Whether sums of several batches are divided by their
                number, for all optimizers; None for ``optimizations``.

        Returns:
            The same optimizer.
        """
        self._check_wrapping(optimizer, torch.optim.Optimizer, "wrap_optimizer", self.optimizers)
        parameter_ids = {id(p) for model in self.models for p in model.parameters()}
        unknown_groups = [
            index
            for index, group in enumerate(optimizer.param_groups)
            if any(id(parameter) not in parameter_ids for parameter in group["params"])
        ]
        if unknown_groups:
            raise InvalidExperimentError(
                f"parameter group {unknown_groups[0]} of {type(optimizer).__name__} has parameters "
                "of a model that was not wrapped.\n"
                "They would not be in checkpoints, and would differ between workers.\n"
                "Call context.wrap_model first, and create the optimizer from the parameters of "
                "the model that it returns."
            )
        if average_aggregated_gradients is not None:
            self._average = average_aggregated_gradients
        if self._aggregation > 1:
            optimizer.register_step_pre_hook(self._refuse_direct_step)
        self.optimizers.append(optimizer)
        return optimizer

    def wrap_lr_scheduler(
        self, lr_scheduler: Any, step_mode: Any = LRScheduler.StepMode.MANUAL_STEP,
        frequency: int = 1,
    ) -> Any:  # fmt: skip
        """Register a learning rate scheduler, so that it is stepped and part of checkpoints.

        Args:
            lr_scheduler: A scheduler for an optimizer that `wrap_optimizer` returned.
            step_mode: An ``LRScheduler.StepMode``.
            frequency: Step it only at every `frequency`-th of these moments.

        Returns:
            The same scheduler.
        """
        if not hasattr(lr_scheduler, "step") or not hasattr(lr_scheduler, "state_dict"):
            raise InvalidModelError(
                f"wrap_lr_scheduler was given {describe(lr_scheduler)}, which is not a scheduler.\n"
                "Pass a torch.optim.lr_scheduler, or an object with step() and state_dict()."
            )
        optimizer = getattr(lr_scheduler, "optimizer", None)
        if optimizer is not None and not any(
            optimizer is registered for registered in self.optimizers
        ):
            raise InvalidExperimentError(
                f"the optimizer of {type(lr_scheduler).__name__} was not wrapped.\n"
                "Call context.wrap_optimizer first, and create the scheduler for the optimizer "
                "that it returns."
            )
        schedulers = [registered.scheduler for registered in self.lr_schedulers]
        self._check_wrapping(lr_scheduler, object, "wrap_lr_scheduler", schedulers)
        self.lr_schedulers.append(LRScheduler(lr_scheduler, step_mode, frequency))
        return lr_scheduler

    def wrap_scaler(self, scaler: Any) -> Any:
        """Register a ``torch.amp.GradScaler``, so that its state is part of checkpoints.

        Pass it to `step_optimizer`, then call its ``update()`` where `is_update_batch` is true.
        """
        if not hasattr(scaler, "unscale_") or not hasattr(scaler, "state_dict"):
            raise InvalidModelError(
                f"wrap_scaler was given {describe(scaler)}, which is not a gradient scaler.\n"
                "Pass a torch.amp.GradScaler."
            )
        self._check_wrapping(scaler, object, "wrap_scaler", self.scalers)
        self.scalers.append(scaler)
        return scaler

    def wrap_reducer(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> Any:
        """Register a metric that is not a mean over batches.

        Args:
            reducer: A `MetricReducer`, or a function of the list of values of all batches.
            name: Name of the metric; None if the reducer returns metrics by name.
            for_training: Whether it is part of training metrics.
            for_validation: Whether it is part of validation metrics.

        Returns:
            The reducer. For a function, it is a reducer whose ``update(value)`` adds a batch's
            value.
        """
        if not isinstance(reducer, MetricReducer):
            if not callable(reducer):
                raise InvalidExperimentError(
                    f"wrap_reducer was given {describe(reducer)}, which is neither a "
                    "detcore_torch.MetricReducer nor a function.\n"
                    "Pass an instance of a subclass, or a function of the list of all values."
                )
            reducer = FunctionReducer(reducer)
        reducers = [wrapped.reducer for wrapped in self.reducers]
        self._check_wrapping(reducer, MetricReducer, "wrap_reducer", reducers)
        self.reducers.append(WrappedReducer(reducer, name, for_training, for_validation))
        return reducer

    def backward(
        self,
        loss: Any,
        gradient: Any = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Add the gradients of a loss to the parameters, as ``loss.backward`` does.

        Args:
            loss: Usually a scalar tensor.
            gradient: As PyTorch's.
            retain_graph: As PyTorch's.
            create_graph: As PyTorch's.
        """
        if not isinstance(loss, torch.Tensor):
            raise InvalidModelError(
                f"backward was given {describe(loss)}, not a tensor.\n"
                "Pass the loss as the loss function returned it, without item() or float()."
            )
        if self.experimental.scaler is not None:
            loss = self.experimental.scaler.scale(loss)
        loss.backward(gradient, retain_graph=retain_graph, create_graph=create_graph)

    def step_optimizer(
        self,
        optimizer: Any,
        clip_grads: Callable[[Any], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: Any = None,
    ) -> None:
        """Update the parameters of an optimizer.

        With ``optimizations.aggregation_frequency: k`` the gradients of k batches are summed (and
        divided by k, unless ``average_aggregated_gradients: false``), and only each k-th call has
        an effect.

        Args:
            optimizer: An optimizer that `wrap_optimizer` returned.
            clip_grads: Called with the optimizer's parameters before the update. Their gradients
                are then unscaled and combined over batches and workers.
            auto_zero_grads: Whether to reset gradients after the update.
            scaler: The scaler that `wrap_scaler` returned, if the loss was scaled with it.
        """
        if not any(optimizer is registered for registered in self.optimizers):
            raise InvalidExperimentError(
                f"step_optimizer was given {describe(optimizer)}, which was not wrapped.\n"
                "Pass the optimizer that context.wrap_optimizer returned in __init__."
            )
        if not self.is_update_batch:
            return
        if scaler is None and self.experimental.scaler is not None:
            scaler = self.experimental.scaler
            self._has_scaled_step = True
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if self._aggregation > 1 and self._average:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self._aggregation)
        readers = [call for call in (clip_grads, self.before_update) if call is not None]
        if readers and scaler is not None:
            scaler.unscale_(optimizer)
        for call in readers:
            call(parameters)
        self._is_stepping = True
        try:
            optimizer.step() if scaler is None else scaler.step(optimizer)
        finally:
            self._is_stepping = False
        if auto_zero_grads:
            optimizer.zero_grad()

    @property
    def is_update_batch(self) -> bool:
        """Whether `step_optimizer` updates parameters in the batch that is being trained."""
        return self._batch_index is None or (self._batch_index + 1) % self._aggregation == 0

    def current_train_batch(self) -> int:
        """Return the number of the batch that is being trained, from 0, over all starts."""
        return self._read_position()[0]

    def current_train_epoch(self) -> int:
        """Return the epoch that is being trained, from 0."""
        batch_index, epoch_length = self._read_position()
        return batch_index // epoch_length

    def is_epoch_start(self) -> bool:
        """Return whether the batch that is being trained is the first of its epoch."""
        batch_index, epoch_length = self._read_position()
        return batch_index % epoch_length == 0

    def is_epoch_end(self) -> bool:
        """Return whether the batch that is being trained is the last of its epoch."""
        batch_index, epoch_length = self._read_position()
        return (batch_index + 1) % epoch_length == 0

    def finish_wrapping(self) -> None:
        """Check that a model and an optimizer are wrapped, and reject further wrapping.

        Raises:
            InvalidExperimentError: If no model or no optimizer was wrapped.
        """
        for kind, objects in (("model", self.models), ("optimizer", self.optimizers)):
            if not objects:
                raise InvalidExperimentError(
                    f"the trial has wrapped no {kind}, so it cannot train or save anything.\n"
                    f"Call self.{kind} = context.wrap_{kind}(...) in __init__."
                )
        self._is_ready = True

    @contextlib.contextmanager
    def training_batch(self, batch_index: int, epoch_length: int) -> Iterator[None]:
        """Train one batch in the block.

        Args:
            batch_index: The batch, from 0.
            epoch_length: Batches in an epoch.
        """
        self._batch_index, self._epoch_length = batch_index, epoch_length
        with contextlib.ExitStack() as stack:
            if not self.is_update_batch:
                # Workers average gradients once per update. Forward passes must also know it.
                self._without_exchange(stack)
            self._enter_autocast(stack)
            yield
        if self._has_scaled_step:
            self._has_scaled_step = False
            self.experimental.scaler.update()
        for scheduler in self.lr_schedulers:
            scheduler.after_batch(
                batch_index, aggregation=self._aggregation, epoch_length=epoch_length
            )

    @contextlib.contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Evaluate in the block: gradients are off and models are in evaluation mode."""
        modules = [module for model in (*self.models, *self._wrapped) for module in model.modules()]
        modes = [(module, module.training) for module in modules]
        batch_index, self._batch_index = self._batch_index, None
        self.share_buffers()
        try:
            for module in modules:
                module.training = False
            with contextlib.ExitStack() as stack:
                self._without_exchange(stack)
                stack.enter_context(torch.no_grad())
                self._enter_autocast(stack)
                yield
        finally:
            self._batch_index = batch_index
            for module, mode in modes:
                module.training = mode

    def list_saved_objects(self) -> list[object]:
        """Return all objects whose state is part of checkpoints, and their parts."""
        models = (*self.models, *self._wrapped)
        return [
            *(module for model in models for module in model.modules()),
            *(parameter for model in models for parameter in model.parameters()),
            *(buffer for model in models for buffer in model.buffers()),
            *self.optimizers,
            *self.lr_schedulers,
            *(wrapped.scheduler for wrapped in self.lr_schedulers),
            *self.scalers,
            *(wrapped.reducer for wrapped in self.reducers),
        ]

    def share_buffers(self) -> None:
        """Copy the chief's buffers to all workers (statistics of batch normalization, ...)."""
        self.group.broadcast_from_chief(b for model in self.models for b in model.buffers())

    def _enter_autocast(self, stack: contextlib.ExitStack) -> None:
        if self.experimental.scaler is not None:
            is_enabled = self.experimental.scaler.is_enabled()
            stack.enter_context(torch.autocast(self.device.type, enabled=is_enabled))

    def _without_exchange(self, stack: contextlib.ExitStack) -> None:
        for wrapped in self._wrapped:
            stack.enter_context(wrapped.no_sync())

    def _read_position(self) -> tuple[int, int]:
        if self._batch_index is None or self._epoch_length is None:
            raise ContextStateError(
                "the current batch and epoch are unknown: no batch is being trained.\n"
                "Call this method in train_batch."
            )
        return self._batch_index, self._epoch_length

    def _refuse_direct_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._is_stepping:
            raise InvalidExperimentError(
                f"{type(optimizer).__name__}.step() was called, but aggregation_frequency is "
                f"{self._aggregation}: it would update at every batch.\n"
                "Call context.step_optimizer(optimizer) instead."
            )

    def _check_wrapping(self, given: Any, kind: type, method: str, known: list[Any]) -> None:
        if not isinstance(given, kind):
            raise InvalidModelError(
                f"{method} was given {describe(given)}, not a {kind.__module__}.{kind.__name__}.\n"
                f"Pass an instance of that class to context.{method}."
            )
        if any(given is registered for registered in known):
            raise ContextStateError(
                f"{method} was called twice with the same {type(given).__name__}.\n"
                "Call it once, and keep the object that it returns."
            )
        if self._is_ready:
            raise ContextStateError(
                f"{method} was called after the trial was created.\n"
                "Wrapped objects are restored before training, so they must exist by then.\n"
                f"Call context.{method} in the trial's __init__."
            )


def _without_buffers() -> dict[str, bool]:
    """Return the argument that disables the exchange of buffers in forward passes.

    The controller broadcasts the chief's buffers before each batch. Exchanges in forward passes
    would also happen in validations, where workers have different numbers of batches. PyTorch 2.13
    renamed the argument.
    """
    parameters = inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers"
    return {name: False}
