"""Everything that a plugin author implements or calls, and the values that cross between parts.

Read in this order: `values` and `errors`; `hook_values` and `hooks`, by which detcore finds a
plugin; then the module of the plugin's kind: `trial`, `controllers`, `distributed`, `data` and
`metrics` for a framework, `storage`, `launch` or `search` for the others.

Code imports these names from where the guides document them, such as `detcore.errors` or
`detcore.trial`. The room imports nothing of the rest of the core, except that `DistributedContext`
and `TrialContext.from_config` load their machinery when they are called.
"""

from detcore.lazy import lazy_names

__all__ = [
    "controllers",
    "data",
    "distributed",
    "errors",
    "hook_values",
    "hooks",
    "launch",
    "metrics",
    "search_method",
    "storage",
    "trial",
    "values",
]

__getattr__, __dir__ = lazy_names(__name__, {"": " ".join(__all__)})
