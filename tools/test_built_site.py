"""The site that ``mkdocs build`` has just written; run by the nox session ``docs``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from docs_site import public_modules

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"
PAGES = sorted(SITE.rglob("*.html"))
_LOADED = re.compile(r"<(?:link|script|img|iframe|source)\b[^>]*\b(?:href|src)=[\"']?([^\"'\s>]+)")


def test_there_is_a_site() -> None:
    assert len(PAGES) > 60


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(SITE).as_posix())
def test_a_page_loads_nothing_from_elsewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    foreign = [url for url in _LOADED.findall(text) if re.match(r"(?:https?:)?//", url)]
    assert foreign == []


def test_the_styles_load_nothing_from_elsewhere() -> None:
    for path in SITE.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import )[\"']?https?:", path.read_text("utf-8")) == [], path


def test_pages_contain_no_test_comments() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert re.search(r"<!-- (?:blocks?|hidden): ", text) is None, page


@pytest.mark.parametrize("module", public_modules(ROOT).items(), ids=lambda module: module[0])
def test_every_public_name_has_its_place(module: tuple[str, tuple[str, ...]]) -> None:
    name, names = module
    text = (SITE / "reference" / "api" / f"{name}.html").read_text(encoding="utf-8")
    anchors = set(re.findall(r'\bid="([^"]+)"', text))
    for public in names:
        if not public.startswith("__"):
            assert f"{name}.{public}" in anchors or public.lower() in anchors, public


def test_the_search_knows_the_pages() -> None:
    index = (SITE / "search" / "search_index.json").read_text(encoding="utf-8")
    for words in ("CollectiveMismatchError", "detcore_register_storage", "min_validation_period"):
        assert words in index


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("submit", "server.html"),
        ("resume", "running.html"),
        ("retry", "running.html"),
        ("pause", "running.html"),
        ("docker", "installation.html"),
        ("container", "installation.html"),
        ("notebook", "installation.html"),
        ("gpu", "installation.html"),
        ("early stopping", "errors.html"),
        ("longer", "errors.html"),
    ],
)
def test_search_words_are_in_headings(word: str, page: str) -> None:
    index = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))
    titles = [
        entry["title"].lower()
        for entry in index["docs"]
        if entry["location"].partition("#")[0] == page
    ]
    assert any(word in title for title in titles), titles


def test_guides_are_found_before_the_reference() -> None:
    index = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))
    boosts = {entry["location"]: entry.get("boost", 1) for entry in index["docs"]}
    assert boosts["running.html"] == 1
    assert all(boost < 1 for place, boost in boosts.items() if place.startswith("reference/"))


def test_copy_button_omits_prompts_and_output() -> None:
    """Material copies only displayed elements, and marks the block while it copies."""
    styles = (SITE / "site.css").read_text(encoding="utf-8")
    assert "[data-md-copying] .gp, [data-md-copying] .go { display: none; }" in styles
    scripts = "".join(path.read_text("utf-8") for path in SITE.glob("assets/javascripts/*.js"))
    assert "data-md-copying" in scripts
    page = (SITE / "quickstart.html").read_text(encoding="utf-8")
    assert '<span class="gp">$ </span>' in page
