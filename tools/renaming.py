"""Rewrite the references in one text when modules and names move; used by ``tools/rename.py``."""

from __future__ import annotations

import ast
import dataclasses
import io
import re
import tokenize
from collections.abc import Iterator, Mapping

from scopes import Scope, Scopes

__all__ = ["ByHand", "Table", "TableError", "rewrite_python", "rewrite_text"]

_IMPORTED_NAMES = re.compile(r"\bfrom\s+([\w.]+)\s+import\s+(\(?)([ \w,\n]*)")
_TOKENS_OF_TEXT = (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1))


class TableError(Exception):
    """A table that cannot be applied."""


@dataclasses.dataclass(frozen=True)
class ByHand:
    """A place that the tool leaves to a person."""

    line: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Table:
    """Where modules and names go.

    Attributes:
        modules: Old dotted name -> new one. Modules inside a package that moves go with it.
        names: (old module, name) -> (new module, name).
        paths: Old path -> new one, without ``.py``, of modules that go to another source folder.
    """

    modules: Mapping[str, str]
    names: Mapping[tuple[str, str], tuple[str, str]] = dataclasses.field(default_factory=dict)
    paths: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse tables of which a second run would change something again."""
        for old, new in self.modules.items():
            if new == old or new.startswith(f"{old}.") or self.move_module(new) != new:
                raise TableError(f"{old} -> {new}: {new} is or contains an old name of the table")
        for (module, name), (home, new) in self.names.items():
            if (home, new) in self.names or self.move_module(home) != home:
                raise TableError(f"{module}:{name} -> {home}:{new}: {home}:{new} is an old name")

    @staticmethod
    def parse(text: str) -> Table:
        """Read lines ``old.module -> new.module`` and ``module:name -> module:name``."""
        modules, names = dict[str, str](), dict[tuple[str, str], tuple[str, str]]()
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            match words:
                case [old, "->", new] if ":" not in old + new and old not in modules:
                    modules[old] = new
                case [old, "->", new] if old.count(":") == new.count(":") == 1:
                    before, after = old.split(":"), new.split(":")
                    names[before[0], before[1]] = (after[0], after[1])
                case _:
                    raise TableError(
                        f"line {number}: {line.strip()!r} is not 'old.module -> new.module' or "
                        "'old.module:name -> new.module:name', or says again where a module goes"
                    )
        return Table(modules, names)

    def move_module(self, dotted: str) -> str:
        """Return the new name of a module."""
        parts = dotted.split(".")
        for length in range(len(parts), 0, -1):
            new = self.modules.get(".".join(parts[:length]))
            if new is not None:
                return ".".join([new, *parts[length:]])
        return dotted

    def move_member(self, module: str, name: str) -> tuple[str, str]:
        """Return the new module and name of what ``from module import name`` imports."""
        if (module, name) in self.names:
            return self.names[module, name]
        moved = self.modules.get(f"{module}.{name}")
        if moved is not None:
            parent, _, last = moved.rpartition(".")
            return parent, last
        return self.move_module(module), name

    def move_dotted(self, dotted: str) -> str:
        """Return the new form of a dotted reference to a module, a name or a name's attribute."""
        parts = dotted.split(".")
        for length in range(len(parts) - 1, 0, -1):
            found = self.names.get((".".join(parts[:length]), parts[length]))
            if found is not None:
                return ".".join([*found, *parts[length + 1 :]])
        return self.move_module(dotted)


@dataclasses.dataclass
class _Edits:
    """Replacements in a text, by offsets; the last one that was given for a place counts."""

    text: str
    found: dict[tuple[int, int], str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._starts = [0]
        for line in self.text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._lines = self.text.splitlines(keepends=True)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a position of the syntax tree, whose columns count bytes."""
        before = self._lines[line - 1].encode()[:column].decode() if column else ""
        return self._starts[line - 1] + len(before)

    def token_offset(self, position: tuple[int, int]) -> int:
        """Return the offset of a position of the tokenizer, whose columns count characters."""
        return self._starts[position[0] - 1] + position[1]

    def span(self, node: ast.expr | ast.stmt | ast.alias) -> tuple[int, int]:
        """Return where a node begins and ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno, node.end_col_offset),
        )

    def applied(self) -> str:
        """Return the text with all replacements."""
        result, end = [], 0
        for (start, stop), new in sorted(self.found.items()):
            if start < end:
                raise AssertionError(f"two replacements overlap at {start}")
            result += [self.text[end:start], new]
            end = stop
        return "".join([*result, self.text[end:]])


class _Rewriter:
    """The edits of one Python file."""

    def __init__(self, text: str, table: Table, module: str, *, is_package: bool) -> None:
        self.table = table
        self.module = module
        self.package = module if is_package else module.rpartition(".")[0]
        self.is_package = is_package
        self.edits = _Edits(text)
        self.by_hand: list[ByHand] = []
        self.tree = ast.parse(text)
        self.scopes = Scopes(self.tree)
        self.tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        self.joined = [node for node in ast.walk(self.tree) if isinstance(node, ast.JoinedStr)]
        self.inside: dict[int, ast.JoinedStr] = {}
        for outer in self.joined:  # the outermost ones first
            for part in ast.walk(outer):
                self.inside.setdefault(id(part), outer)
        # What a name that is bound by an import stands for, and what it will stand for.
        self.targets: dict[tuple[int, str], tuple[str, str]] = {}
        self.renamed: dict[str, str] = {}  # names of the module that are called otherwise now
        self.public = self._declared_all()

    def run(self) -> str:
        """Return the new text."""
        for scope in self.scopes.all:
            for statement in scope.imports:
                if isinstance(statement, ast.Import):
                    self._import(statement, scope)
                else:
                    self._import_from(statement, scope)
        self._definitions()
        self._chains()
        self._named_in_calls()
        self._lazy_tables()
        self._lazy_calls()
        self._strings_and_comments()
        return self.edits.applied()

    # -- imports ------------------------------------------------------------------------------

    def _import(self, statement: ast.Import, scope: Scope) -> None:
        for alias in statement.names:
            new = self.table.move_module(alias.name)
            start, _ = self.edits.span(alias)
            if new != alias.name:
                self.edits.found[start, start + len(alias.name)] = new
            if alias.asname:
                self.targets[id(scope), alias.asname] = (alias.name, new)
            else:
                top = alias.name.partition(".")[0]
                self.targets[id(scope), top] = (top, "")

    def _import_from(self, statement: ast.ImportFrom, scope: Scope) -> None:
        source = self._absolute(statement)
        moved = [self.table.move_member(source, alias.name) for alias in statement.names]
        written = []
        for alias, (home, name) in zip(statement.names, moved, strict=True):
            local = alias.asname or alias.name
            self.targets[id(scope), local] = (f"{source}.{alias.name}", f"{home}.{name}")
            bound = self._new_local(alias, name, scope)
            written.append(name if bound == name else f"{name} as {bound}")
        homes = [home for home, _ in moved]
        if self.table.move_module(self.module) in homes and source not in homes:
            self.by_hand.append(ByHand(statement.lineno, "the module would import from itself"))
        is_elsewhere = statement.level and self.table.move_module(self.module) != self.module
        if len({*homes}) > 1:
            self._split(statement, homes, written)
        elif homes[0] != source or is_elsewhere:
            self._set_source(statement, homes[0])
        if len({*homes}) == 1:
            for alias, words in zip(statement.names, written, strict=True):
                old = alias.name + (f" as {alias.asname}" if alias.asname else "")
                if words != old:
                    self.edits.found[self.edits.span(alias)] = words

    def _new_local(self, alias: ast.alias, name: str, scope: Scope) -> str:
        """Return the name that an import binds from now on, and rename its uses if that changes."""
        local = alias.asname or alias.name
        own = self.table.names.get((self.module, local)) if scope.parent is None else None
        if own is not None and own[0] == self.table.move_module(self.module):
            new = own[1]
        elif alias.asname or alias.name == "*" or name == alias.name or self._is_public(local):
            return local
        else:
            new = name
        if not self.scopes.can_rename(scope, local, new):
            return local
        self._rename_uses(scope, local, new)
        return new

    def _is_public(self, name: str) -> bool:
        return self.is_package or name in self.public

    def _set_source(self, statement: ast.ImportFrom, home: str) -> None:
        start, stop = self.edits.span(statement)
        header = re.compile(r"from\s+\.*\s*(?!import\b)[\w.]*").match(self.edits.text, start, stop)
        assert header is not None
        self.edits.found[start, header.end()] = f"from {self._source_text(statement, home)}"

    def _source_text(self, statement: ast.ImportFrom, home: str) -> str:
        """Return how the statement names a module: relative if it was, within its own package."""
        module = self.table.move_module(self.module)
        package = module if self.is_package else module.rpartition(".")[0]
        if statement.level and (home == package or home.startswith(f"{package}.")):
            return f".{home[len(package) + 1 :]}"
        return home

    def _split(self, statement: ast.ImportFrom, homes: list[str], written: list[str]) -> None:
        """Write one statement for each module; comments inside it go above the first."""
        start, stop = self.edits.span(statement)
        indent = " " * statement.col_offset
        comments = [
            token.string
            for token in self.tokens
            if token.type == tokenize.COMMENT
            and start < self.edits.token_offset(token.start) < stop
        ]
        by_home: dict[str, list[str]] = {}
        for home, words in zip(homes, written, strict=True):
            by_home.setdefault(home, []).append(words)
        statements = [
            f"from {self._source_text(statement, home)} import {', '.join(words)}"
            for home, words in by_home.items()
        ]
        self.edits.found[start, stop] = f"\n{indent}".join(comments + statements)

    def _absolute(self, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        parts = self.package.split(".")
        base = parts[: len(parts) - (statement.level - 1)]
        return ".".join([*base, *filter(None, [statement.module])])

    # -- uses ---------------------------------------------------------------------------------

    def _definitions(self) -> None:
        """Rename what this module defines, and what its ``__all__`` names."""
        top = self.scopes.all[0]
        for (module, old), (home, new) in self.table.names.items():
            if module != self.module:
                continue
            if home != self.table.move_module(module):
                if old in top.defined:
                    self.by_hand.append(ByHand(1, f"move the definition of {old} to {home}"))
                continue
            if old in top.defined and old != new:
                if not self.scopes.can_rename(top, old, new):
                    self.by_hand.append(ByHand(1, f"{new} is taken, {old} was not renamed"))
                    continue
                self._rename_uses(top, old, new)
            for node in self._strings_in_all():
                if node.value == old:
                    self._set_string(node, new)

    def _rename_uses(self, scope: Scope, old: str, new: str) -> None:
        if scope.parent is None:
            self.renamed[old] = new
        for node, line, column in self.scopes.uses(scope, old):
            outer = self.inside.get(id(node))
            if outer is not None:
                self._rename_in_joined(outer, old, new)
                continue
            # After "class", "async def" or "global"; a name begins where its node does.
            named = re.compile(rf"(?:\w+\s+)*?\b({old})\b|(?:global|nonlocal)\b.*?\b({old})\b")
            match = named.match(self.edits.text, self.edits.offset(line, column))
            assert match is not None
            assert match.lastindex is not None
            self.edits.found[match.span(match.lastindex)] = new

    def _rename_in_joined(self, outer: ast.JoinedStr, old: str, new: str) -> None:
        """Rename in the braces of an f-string, where Python 3.11 knows no exact positions."""
        start, stop = self.edits.span(outer)
        number = sum(isinstance(part, ast.Name) and part.id == old for part in ast.walk(outer))
        places = [
            match
            for match in re.compile(rf"(?<![\w.]){old}(?!\w)").finditer(
                self.edits.text, start, stop
            )
            if _is_in_braces(self.edits.text[start : match.start()])
        ]
        if len(places) != number:
            self.by_hand.append(ByHand(outer.lineno, f"{old} in an f-string"))
            return
        for match in places:
            self.edits.found[match.span()] = new

    def _chains(self) -> None:
        """Rewrite ``module.name`` where the module was imported."""
        for chain, root in _chains(self.tree):
            scope = self.scopes.scope_of(root)
            target = self.targets.get((id(scope), root.id)) if scope else None
            if target is None:
                continue
            attributes = _attributes(chain)
            old = ".".join([target[0], *(node.attr for node in attributes)])
            new = self.table.move_dotted(old)
            if new != old:
                self._rewrite_chain(root, attributes, target, new)

    def _rewrite_chain(
        self, root: ast.Name, attributes: list[ast.Attribute], target: tuple[str, str], new: str
    ) -> None:
        is_plain = not target[1]
        if not is_plain and not new.startswith(f"{target[1]}."):
            if new != target[1]:
                self.by_hand.append(ByHand(root.lineno, f"write it as {new}, and import that"))
            return
        kept = new if is_plain else new[len(target[1]) + 1 :]
        words = kept.split(".")
        # Attributes at the end that stay as they are, such as methods, are not touched.
        end = len(attributes)
        while end > 1 and len(words) > 1 and words[-1] == attributes[end - 1].attr:
            end, words = end - 1, words[:-1]
        if words == [root.id] * is_plain + [node.attr for node in attributes[:end]]:
            return
        if id(root) in self.inside:
            self.by_hand.append(ByHand(root.lineno, f"{new} in an f-string"))
            return
        first = self.edits.span(root)
        start = first[0] if is_plain else self.edits.text.index(".", first[1]) + 1
        self.edits.found[start, self.edits.span(attributes[end - 1])[1]] = ".".join(words)

    def _named_in_calls(self) -> None:
        """Rewrite ``monkeypatch.setattr(module, "name", ...)`` and the like."""
        for node in ast.walk(self.tree):
            if not (isinstance(node, ast.Call) and len(node.args) > 1):
                continue
            first, second = node.args[:2]
            if isinstance(second, ast.Constant) and isinstance(second.value, str):
                found = self.table.names.get((self._meaning(first), second.value))
                if found is not None and second.value != found[1]:
                    self._set_string(second, found[1])

    def _meaning(self, node: ast.expr) -> str:
        """Return what an expression stands for, by its old dotted name; else nothing."""
        words = []
        while isinstance(node, ast.Attribute):
            words.append(node.attr)
            node = node.value
        scope = self.scopes.scope_of(node) if isinstance(node, ast.Name) else None
        if not isinstance(node, ast.Name) or (id(scope), node.id) not in self.targets:
            return ""
        return ".".join([self.targets[id(scope), node.id][0], *reversed(words)])

    # -- strings ------------------------------------------------------------------------------

    def _declared_all(self) -> set[str]:
        return {str(node.value) for node in self._strings_in_all()}

    def _strings_in_all(self) -> Iterator[ast.Constant]:
        for statement in self.tree.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if any(isinstance(one, ast.Name) and one.id == "__all__" for one in targets):
                for node in ast.walk(statement):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        yield node

    def _lazy_tables(self) -> None:
        """Rewrite tables ``{"name": "_module"}`` of packages that import on first use."""
        for statement in self.tree.body if self.is_package else []:
            value = getattr(statement, "value", None)
            if not isinstance(value, ast.Dict):
                continue
            for key, home in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(home, ast.Constant):
                    self._lazy_entry(key, home)

    def _lazy_entry(self, key: ast.Constant, home: ast.Constant) -> None:
        name, place = key.value, home.value
        if not (isinstance(name, str) and isinstance(place, str)):
            return
        own = self.table.names.get((self.module, name))
        if own is not None:
            self._set_string(key, own[1])
        is_short = "." not in place
        source = f"{self.module}.{place}" if is_short else place
        new_home, new_name = self.table.move_member(source, name)
        if new_name != (own[1] if own is not None else name):
            self.by_hand.append(ByHand(key.lineno, f"{name} is {new_home}:{new_name} now"))
        package = self.table.move_module(self.module)
        if is_short and new_home.rpartition(".")[0] != package and new_home != source:
            self.by_hand.append(ByHand(home.lineno, f"{name} is in {new_home} now"))
        elif new_home != source:
            self._set_string(home, new_home.rpartition(".")[2] if is_short else new_home)

    def _lazy_calls(self) -> None:
        """Rewrite tables ``{"_module": "names"}`` that packages pass to `detcore.lazy`."""
        for node in ast.walk(self.tree) if self.is_package else ():
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy_names"):
                continue
            for table in node.args:
                for home, names in zip(*_items(table), strict=True):
                    if isinstance(home, ast.Constant) and isinstance(names, ast.Constant):
                        self._lazy_names(home, str(names.value).split())

    def _lazy_names(self, home: ast.Constant, names: list[str]) -> None:
        old = str(home.value)
        source = old if old.startswith("detcore.") else f"{self.module}.{old}"
        moved = [self.table.move_member(source, name) for name in names] if old else []
        homes = {module for module, _ in moved}
        if len(homes) > 1 or [name for _, name in moved] != names[: len(moved)]:
            self.by_hand.append(ByHand(home.lineno, f"names of {source} have moved"))
        elif homes:
            package = self.table.move_module(self.module)
            new = homes.pop().removeprefix(f"{package}.")
            if new != old:
                self._set_string(home, new)

    def _set_string(self, node: ast.Constant, value: str) -> None:
        start, stop = self.edits.span(node)
        old = self.edits.text[start:stop]
        self.edits.found[start, stop] = old.replace(str(node.value), value)

    def _strings_and_comments(self) -> None:
        done = list(self.edits.found)
        for token in self.tokens:
            if token.type not in _TOKENS_OF_TEXT:
                continue
            start, stop = (
                self.edits.token_offset(token.start),
                self.edits.token_offset(token.end),
            )
            inner = [span for span in done if start < span[1] and span[0] < stop]
            if any(span[0] <= start and stop <= span[1] for span in inner):
                continue
            text = self.edits.text[start:stop]
            mentions = _mentions(text, self.renamed) if _is_prose(token) else ()
            for old, new, offset in [*_text_edits(text, self.table), *mentions]:
                place = (start + offset, start + offset + len(old))
                if not any(place[0] < span[1] and span[0] < place[1] for span in inner):
                    self.edits.found[place] = new


def rewrite_python(
    text: str, table: Table, module: str, *, is_package: bool
) -> tuple[str, list[ByHand]]:
    """Return Python source with its references rewritten, and what is left to a person."""
    rewriter = _Rewriter(text, table, module, is_package=is_package)
    return rewriter.run(), rewriter.by_hand


def rewrite_text(text: str, table: Table) -> str:
    """Return a text that is no Python with its dotted names, paths and imports rewritten."""
    edits = _Edits(text)
    for old, new, offset in _text_edits(text, table):
        edits.found[offset, offset + len(old)] = new
    return edits.applied()


def _text_edits(text: str, table: Table) -> Iterator[tuple[str, str, int]]:
    """Yield old words, new words and offset for each reference in a text."""
    taken: list[tuple[int, int]] = []
    for match in _IMPORTED_NAMES.finditer(text):
        yield from _imported_names(match, table, taken)
    pattern = _references(table)
    for match in pattern.finditer(text) if pattern else ():
        if any(start < match.end() and match.start() < stop for start, stop in taken):
            continue
        old = match[0]
        if old in table.paths:
            new = table.paths[old]
        elif "/" in old:
            new = table.move_module(old.replace("/", ".")).replace(".", "/")
        elif ":" in old:
            module, _, name = old.partition(":")
            new = ":".join(table.move_member(module, name))
        else:
            new = table.move_dotted(old)
        if new != old:
            yield old, new, match.start()


def _is_prose(token: tokenize.TokenInfo) -> bool:
    return token.type == tokenize.COMMENT or token.string.endswith(('"""', "'''"))


def _mentions(text: str, renamed: Mapping[str, str]) -> Iterator[tuple[str, str, int]]:
    """Yield the edits of names in backticks, and in the lines of examples (``>>>``)."""
    for old, new in renamed.items():
        name = rf"(?<![\w.]){re.escape(old)}(?!\w)"
        for match in re.finditer(rf"(?<=`){name}(?=[`(.])", text):
            yield old, new, match.start()
        for line in re.finditer(r"^\s*(?:>>>|\.\.\.) .*$", text, re.M):
            for match in re.finditer(name, line[0]):
                yield old, new, line.start() + match.start()


def _imported_names(
    match: re.Match[str], table: Table, taken: list[tuple[int, int]]
) -> Iterator[tuple[str, str, int]]:
    """Yield the edits of ``from module import names`` in a text, if all go to one module."""
    for name in re.finditer(r"(?<!as )\b(?!as\b)\w+", match[3]):
        home, new = table.move_member(match[1], name[0])
        if home != table.move_module(match[1]) and ("," in match[3].strip(" ,\n")):
            return
        if home != match[1] and match.span(1) not in taken:
            taken.append(match.span(1))
            yield match[1], home, match.start(1)
        if new != name[0]:
            yield name[0], new, match.start(3) + name.start()


def _references(table: Table) -> re.Pattern[str] | None:
    """Return a pattern of all old names in texts: of at least two parts, since one is a word."""
    dotted = {old for old in table.modules if "." in old}
    names = {f"{module}.{name}" for module, name in table.names}
    colons = {f"{module}:{name}" for module, name in table.names}
    paths = {old.replace(".", "/") for old in dotted}
    words = sorted(
        {*dotted, *names, *colons, *paths, *table.paths}, key=lambda word: (-len(word), word)
    )
    if not words:
        return None
    return re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, words))})(?![\w-])")


def _items(node: ast.expr) -> tuple[list[ast.expr | None], list[ast.expr]]:
    return (node.keys, node.values) if isinstance(node, ast.Dict) else ([], [])


def _is_in_braces(before: str) -> bool:
    """Whether an f-string is inside an expression after these of its characters."""
    depth, index = 0, 0
    while index < len(before):
        if not depth and before[index : index + 2] in ("{{", "}}"):
            index += 1
        else:
            depth += {"{": 1, "}": -1}.get(before[index], 0)
        index += 1
    return depth > 0


def _chains(tree: ast.Module) -> Iterator[tuple[ast.Attribute, ast.Name]]:
    """Yield the longest ``a.b.c`` of each place, with its ``a``."""
    inner: set[int] = set()
    for node in ast.walk(tree):  # outer nodes first
        if not isinstance(node, ast.Attribute) or id(node) in inner:
            continue
        value: ast.expr = node
        while isinstance(value, ast.Attribute):
            inner.add(id(value))
            value = value.value
        if isinstance(value, ast.Name):
            yield node, value


def _attributes(chain: ast.Attribute) -> list[ast.Attribute]:
    found = [chain]
    while isinstance(found[-1].value, ast.Attribute):
        found.append(found[-1].value)
    return found[::-1]
