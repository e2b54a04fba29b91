"""Preparation of a worker process before its trial is made: seeds, threads and the device."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from detcore_torch._torch import torch

if TYPE_CHECKING:
    from detcore.trial import PrepareOptions


def prepare_worker(options: PrepareOptions) -> None:
    """Seed PyTorch, choose the GPU, and fix the order of operations.

    | ``reproducibility.deterministic_ops`` | on a CPU | on a GPU |
    | --- | --- | --- |
    | not set | one thread per operation; others give a warning | as PyTorch |
    | true | one thread per operation; others are errors | others are errors |
    | false | as PyTorch | as PyTorch |

    Others: operations that have no deterministic form. The number of threads of an operation
    decides the order of its additions, so a run that is resumed on other cores would differ in the
    last bits. A trial that calls ``torch.set_num_threads(n)`` in its ``__init__`` gets n threads on
    every machine.

    Args:
        options: The trial's seed, the worker's rank, and the configured determinism.
    """
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(options.local_rank % torch.cuda.device_count())
    if options.deterministic_ops is not False and not has_gpu:
        torch.set_num_threads(1)
    if options.deterministic_ops:
        torch.use_deterministic_algorithms(True)
    elif options.deterministic_ops is None and not has_gpu:
        torch.use_deterministic_algorithms(True, warn_only=True)
    elif has_gpu:
        logging.getLogger("detcore.torch").info(
            "operations are not deterministic on a GPU, so a resumed run may differ in the last "
            "bits; reproducibility.deterministic_ops: true fixes their order"
        )
    torch.manual_seed(options.seed)
