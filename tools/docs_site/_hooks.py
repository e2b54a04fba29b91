"""Page of all hooks, generated from their specifications."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from detcore.contract import hooks as specs

__all__ = ["hooks_page"]

_ABOUT = """\
# Hooks

Generated from `detcore.contract.hooks`. [Writing a plugin](../writing-a-plugin.md) explains how
plugins are found and how faults are reported.
"""
_GROUPS = {"register": "Register hooks", "observer": "Observer hooks"}
_SECTION = re.compile(r"^(Args|Returns|Raises):$", re.MULTILINE)
_TITLES = {"Args": "Arguments", "Returns": "Returns", "Raises": "May raise"}


def hooks_page() -> str:
    """Return the page."""
    parts = [_ABOUT, _introduction()]
    for kind, title in _GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [_section(name) for name in _in_order() if f"Kind: {kind}." in _doc(name)]
    return "\n".join(parts)


def _introduction() -> str:
    text = inspect.cleandoc(specs.__doc__ or "").partition("\n\n")[2]
    return text.replace("``", "`") + "\n"


def _in_order() -> list[str]:
    """Return the hooks in the order of the file, which is the order of events."""
    return sorted(specs.__all__, key=lambda name: getattr(specs, name).__code__.co_firstlineno)


def _doc(name: str) -> str:
    return (inspect.getdoc(getattr(specs, name)) or "").replace("``", "`")


def _section(name: str) -> str:
    about, *sections = _SECTION.split(_doc(name))
    about = re.sub(r"^Kind: \w+\.\n?", "", about, flags=re.MULTILINE)
    about = re.sub(r"^When: ", "**When:** ", about, flags=re.MULTILINE)
    about = about.replace("\nExample::\n", "\n**Example**\n")
    parts = [f"### `{name}`\n", f"```python\n{_signature(name)}\n```\n", about.strip() + "\n"]
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        parts += [f"**{_TITLES[title]}**\n", *_entries(inspect.cleandoc(text), title), ""]
    return "\n".join(parts)


def _entries(text: str, title: str) -> Iterator[str]:
    """Yield the arguments (or errors) of a section as a list; yield other sections unchanged."""
    if title == "Returns":
        yield text
        return
    for entry in re.split(r"\n(?=\S)", text):
        name, _, about = entry.partition(":")
        yield f"- `{name}`: {' '.join(about.split())}"


def _signature(name: str) -> str:
    signature = inspect.signature(getattr(specs, name))
    arguments = [str(parameter).replace("'", "") for parameter in signature.parameters.values()]
    line = f"def {name}({', '.join(arguments)}) -> {signature.return_annotation}"
    if len(line) <= 88:
        return line
    body = "".join(f"    {argument},\n" for argument in arguments)
    return f"def {name}(\n{body}) -> {signature.return_annotation}"
