"""Keras 3 on PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from detcore_keras.backends.backend import keras_function
from detcore_keras.backends.batch_steps import BatchBackend, RunStep

if TYPE_CHECKING:
    from detcore.core import DistributedContext
    from detcore_keras.backends.backend import Collective


@dataclasses.dataclass(frozen=True, slots=True)
class _DeviceGenerator:
    """The random generator of PyTorch on a device, such as the one that ``Dropout`` draws from."""

    get_state: Callable[[], Any]
    set_state: Callable[[Any], None]

    def numpy(self) -> npt.NDArray[np.uint8]:
        state: npt.NDArray[np.uint8] = self.get_state().numpy()
        return state

    def assign(self, value: npt.NDArray[np.uint8]) -> None:
        self.set_state(torch.from_numpy(value))


@dataclasses.dataclass(frozen=True, slots=True)
class _Buffer:
    """A buffer of a module, such as the running mean of ``torch.nn.BatchNorm1d``, as a variable."""

    module: torch.nn.Module
    name: str

    @property
    def tensor(self) -> torch.Tensor:
        return self.module.get_buffer(self.name)

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        return str(self.tensor.dtype).removeprefix("torch.")

    def assign(self, value: Any) -> None:
        with torch.no_grad():
            self.tensor.copy_(torch.as_tensor(value))


class TorchBackend(BatchBackend):
    """Keras 3 on PyTorch: steps run eagerly, and change the variables."""

    name = "torch"

    def prepare_devices(self, local_rank: int) -> None:
        """Choose the GPU of this worker."""
        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank % torch.cuda.device_count())

    def open_collective(self, distributed: DistributedContext, *, compress: bool) -> Collective:
        """Return the collectives of PyTorch."""
        from detcore_keras.distributed.torch_collective import TorchCollective

        return TorchCollective(distributed, compress=compress)

    def fix_operations(self, deterministic: bool | None) -> None:
        """Make operations deterministic; None: only on a CPU.

        On a CPU, one thread runs each operation, because the number of threads determines the order
        of its additions.
        """
        has_gpu = torch.cuda.is_available()
        if deterministic is not False and not has_gpu:
            torch.set_num_threads(1)
        if deterministic:
            torch.use_deterministic_algorithms(True)
        elif deterministic is None and not has_gpu:
            torch.use_deterministic_algorithms(True, warn_only=True)
        elif has_gpu:
            self.log_nondeterminism()

    def describe_machine(self) -> dict[str, int]:
        """Return numbers that may change the last bits of results."""
        return {"threads": torch.get_num_threads(), "gpu": torch.cuda.device_count()}

    def find_generators(self) -> dict[str, Any]:
        """Return PyTorch's generators of the CPU and of the GPUs."""
        generators = {"torch": _DeviceGenerator(torch.get_rng_state, torch.set_rng_state)}
        for index in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
            generator = torch.cuda.default_generators[index]
            generators[f"torch.cuda:{index}"] = _DeviceGenerator(
                generator.get_state, generator.set_state
            )
        return generators

    def is_variable(self, value: Any) -> bool:
        """Whether a value is a variable of Keras or a buffer of PyTorch."""
        return isinstance(value, _Buffer) or super().is_variable(value)

    def get_key(self, variable: Any) -> int:
        """Return a number that all wrappers of a variable share."""
        if isinstance(variable, _Buffer):
            return hash((id(variable.module), variable.name))
        return super().get_key(variable)

    def read_variable(self, variable: Any) -> npt.NDArray[Any]:
        """Return a copy of the value of a variable, or of an object like one."""
        if isinstance(variable, _Buffer):
            return np.array(self.keras.ops.convert_to_numpy(variable.tensor))
        return super().read_variable(variable)

    def list_tracked(self, value: Any) -> Iterable[tuple[str, Any]]:
        """Return the buffers of a layer, or of the module that a layer wraps."""
        if isinstance(value, self.keras.layers.Layer):
            is_wrapper = isinstance(value, self.keras.layers.TorchModuleWrapper)
            module: Any = value.module if is_wrapper else value
            for name, _ in module.named_buffers(recurse=is_wrapper):
                yield name, _Buffer(module, name)

    def as_batch_part(self, part: Any) -> Any:
        """Return a tensor of PyTorch, on the device of the model."""
        array = super().as_batch_part(part)
        return None if array is None else self.keras.ops.convert_to_tensor(array)

    def make_step(
        self, model: Any, kind: Literal["train", "test"], collective: Collective | None = None
    ) -> RunStep:
        """Return Keras's function of a step, whose results have no gradients."""
        function = keras_function(model, kind)

        def run_step(batch: Any) -> Any:
            outputs = function([batch])
            if not isinstance(outputs, Mapping):
                return outputs
            return {
                name: value.detach() if isinstance(value, torch.Tensor) else value
                for name, value in outputs.items()
            }

        return run_step

    def fit(self, model: Any, train: Callable[[], Mapping[str, float] | None]) -> None:
        """Call `train` in PyTorch's training mode, until it returns None."""
        model.stop_training = False
        model.reset_metrics()
        model.train()
        try:
            while train() is not None:
                pass
        finally:
            model.eval()

    def evaluate(self, model: Any, test: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Call `test` in PyTorch's evaluation mode, with fresh metrics. Return the metrics."""
        is_training = model.training
        model.eval()
        try:
            model.reset_metrics()
            metrics = model._get_metrics_result_or_logs(test())
        finally:
            model.train(is_training)
        convert = self.keras.ops.convert_to_numpy
        return {name: convert(value) for name, value in metrics.items()}
