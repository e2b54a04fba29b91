"""The context that the top-level command passes to its subcommands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from detcore.config import LoadedConfig
    from detcore.environment import Environment
    from detcore.plugins import PluginManager, PluginProblem


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CliContext:
    """The settings of one invocation. Subcommands receive it through ``click.pass_obj``.

    Attributes:
        environment: The settings from environment variables.
        disabled: Plugins switched off by ``--no-plugin``.
        allowed: The allow-list given by ``--plugins``, or None.
        reserved: Names of detcore's commands, each with the distribution that may register it, or
            "" for a built-in command.
        master: The server whose records are used, or None for the records in DETCORE_HOME.
    """

    environment: Environment
    disabled: frozenset[str] = frozenset()
    allowed: frozenset[str] | None = None
    reserved: Mapping[str, str] = dataclasses.field(default_factory=dict)
    master: str | None = None
    _managers: list[PluginManager] = dataclasses.field(default_factory=list, init=False)

    def plugin_manager(
        self, *, on_problem: Callable[[PluginProblem], None] | None = None
    ) -> PluginManager:
        """Return the manager of the enabled plugins.

        Args:
            on_problem: Called once for each faulty plugin, by a new manager; default: print a
                warning on stderr.
        """
        if self._managers and on_problem is None:
            return self._managers[0]
        from detcore.plugins import PluginManager

        manager = PluginManager(
            self.environment,
            disabled=self.disabled,
            allowed=self.allowed,
            reserved_commands=self.reserved,
            on_problem=on_problem,
        )
        if on_problem is None:
            self._managers.append(manager)
        return manager


def load_experiment_file(
    file: Path,
    settings: Sequence[str],
    *,
    environment: Environment,
    plugins: PluginManager,
    code_dir: Path | None,
) -> LoadedConfig:
    """Load an experiment file with overrides from ``--set`` and environment variables.

    Raises:
        ExperimentFileError: If the file has mistakes; the message lists all of them.
    """
    from detcore.config import load_config, parse_set_flags

    return load_config(
        file,
        overrides=parse_set_flags(settings),
        environment=environment.config_overrides,
        required=("entrypoint",),
        code_dir=code_dir,
        models=plugins.settings_models(),
    )
