"""HTML parts of pages. All strings from users are escaped here."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from detcore.record_descriptions import format_bytes, format_duration, format_number, format_time

# Characters that HTML forbids, or that change the direction of the surrounding text.
_FORBIDDEN_CHARACTERS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_LIGHT = """--fg:#1b1f24;--dim:#5b6470;--bg:#fff;--box:#f5f6f8;--line:#d5d9df;--shade:#0004;
--accent:#b34700;--ok:#116329;--bad:#b3261e;--none:#767676;
--k0:#0072b2;--k1:#c84c00;--k2:#00805c;--k3:#a8447c;--k4:#8a6a00;--k5:#5b4bb7;--k6:#4d4d4d;
--k7:#a03030;--q0:#c84c00;--q1:#08306b;--q2:#1a5597;--q3:#3878b5;--q4:#6399c6;--q5:#8db5d6"""
# Images use the colours of the light mode.
COLOURS = dict(re.findall(r"--(\w+):(#\w+)", _LIGHT))
_DARK = """--fg:#e4e7eb;--dim:#9aa4b0;--bg:#14171b;--box:#1e2227;--line:#3a414a;--shade:#fff5;
--accent:#ffb27a;--ok:#7ee2a0;--bad:#ff9a92;--none:#8c8c8c;
--k0:#5db3f0;--k1:#ff9b5c;--k2:#3fcf9f;--k3:#f08fc5;--k4:#e0c04a;--k5:#a99bff;--k6:#c8c8c8;
--k7:#ff8a8a;--q0:#ff9b5c;--q1:#d6ebff;--q2:#a3cdf2;--q3:#75aee0;--q4:#5089bd;--q5:#3b6690"""
_PAGE = """
body{margin:0 auto;padding:1.5rem;max-width:76rem;font:15px/1.5 system-ui,sans-serif;
color:var(--fg);background:var(--bg)}
h1{font-size:1.5rem;margin:0 0 .5rem;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2rem 0 .5rem}
"""
_PRINT = "@media print{.scroll,.tall{overflow:visible;max-height:none}}"
# Scrolling boxes have a shade at each side with more content. A drawing is as wide as its figure.
# Its text sizes are in units of the drawing, and grow if the drawing shrinks.
_PARTS = """
*{box-sizing:border-box}
h3{font-size:1rem;margin:1rem 0 .25rem;font-weight:600;overflow-wrap:anywhere}
a{color:var(--accent)}
p{margin:.4rem 0}.dim{color:var(--dim)}.ok{color:var(--ok)}.bad{color:var(--bad)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:.5rem 0}
dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:6px;background:
linear-gradient(90deg,var(--bg) 50%,#0000) 0 0/2.4rem 100% no-repeat local,
linear-gradient(270deg,var(--bg) 50%,#0000) 100% 0/2.4rem 100% no-repeat local,
linear-gradient(90deg,var(--shade),#0000) 0 0/1.2rem 100% no-repeat,
linear-gradient(270deg,var(--shade),#0000) 100% 0/1.2rem 100% no-repeat}
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--accent)}
.tall{max-height:32rem;overflow-y:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--dim);padding:.3rem .6rem}
th,td{padding:.25rem .6rem;text-align:left;vertical-align:top;unicode-bidi:isolate;
max-width:26rem;overflow-wrap:break-word;border-bottom:1px solid var(--line)}
tr:last-child>td{border-bottom:0}
thead th{position:sticky;top:0;background:var(--box);white-space:nowrap}
th.r,td.r{text-align:right;white-space:nowrap}
tbody tr:hover{background:var(--box)}
pre{margin:0;padding:.7rem;background:var(--box);font:13px/1.45 ui-monospace,monospace;
white-space:pre-wrap;overflow-wrap:anywhere;border-radius:6px}
figure{margin:.5rem 0 1rem;container-type:inline-size}
svg{display:block;font:12px system-ui,sans-serif}
svg.parallel{min-width:100%;height:auto}
svg.fit{width:100%;height:auto;overflow:visible}
svg.instead{display:none}
@container (max-width:60rem){svg.big text{font-size:16px}}
@container (max-width:44rem){svg.big,.across{display:none}svg.instead{display:block}}
@container (max-width:32rem){svg.fit text{font-size:15px}}
@container (max-width:27rem){svg.fit text{font-size:18px}.small svg.fit text{font-size:13px}}
@container (max-width:21rem){svg.fit text{font-size:21px}.small svg.fit text{font-size:15px}}
svg text{paint-order:stroke;stroke:var(--bg);stroke-width:4px;stroke-linejoin:round}
.t{fill:none;stroke:var(--c);stroke-width:1.5px;stroke-linejoin:round;stroke-linecap:round}
.t use{opacity:0;stroke-width:11px;stroke-dasharray:none;pointer-events:stroke}
.t circle{fill:var(--c);stroke:none}
.t.dot circle{stroke:var(--bg);stroke-width:1px;stroke-dasharray:none}
.t.k4,.t.k5,.t.k6,.t.k7{stroke-dasharray:8 4}
.t.none{stroke-dasharray:4 5}.t.best{stroke-width:3px}
.none{--c:var(--none)}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.3rem 0;padding:0;list-style:none;
font-size:.9rem}
.legend i{display:inline-block;width:1.4rem;height:.25rem;margin-right:.4rem;vertical-align:middle;
background:var(--c)}
.k4 i,.k5 i,.k6 i,.k7 i{background:repeating-linear-gradient(90deg,var(--c) 0 .45rem,#0000 0 .6rem)}
.charts{display:grid;
grid-template-columns:repeat(auto-fill,minmax(min(100%,24rem),1fr));gap:0 1.5rem}
.charts figure{max-width:44rem}
.charts.small{grid-template-columns:repeat(auto-fill,minmax(min(100%,20rem),1fr))}
"""
_CLASSES = "".join(
    [f".k{index}{{--c:var(--k{index})}}" for index in range(8)]
    + [f".q{index}{{--c:var(--q{index})}}" for index in range(6)]
)
# Colours for light and dark mode, and the appearance of charts and tables.
STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}{_PAGE}{_PARTS}{_CLASSES}{_PRINT}"
)
# For parts of other pages, whose theme may differ from the system's (Jupyter, VS Code).
_LIGHT_THEMES = '[data-jp-theme-light="true"],.vscode-light'
_DARK_THEMES = '[data-jp-theme-light="false"],.vscode-dark'


def escape(value: object) -> str:
    """Return a value as a string that is safe in HTML, including attributes."""
    return html.escape(_FORBIDDEN_CHARACTERS.sub("\ufffd", str(value)), quote=True)


def cut(value: object, limit: int = 80) -> str:
    """Return a value as a string of at most `limit` characters, not yet escaped."""
    text = str(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}\u2026"


def _escape_value(value: object) -> Markup:
    """Escape a template value, unless it is HTML from this package."""
    return value if isinstance(value, Markup) else Markup(escape(value))


def make_templates(package: str) -> jinja2.Environment:
    """Return the templates of a package, which escape all values."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_escape_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        bytes=format_bytes,
        cut=cut,
        duration=format_duration,
        number=format_number,
        time=format_time,
    )
    return templates


@functools.cache
def templates() -> jinja2.Environment:
    """Return the templates of the pages and of their parts."""
    return make_templates("detcore_report.pages")


def page(title: str, body: str) -> str:
    """Return a self-contained page, which loads no other files.

    Args:
        title: Title, not yet escaped.
        body: HTML of the body.
    """
    return templates().get_template("page.html").render(title=title, body=body, style=STYLE)


def fragment(body: str) -> str:
    """Return HTML for another page, such as the output of a notebook cell.

    Its style does not affect the rest of the page, and it loads no other files.

    Args:
        body: HTML of the body.
    """
    schemes = [(_LIGHT_THEMES, _LIGHT), (_DARK_THEMES, _DARK)]
    themes = "".join(f":is({themes}) .detcore{{{colours}}}" for themes, colours in schemes)
    style = (
        f".detcore{{{_LIGHT};color:var(--fg);background:var(--bg);padding:.5rem .75rem;"
        f"font:15px/1.5 system-ui,sans-serif;max-width:64rem;{_PARTS}{_CLASSES}}}"
        f"@media (prefers-color-scheme:dark){{.detcore{{{_DARK}}}}}{themes}"
    )
    return f'<div class="detcore"><style>{style}</style>{body}</div>'


def table(
    caption: str,
    header: Sequence[str],
    rows: Iterable[tuple[str, Sequence[str]]],
    *,
    right: Sequence[int] = (),
    is_tall: bool = False,
) -> Markup:
    """Return a table in a scrolling box.

    Args:
        caption: Title of the table, not yet escaped.
        header: Names of the columns, not yet escaped.
        rows: CSS class and cells of each row, not yet escaped.
        right: Columns to align on the right, such as numbers.
        is_tall: Whether the box also scrolls vertically.
    """
    parts: Any = templates().get_template("parts.html").module
    return Markup(parts.table(caption, header, rows, right, is_tall))
