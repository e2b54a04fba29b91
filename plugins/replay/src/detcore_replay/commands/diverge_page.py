"""The page of ``detcore diverge``, in the style of ``detcore report``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.describe import format_number
from detcore_replay.commands.result_printing import describe_difference
from detcore_report import escape, page, table

if TYPE_CHECKING:
    from detcore_replay.diverge.digest_comparison import Difference
    from detcore_replay.diverge.first_difference import Divergence


_MOST_ROWS = 500
_MOST_LINES = 2000
_WIDTH, _HEIGHT = 800, 12
_MEANINGS = {
    "initial state": "A tensor differs before the first step.",
    "record order": "The batches have other records, or the same in another order.",
    "record content": "The batches have the same records with other content.",
    "random draw": "With the same batch, a random generator stands elsewhere after the step.",
    "loss": "With the same batch, the metrics of the step differ.",
    "tensor": "With the same batch, random draws and metrics, a tensor differs after the step.",
    "model": "The runs train different models.",
}


def divergence_page(result: Divergence) -> str:
    """Return a page that says where two runs part; it loads nothing."""
    one, other = result.labels
    found = result.found
    title = f"{one} and {other} are equal" if found is None else f"{one} and {other} differ"
    parts = [f"<h1>{escape(title)}</h1>", _verdict(result)]
    parts += [f"<p>{escape(note)}</p>" for note in result.notes]
    if found is not None and found.tensors:
        parts += [f"<h2>After step {found.step}</h2>", _tensors(found, result.labels)]
    parts += ["<h2>Before the first step</h2>", _settings(result)]
    if result.code:
        parts += ["<h2>Code</h2>", _code(result.code)]
    return page(title, "\n".join(parts))


def _verdict(result: Divergence) -> str:
    found, last = result.found, result.compared_to
    if found is None:
        return f'<p class="ok">Equal up to step {last}.</p>{_bar(last, last)}'
    return (
        f'<p class="bad">{escape(describe_difference(found))}</p>'
        f"<p>{escape(_MEANINGS[found.kind])}</p>"
        f"{_bar(max(found.step - 1 if found.is_exact else found.after, 0), last)}"
    )


def _bar(equal: int, last: int) -> str:
    """Return a drawing of the steps that are equal, and of those from the difference on."""
    x = _WIDTH * equal / max(last, 1)
    text = f"{equal} of {last} steps are equal"
    return (
        f'<figure><svg class="fit" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{text}">'
        f'<rect width="{x:.1f}" height="{_HEIGHT}" style="fill:var(--ok)"/>'
        f'<rect x="{x:.1f}" width="{_WIDTH - x:.1f}" height="{_HEIGHT}" style="fill:var(--bad)"/>'
        f'</svg></figure><p class="dim">{text}</p>'
    )


def _tensors(found: Difference, labels: tuple[str, str]) -> str:
    measured = {name: values for name, *values in found.measured}
    rows = [
        ("", [name, *(format_number(value) for value in measured.get(name, ()))])
        for name in found.tensors[:_MOST_ROWS]
    ]
    more = len(found.tensors) - len(rows)
    caption = "In the order of the computation: the element that differs most"
    caption += f" (and {more} more tensors: --json)" if more > 0 else ""
    rows = [(name, [*cells, *[""] * (4 - len(cells))]) for name, cells in rows]
    header = ["tensor", "difference", *labels]
    return table(caption, header, rows, right=(1, 2, 3), is_tall=True)


def _settings(result: Divergence) -> str:
    if not result.settings:
        return "<p>The same settings, packages and machine.</p>"
    rows = [("", list(row)) for row in result.settings]
    return table("What differs", ["setting", *result.labels], rows, is_tall=True)


def _code(lines: list[str]) -> str:
    marks = {"+": "ok", "-": "bad", "@": "dim"}
    shown = [
        f'<span class="{marks.get(line[:1], "")}">{escape(line)}</span>'
        for line in lines[:_MOST_LINES]
    ]
    return f"<pre>{chr(10).join(shown)}</pre>"
