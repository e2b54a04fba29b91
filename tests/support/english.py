"""Find constructions that readers have to decode, and variables whose names are not nouns.

``python tests/support/english.py PATH ...`` prints every place in files and directories.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_START = r"(?:^|[.!?:;]['\")`]*\s+|\n\s*\n\s*)[\"'(]?"
_BE = r"(?:is|are|was|were|be|been|being)"
_CLAUSE = r"(?:an?|the|it|they|we|you|there|each|every|one|two|no|none|all|any|its|their|which|who)"
# The first group is the place.
PATTERNS = {
    "what as subject": rf"{_START}([Ww]hat(?!:)\b|[Ww]ho\b|That(?= {_CLAUSE}\b))(?![^.!?]*\?)",
    "what is": rf"(?i)\b(what (?:{_BE}|ha[sd]|it|they|the|an?|these|this|one|each))\b(?![^.!?]*\?)",
    "goes on": r"(?i)\b((?:go|goes|going|gone|went) on)\b",
    "is told": rf"(?i)\b({_BE} told)\b",
    "anew": r"(?i)\b(anew)\b",
    "of its own": r"(?i)\b(of (?:its|their|one's) own)\b",
    "nobody": r"(?i)\b(nobody|somebody|everybody|whoever)\b",
    "there is no": rf"(?i)\b(there {_BE} (?:none|no (?!longer|more|need)\w+))\b",
    "is no": rf"(?i)(?<!there )\b({_BE} no (?!longer|more|less|later|earlier|better|worse)\w+)",
    "fronted of": rf"{_START}([Oo]f (?!course)\w+)",
    "else": r"(?i)[;,] (else)\b(?! if)",
    "at once": r"(?i)\b(at once)\b",
    "gone, away": rf"(?i)\b({_BE} (?:gone|away))\b",
    "by itself": r"(?i)\b(by (?:itself|themselves))\b",
    "is made": rf"(?i)\b({_BE} made)\b(?! (?:of|up|by))",
    "another one": r"(?i)\b((?:another|an \w+|the (?:other|same|last|first|next|new|old)) ones?)\b",
    "mend, hand in": r"(?i)\b(mend(?:s|ed|ing)?|hand(?:s|ed|ing)? in)\b",
}
NO_NOUNS = set(
    """asked built changed chosen done drawn each found given gone heard held it kept known left
    made meant mine missed named others own rest said saved seen sent shown taken theirs these they
    this those told wanted what whole whose written""".split()  # noqa: SIM905
)
_CODE = re.compile(r"^ *```.*?^ *```|<!--.*?-->|`[^`\n]*`|^\[[^]]*\]: .*$|^ *>>>.*$", re.M | re.S)
_COMMENTS = re.compile(
    r"(?:^ *#(?! noqa| type:| fmt:).*\n)+|(?<=  )#(?! noqa| type:| fmt:).*$", re.M
)
_WORD = re.compile(r"[A-Za-z][\w'-]*")


def find_places(path: Path, words: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield the kind and description of every place, and count words and assignments by kind.

    The kinds are "document", "docstring" (also comments and test names), "message" and "variable".
    """
    source = re.sub(r"\$\{\w+\}", "x", path.read_text(encoding="utf-8"))
    if ".py" not in path.suffixes:
        texts = [("document", 1, source)]
    else:
        tree = ast.parse(source)
        texts = list(_read_texts(tree, source))
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                words["variable"] += 1
                if node.id in NO_NOUNS:
                    yield "variable", f"{path}:{node.lineno}: variable: {node.id}"
    for kind, line, text in texts:
        prose = _CODE.sub(lambda code: "`" + "\n" * code[0].count("\n"), text)
        words[kind] += len(_WORD.findall(prose))
        for name, pattern in PATTERNS.items():
            for match in re.finditer(pattern, prose):
                at = line + prose.count("\n", 0, match.start(1))
                context = " ".join(prose[max(0, match.start(1) - 40) : match.end(1) + 40].split())
                yield kind, f"{path}:{at}: {name}: {context}"


def _read_texts(tree: ast.Module, source: str) -> Iterator[tuple[str, int, str]]:
    """Yield docstrings, comments and test names, and strings of at least four words."""
    docstrings = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            docstrings.add(body[0].value)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield "docstring", node.lineno, node.name.replace("_", " ")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            kind = "docstring" if node in docstrings else "message"
            if kind == "docstring" or node.value.count(" ") > 2:
                yield kind, node.lineno, node.value
    for match in _COMMENTS.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        yield "docstring", line, re.sub(r"^ *# ?", "", match[0], flags=re.M)


if __name__ == "__main__":
    for root in map(Path, sys.argv[1:]):
        for path in [root] if root.is_file() else sorted(root.rglob("*.*")):
            if path.suffix in (".py", ".md", ".tmpl", ".yaml"):
                for _, place in find_places(path, Counter()):
                    print(place)
