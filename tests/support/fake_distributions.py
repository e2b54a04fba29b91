"""Installed distributions: a package and a ``.dist-info`` directory."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["install_prefix", "run_detcore", "run_python", "uninstall_prefix", "write_distribution"]

GOOD_HOOKS = """
from detcore import hookimpl

@hookimpl
def detcore_trial_started(trial):
    pass
"""


def write_distribution(
    site: Path,
    name: str,
    *,
    version: str = "1.0",
    modules: Mapping[str, str] | None = None,
    plugins: Mapping[str, str] | None = None,
    commands: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
    entry_points: str | None = None,
    metadata: str | None = None,
) -> Path:
    """Write a distribution into a directory for ``PYTHONPATH``.

    Args:
        site: The directory. Created if missing.
        name: Name of the distribution, such as ``"detcore-good"``.
        version: Version of the distribution.
        modules: Sources by module name. Default: ``<package>.plugin`` with one hook.
        plugins: Entry points of group ``detcore``. Default: one, named after the package.
        commands: Entry points of group ``detcore.commands``.
        requires: The ``Requires-Dist`` lines.
        entry_points: Complete text of ``entry_points.txt`` instead.
        metadata: Complete text of ``METADATA`` instead.

    Returns:
        The ``.dist-info`` directory.
    """
    package = name.replace("-", "_")
    short = name.partition("-")[2] or name
    plugins = {short: f"{package}.plugin"} if plugins is None else plugins
    for module, source in (
        {f"{package}.plugin": GOOD_HOOKS} if modules is None else modules
    ).items():
        _write_module(site, module, textwrap.dedent(source))
    info = site / f"{package}-{version}.dist-info"
    info.mkdir(parents=True)
    if entry_points is None:
        groups = {"detcore": plugins, "detcore.commands": commands or {}}
        entry_points = "".join(
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items())
            for group, lines in groups.items()
            if lines
        )
    (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    if metadata is None:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    return info


def _write_module(site: Path, module: str, source: str) -> None:
    *parents, last = module.split(".")
    folder = site
    for parent in parents:
        folder = folder / parent
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{last}.py").write_text(source, encoding="utf-8")


def run_python(
    *arguments: str, sites: Sequence[Path] = (), variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with directories on ``PYTHONPATH`` and no other plugin settings."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DETCORE_")}
    environ.pop("PYTHONWARNINGS", None)
    environ["PYTHONPATH"] = os.pathsep.join(map(str, sites))
    environ.update(variables or {})
    return subprocess.run(
        [sys.executable, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def run_detcore(
    *arguments: str,
    sites: Sequence[Path] = (),
    only: Sequence[str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the command line. `only` excludes the plugins of this environment."""
    variables = dict(variables or {})
    if only is not None:
        variables["DETCORE_PLUGINS"] = ",".join(only)
    return run_python("-m", "detcore", *arguments, sites=sites, variables=variables)


def install_prefix() -> str:
    """Return the start of the command that installs into this environment."""
    if importlib.util.find_spec("pip") is not None:
        return f"{sys.executable} -m pip install"
    return f"uv pip install --python {sys.executable}"


def uninstall_prefix() -> str:
    """Return the start of the command that uninstalls from this environment."""
    if importlib.util.find_spec("pip") is not None:
        return f"{sys.executable} -m pip uninstall --yes"
    return f"uv pip uninstall --python {sys.executable}"
