"""Determine a worker's ranks within its trial, and exchange small values between the workers."""

from detcore.contract.distributed import DistributedContext
from detcore.distributed._launchers import launcher_variables

__all__ = ["DistributedContext", "launcher_variables"]
