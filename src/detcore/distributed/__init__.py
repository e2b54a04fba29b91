"""Determine a worker's ranks within its trial, and exchange small values between the workers."""

from detcore.contract.distributed import DistributedContext
from detcore.distributed.launcher_settings import check_assigned, launcher_variables

__all__ = ["DistributedContext", "check_assigned", "launcher_variables"]
