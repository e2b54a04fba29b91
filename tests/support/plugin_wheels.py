"""Wheels of all distributions, and clean environments with only wheels.

Third-party packages are linked from the running environment. Creating an environment therefore
takes a second, needs no network and uses the locked versions.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = [
    "CleanEnvironment",
    "PluginTests",
    "build_wheel",
    "detcore_wheel",
    "house_wheels",
    "with_required",
]

ROOT = Path(__file__).parents[2]
# Variables that would connect the environment or its tests to the repository.
_LEADS_BACK = ("DETCORE_", "PYTHON", "PYTEST_", "UV_", "VIRTUAL_ENV")
_CHECK = """
import importlib.metadata, importlib.util, json, sys
places = {}
for found in importlib.metadata.distributions():
    name = found.metadata["Name"]
    if name.startswith("detcore"):
        origin = importlib.util.find_spec(name.replace("-", "_")).origin
        places[name] = [origin, str(found.read_text("direct_url.json") or "")]
print(json.dumps({"path": sys.path, "places": places}))
"""


def build_wheel(folder: Path, into: Path) -> Path:
    """Build the wheel of a distribution with its own build settings.

    The installed build back end is used, so nothing is downloaded.

    Args:
        folder: Directory with a ``pyproject.toml``.
        into: Directory for the wheel. Created if missing.
    """
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into) as directory:
        _uv("build", "--wheel", "--no-build-isolation", "--python", sys.executable,
            "--out-dir", directory, str(folder))  # fmt: skip
        (wheel,) = Path(directory).glob("*.whl")
        return Path(shutil.move(wheel, into / wheel.name))


@functools.cache
def detcore_wheel(plugin: str = "") -> Path:
    """Return the wheel of the core or a plugin, built once per process from the repository.

    Args:
        plugin: Directory under ``plugins``. Default: the core.
    """
    folder = Path(tempfile.mkdtemp(prefix="detcore-wheel-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return build_wheel(ROOT / "plugins" / plugin if plugin else ROOT, folder)


@dataclasses.dataclass(frozen=True, slots=True)
class PluginTests:
    """Result of running a plugin's tests in a clean environment.

    Attributes:
        code: Exit code of pytest.
        passed: Names of passed tests, such as ``"TestLine.test_exact_resume"``.
        skipped: Reasons by names of skipped tests.
        failed: Names of tests that failed or could not be set up.
        output: Output of pytest.
    """

    code: int
    passed: Sequence[str]
    skipped: Mapping[str, str]
    failed: Sequence[str]
    output: str


def house_wheels(*plugins: str) -> list[Path]:
    """Return the wheels of the core, some plugins and the plugins they require.

    Args:
        *plugins: Directories under ``plugins``.
    """
    return [detcore_wheel(), *map(detcore_wheel, with_required(*plugins))]


def with_required(*plugins: str) -> list[str]:
    """Return plugin directories, followed by the plugins they require."""
    names = [*plugins]
    for name in names:  # the loop extends this list
        text = (ROOT / "plugins" / name / "pyproject.toml").read_text()
        required = text.partition("\ndependencies = [")[2].partition("]\n")[0]
        names += {*re.findall(r'"detcore-(\w+)', required)} - {*names}
    return names


class CleanEnvironment:
    """A virtual environment with wheels and linked third-party packages.

    Args:
        folder: Path of the environment, which must not exist.
        wheels: Wheels to install. Their requirements are checked as by an installer.
    """

    def __init__(self, folder: Path, wheels: Sequence[Path]) -> None:
        self.folder = folder
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(folder)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.site_packages = folder / "lib" / version / "site-packages"
        _link_third_party(Path(sysconfig.get_path("purelib")), self.site_packages)
        self.install(*map(str, wheels), "--no-index")
        self._check()

    def install(self, *arguments: str) -> str:
        """Install with ``uv pip install``, and return its output."""
        return _uv("pip", "install", "--python", str(self.python), *arguments)

    def variables(self, **more: str) -> dict[str, str]:
        """Return the environment variables of processes in this environment."""
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith(_LEADS_BACK)
        }
        path = f"{self.bin}{os.pathsep}{variables.get('PATH', os.defpath)}"
        return {**variables, "PATH": path, "DETCORE_HOME": str(self.folder / "home"), **more}

    def run(
        self, *arguments: object, cwd: Path | None = None, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command from this environment's ``bin``, such as ``"detcore"``.

        Raises:
            subprocess.TimeoutExpired: If the timeout expires. Its child processes are killed.
        """
        name, *options = map(str, arguments)
        command = [str(self.bin / name), *options]
        # A separate process group, so that child processes are killed as well.
        process = subprocess.Popen(
            command, cwd=cwd or self.folder, env=self.variables(), start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def run_tests(self, distribution: Path, *arguments: str, timeout_s: float = 600) -> PluginTests:
        """Run the tests of a distribution from a copy without the source.

        Args:
            distribution: Directory with ``tests`` and ``pyproject.toml``.
            *arguments: Additional pytest arguments, such as ``"-n2"``.
            timeout_s: Timeout after which pytest is killed (`subprocess.TimeoutExpired`).
        """
        with tempfile.TemporaryDirectory(prefix="detcore-plugin-tests-") as temporary:
            copy = Path(temporary)
            shutil.copy(distribution / "pyproject.toml", copy)
            hidden = shutil.ignore_patterns("__pycache__")
            shutil.copytree(distribution / "tests", copy / "tests", ignore=hidden)
            report = copy / "report.xml"
            result = self.run(
                "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}",
                f"--basetemp={copy / 'temporary'}", "tests", *arguments,
                cwd=copy, timeout_s=timeout_s,
            )  # fmt: skip
            if not report.exists():
                raise AssertionError(
                    f"pytest did not get to its end:\n{result.stdout}{result.stderr}"
                )
            return _read_report(report, result)

    def _check(self) -> None:
        """Check that all detcore packages come from the wheels."""
        result = self.run("python", "-P", "-W", "error", "-c", _CHECK)
        assert result.returncode == 0, result.stderr
        packages = json.loads(result.stdout)
        assert "detcore" in packages["places"], packages
        assert not list(self.site_packages.glob("*.pth"))
        outside = [place for place in packages["path"] if Path(place).is_relative_to(ROOT)]
        assert not outside, f"{outside} can be imported from"
        for name, (origin, url) in packages["places"].items():
            is_installed = Path(origin).resolve().is_relative_to(self.site_packages.resolve())
            assert is_installed, f"{name} is imported from {origin}"
            assert "editable" not in url, f"{name} is an editable installation: {url}"


def _link_third_party(source: Path, target: Path) -> None:
    """Link an environment's third-party packages into another environment."""
    for entry in source.iterdir():
        ours = entry.name.lower().lstrip("_").startswith(("detcore", "editable"))
        if ours or entry.suffix == ".pth" or entry.name == "__pycache__":
            continue
        if entry.suffix == ".dist-info":
            shutil.copytree(entry, target / entry.name)  # uv requires directories instead of links
        else:
            (target / entry.name).symlink_to(entry)


def _read_report(path: Path, done: subprocess.CompletedProcess[str]) -> PluginTests:
    passed, skipped, failed = [], {}, []
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        skip = case.find("skipped")
        if skip is not None:
            skipped[name] = skip.get("message", "")
        elif case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        else:
            passed.append(name)
    return PluginTests(done.returncode, passed, skipped, failed, done.stdout + done.stderr)


def _uv(*arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "uv", "--offline", "--no-config", "--quiet", *arguments],
        env={name: value for name, value in os.environ.items() if not name.startswith("UV_")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, f"uv {' '.join(arguments)}:\n{result.stdout}{result.stderr}"
    return result.stdout
