"""Tests of the package pages: links, URLs and classifiers."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
# Targets of "[text](target)" and of "[name]: target".
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
USE = re.compile(r"\]\[([^\]]+)\]")


def project(folder: Path) -> dict[str, Any]:
    with (folder / "pyproject.toml").open("rb") as file:
        table: dict[str, Any] = tomllib.load(file)["project"]
    return table


def files_of(folder: Path) -> str:
    """Return the URL prefix of repository files, from the package's own URLs."""
    return f"{project(folder)['urls']['Source']}/blob/main/"


def assert_leads_to_a_file(url: str, folder: Path) -> None:
    if url.startswith(files_of(folder)):
        path = url.removeprefix(files_of(folder)).partition("#")[0]
        assert (ROOT / path).is_file(), url


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_readme_links_are_absolute_and_valid(folder: Path) -> None:
    text = (folder / project(folder)["readme"]).read_text()
    links = [inline or defined for inline, defined in LINK.findall(text)]
    assert links
    for link in links:
        assert re.match(r"https://", link), f"{link} is dead on the package's page"
        assert_leads_to_a_file(link, folder)
    for name in USE.findall(text):
        assert f"\n[{name}]: " in text, f"[{name}] is not defined"


def test_the_source_of_the_core_has_no_plugins() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        build = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]
    for pattern in build["sdist"]["include"]:  # "src" is any directory with this name
        assert pattern.startswith("/")
        assert (ROOT / pattern[1:]).exists()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_package_has_urls_and_licence(folder: Path) -> None:
    metadata = project(folder)
    assert list(metadata["urls"]) == ["Documentation", "Source", "Issues", "Changelog"]
    assert metadata["urls"]["Source"] == project(ROOT)["urls"]["Source"]
    for url in metadata["urls"].values():
        assert_leads_to_a_file(url, folder)
    assert metadata["license"] == "Apache-2.0"
    assert (folder / "LICENSE").is_file()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_classifiers_match_tested_versions(folder: Path) -> None:
    source = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    tested = set(re.findall(r'\("(3\.\d+)", "(\w+)"\)', source))
    frameworks = ("estimator", "horovod", "keras", "ray", "torch")
    versions = {
        version
        for version, example in tested
        if example != "core_api" or folder.name not in frameworks
    }
    assert len(versions) == (1 if folder.name in frameworks else 5)
    prefix = "Programming Language :: Python :: 3."
    classifiers = project(folder)["classifiers"]
    minor_versions = {item for item in classifiers if item.startswith(prefix)}
    assert minor_versions == {f"Programming Language :: Python :: {item}" for item in versions}
    core = project(ROOT)["classifiers"]
    assert [item for item in classifiers if item not in minor_versions] == [
        item for item in core if not item.startswith(prefix)
    ]
