"""Connect the workers of JAX, and sum their gradients inside the training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from detcore.errors import InvalidExperimentError
from detcore_keras.distributed.rendezvous import shared_directory

if TYPE_CHECKING:
    from detcore.core import DistributedContext
    from detcore.errors import DistributedError

_AXIS = "workers"


class JaxCollective:
    """JAX's collectives, as a `Collective`. On a CPU, they use Gloo.

    Args:
        distributed: The workers.
        compress: Whether gradients are sent as half-precision numbers.

    Raises:
        InvalidExperimentError: If the code used JAX before, or there are several machines.
    """

    def __init__(self, distributed: DistributedContext, *, compress: bool) -> None:
        self.size = distributed.size
        self.failure: DistributedError | None = None
        self._compress = compress
        is_new = _connect(distributed)
        # One device for each worker.
        devices = {device.process_index: device for device in reversed(jax.devices())}
        mesh = Mesh(np.array([devices[rank] for rank in range(self.size)]), (_AXIS,))
        self._place = NamedSharding(mesh, PartitionSpec())
        if is_new:
            # Connects the devices. They stay connected without the service that was needed for it,
            # whose port and whose waiting for each other at the exit therefore end here.
            self.compile_step(lambda count, _: jax.lax.psum(count, _AXIS))(1.0, ())
            jax.distributed.shutdown()

    def sum_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the sums over the workers, while a step of `compile_step` is traced."""
        sent = [
            g.astype(jnp.float16) if self._compress and jnp.issubdtype(g.dtype, jnp.floating) else g
            for g in gradients
        ]
        sums = jax.lax.psum(sent, _AXIS)
        return [total.astype(g.dtype) for total, g in zip(sums, gradients, strict=True)]

    def compile_step(self, step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Compile a step that each worker runs on its own state and batch.

        JAX regards the values of the workers as copies of one value, and does not compare them.
        """
        everywhere = PartitionSpec()
        compiled = jax.jit(
            jax.shard_map(
                step,
                mesh=self._place.mesh,
                in_specs=everywhere,
                out_specs=everywhere,
                check_vma=False,
            ),
            donate_argnums=0,
        )

        def share_array(value: Any) -> Any:
            array = jnp.asarray(value)
            return jax.make_array_from_single_device_arrays(array.shape, self._place, [array])

        def run_step(state: Any, batch: Any) -> Any:
            result = compiled(*jax.tree.map(share_array, (state, batch)))
            return jax.tree.map(lambda value: value.addressable_data(0), result)

        return run_step


def _connect(distributed: DistributedContext) -> bool:
    """Connect the processes of JAX. Return False if they are connected already."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # It would replace the handler of SIGTERM, with which a trial saves and ends.
    jax.config.update("jax_enable_preemption_service", False)
    with shared_directory(distributed) as folder:
        try:
            jax.distributed.initialize(
                f"unix:{folder / 'workers'}",
                distributed.size,
                distributed.rank,
                local_device_ids=distributed.local_rank,
                coordinator_bind_address=f"unix:{folder / 'workers'}",
            )
        except RuntimeError as error:
            if jax.process_count() == distributed.size:
                return False
            raise InvalidExperimentError(
                "the code used JAX before its workers were connected, for example for a random "
                f"generator or an array of keras.ops in a module of the model: {error}\n"
                "Create such values in the methods of the trial, or set "
                "resources.slots_per_trial: 1."
            ) from error
    return True
