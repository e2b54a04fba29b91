"""Start workers by hand and on several machines: ``detcore launch``, Horovod, tools for launchers.

Names are imported on first use.
"""

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_horovod._hosts import HostsJob, HostsRequest, SupportsHosts
    from detcore_horovod._jobs import run_on_hosts, run_workers
    from detcore_horovod._log_relay import LogCopy, LogSource, log_header
    from detcore_horovod._ranks import interface_with, rank_variables, start_rank

__version__ = "0.1.0"

__all__ = [
    "HostsJob",
    "HostsRequest",
    "LogCopy",
    "LogSource",
    "SupportsHosts",
    "__version__",
    "interface_with",
    "log_header",
    "rank_variables",
    "run_on_hosts",
    "run_workers",
    "start_rank",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_hosts": "HostsJob HostsRequest SupportsHosts",
        "_jobs": "run_on_hosts run_workers",
        "_log_relay": "LogCopy LogSource log_header",
        "_ranks": "interface_with rank_variables start_rank",
    },
)
