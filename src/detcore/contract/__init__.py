"""Everything that a plugin author implements or calls, and the values that packages exchange.

Suggested reading order: `values` and `errors`; `hook_values` and `hooks`, through which detcore
finds a plugin; then the modules for one kind of plugin. Frameworks use `trial`, `controllers`,
`distributed`, `data` and `metrics`. Other plugins use `storage`, `launch` or `search_method`.

Import these names from their documented modules, such as `detcore.errors` or `detcore.trial`. This
package imports nothing from the rest of the core, except that `DistributedContext` and
`TrialContext.from_config` load their implementation when they are called.
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
