"""Tests that the generated pages and the error page are complete."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
import pytest
from docs_site import (
    all_commands,
    api_page,
    commands_page,
    configuration_page,
    determined_names_page,
    for_the_site,
    hooks_page,
    public_modules,
)
from docs_site._configuration import SCHEMA
from source_tree import ROOT

from detcore import errors
from detcore.contract import hooks as specs
from detcore_determined.migrate.names import GONE, MOVED
from detcore_determined.migrate.names import MODULES as MODULES_OF_DETERMINED

DOCS = ROOT / "docs"
COMMANDS = list(all_commands())
MODULES = public_modules(ROOT)
ERRORS = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, errors.DetcoreError)
}


def section(text: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading of the same or a higher level."""
    rank = heading.split()[0]
    start = text.index(f"\n{heading}\n")
    following = text[start + len(heading) + 2 :]
    return re.split(rf"^#{{1,{len(rank)}}} ", following, maxsplit=1, flags=re.MULTILINE)[0]


def fields_of(schema: Any) -> Iterator[str]:
    """Yield the names of all fields in a JSON Schema, including nested fields."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield from schema["properties"]
        for value in schema.values():
            yield from fields_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from fields_of(value)


def test_config_fields_are_in_a_table() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", configuration_page(), re.MULTILINE))
    units = {"batches", "records", "epochs"}  # a length is explained once
    assert rows == set(fields_of(SCHEMA)) - units
    assert len(rows) > 80


def test_config_sections_have_headings() -> None:
    headings = re.findall(r"^## (.*)$", configuration_page(), re.MULTILINE)
    assert len(headings) == len(set(headings))
    models = [name for name, model in SCHEMA["$defs"].items() if model.get("properties")]
    assert len(headings) == 1 + len(models) + len(_hyperparameter_types())


def _hyperparameter_types() -> list[str]:
    choices = SCHEMA["properties"]["hyperparameters"]["additionalProperties"]["anyOf"]
    return [choice["title"] for choice in choices if "properties" in choice]


@pytest.mark.parametrize("field", ["searcher", "scheduling_unit", "checkpoint_policy"])
def test_a_field_is_shown_with_its_meaning(field: str) -> None:
    about = SCHEMA["properties"][field]["description"]
    row = re.search(rf"^\| `{field}` \|.*$", configuration_page(), re.MULTILINE)
    assert row is not None
    assert about in row[0]


@pytest.mark.parametrize("hook", specs.__all__)
def test_every_hook_is_there_with_its_arguments(hook: str) -> None:
    text = section(hooks_page(), f"### `{hook}`")
    assert f"def {hook}(" in text
    assert "**When:**" in text
    for argument in inspect.signature(getattr(specs, hook)).parameters:
        assert f"- `{argument}`: " in text


def test_names_page_lists_determined_names() -> None:
    text = determined_names_page()
    for name in (*MODULES_OF_DETERMINED, *MOVED, *GONE):
        assert f"\n| `{name}` | " in text


def test_the_hooks_page_has_nothing_else() -> None:
    assert set(re.findall(r"^### `(\w+)`", hooks_page(), re.MULTILINE)) == set(specs.__all__)


@pytest.mark.parametrize(
    ("context", "command"), COMMANDS, ids=[context.command_path for context, _ in COMMANDS]
)
def test_every_command_is_there_with_its_options(
    context: click.Context, command: click.Command
) -> None:
    text = section(commands_page(), f"## {context.command_path}")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.opts[-1] in text


def test_there_are_commands_to_look_at() -> None:
    paths = [context.command_path for context, _ in COMMANDS]
    assert {"detcore run", "detcore plugins doctor", "detcore model create"} <= set(paths)
    assert len(paths) == len(set(paths)) > 40


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_on_module_pages(module: str) -> None:
    text = api_page(module, MODULES[module], MODULES)
    for name in MODULES[module]:
        if not name.startswith("__"):
            assert f"::: {module}.{name}\n" in text or f"## {name}\n" in text


def test_public_modules_have_public_names() -> None:
    assert {"detcore", "detcore.core", "detcore_testing", "detcore_keras"} <= set(MODULES)
    assert not any("._" in module for module in MODULES)


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_explained(name: str) -> None:
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    if ERRORS[name].__name__ != name:  # a name from Determined
        assert f"| `{name}` | [{ERRORS[name].__name__}]" in text
        return
    about = section(text, f"### {name}")
    assert "- **Why:** " in about
    assert "- **Fix:** " in about
    for base in ERRORS[name].__bases__:
        if base not in (errors.DetcoreError, Exception):
            assert re.search(rf"\b{base.__name__}\b", about), f"{name} is also a {base.__name__}"


def test_no_error_is_explained_that_is_not_there() -> None:
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) <= set(ERRORS)


def test_site_has_no_test_comments_or_dead_links() -> None:
    page = (
        "<!-- blocks: env=keras -->\n<!-- hidden: python\nassert True\n-->\n"
        "[errors](errors.md), [the digits](../examples/digits_keras/model_def.py)\n"
    )
    content = for_the_site(page, page="index.md", docs=DOCS)
    assert content == "[errors](errors.md), the digits (`examples/digits_keras/model_def.py`)\n"


def test_link_to_missing_file_is_reported() -> None:
    with pytest.raises(FileNotFoundError, match="examples/gone"):
        for_the_site("[gone](../examples/gone.py)", page="index.md", docs=DOCS)


def test_drawing_is_embedded_in_page() -> None:
    text = (DOCS / "concepts.md").read_text(encoding="utf-8")
    content = for_the_site(text, page="concepts.md", docs=DOCS)
    assert content.count("<svg") == 1
    assert "img/concepts.svg" not in content
