"""Run the blocks of one page in order in the working directory.

``python doc_driver.py PAGE`` exits with 0 on success. The first failing block ends it with the
page's line in the traceback. Python blocks share one namespace, as in one script. Commands share
the directory and variables of one shell.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import warm_python
import yaml
from doc_blocks import Block, Page, read_page
from source_tree import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["BlockError", "Driver", "matches"]

# Required settings that an excerpt of an experiment file omits.
_REST = {
    "entrypoint": "model_def:Trial",
    "hyperparameters": {"global_batch_size": 32},
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 10}},
}
_STATE = ".shell-state"
_MARK = "\x1e"


class BlockError(Exception):
    """Raised when a block does not behave as the page shows."""


class Driver:
    """State shared by the blocks of a page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.main = types.ModuleType("__main__")
        self.script = self._write_script()

    def _write_script(self) -> Path:
        """Write the Python blocks at their lines into one file, so that tracebacks show the source.

        Returns:
            Path of the file, which is never run as a whole.
        """
        lines: list[str] = []
        for block in self.page.blocks:
            if block.language == "python" and block.file is None:
                lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
        script = Path(".blocks", self.page.path.stem.replace("-", "_") + ".py").absolute()
        script.parent.mkdir(exist_ok=True)
        script.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return script

    def run(self) -> None:
        """Run every block."""
        if "toy" in self.page.words:
            os.environ["PYTHONPATH"] = str(ROOT / "tests" / "toy_plugin")
            sys.path.append(os.environ["PYTHONPATH"])
        sys.modules["__main__"] = self.main
        self.main.__file__ = sys.argv[0] = str(self.script)
        sys.argv[1:] = []
        for block in self.page.blocks:
            if "skip" not in block.words:
                try:
                    self.block(block)
                except SystemExit as ending:
                    if ending.code not in (None, 0):
                        raise BlockError(f"{self.place(block)}: exit code {ending.code}") from None

    def place(self, block: Block) -> str:
        """Return the position of a block."""
        return f"{self.page.name}:{block.line}"

    def block(self, block: Block) -> None:
        """Run, check or write one block."""
        if block.language == "copy":
            _copy(ROOT / block.code)
        elif block.file is not None:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.code, encoding="utf-8")
            if block.file.endswith(".py"):
                compile(block.code, block.file, "exec")
        else:
            getattr(self, f"_{block.language}")(block)

    def _python(self, block: Block) -> None:
        source = "\n" * (block.line - 1) + block.code
        exec(compile(source, str(self.script), "exec"), self.main.__dict__)
        sys.stdout.flush()

    def _pycon(self, block: Block) -> None:
        test = doctest.DocTestParser().get_doctest(
            block.code, self.main.__dict__, self.page.name, str(self.script), block.line - 1
        )
        test.globs = self.main.__dict__
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        runner = doctest.DebugRunner(optionflags=flags, verbose=False)
        runner.run(test, clear_globs=False)

    def _json(self, block: Block) -> None:
        json.loads(block.code)

    def _toml(self, block: Block) -> None:
        tomllib.loads(block.code)

    def _yaml(self, block: Block) -> None:
        parsed = yaml.safe_load(block.code)
        if "plain" in block.words or parsed is None:
            return
        document = parsed if {"searcher", "entrypoint"} <= set(parsed) else {**_REST, **parsed}
        path = Path(f"checked-{block.line}.yaml").absolute()
        # A complete file is checked when it is written, with detcore's YAML reader. The code that
        # it names is the reader's.
        path.write_text(
            block.code if document is parsed else yaml.safe_dump(document), encoding="utf-8"
        )
        self._shell(
            block,
            [
                f"{shlex.quote(sys.executable)} -m detcore config check {shlex.quote(str(path))} "
                "--set entrypoint=[ls]"
            ],
        )

    def _diff(self, block: Block) -> None:
        lines = block.code.splitlines()
        if "of" in block.words:
            self._compare(
                block, block.words["of"], lines, self._shell(block, [block.words["of"]])[0]
            )
            return
        names = re.findall(r"^(---|\+\+\+) (?:[ab]/)?(\S+)", block.code, re.MULTILINE)
        if [mark for mark, _ in names] != ["---", "+++"]:
            raise BlockError(f"{self.place(block)}: a diff says '--- path' and '+++ path' first")
        for mark, name in (("-", names[0][1]), ("+", names[1][1])):
            there = set((ROOT / name).read_text(encoding="utf-8").splitlines())
            expected_lines = [line for line in lines[2:] if line[:1] in (mark, " ")]
            missing = [
                line for line in expected_lines if line[1:] not in there and line[1:].strip()
            ]
            if missing:
                raise BlockError(f"{self.place(block)}: not in {name}: {missing}")

    def _text(self, block: Block) -> None:
        """No-op: the block is output or a drawing."""

    def _console(self, block: Block) -> None:
        commands: list[str] = []
        expected_lines: list[list[str]] = []
        for line in block.code.splitlines():
            if line.startswith("$ "):
                commands.append(line[2:])
                expected_lines.append([])
            elif (
                commands
                and not expected_lines[-1]
                and (commands[-1].endswith("\\") or line[:2] == "> ")
            ):
                commands[-1] += "\n" + line.removeprefix("> ")
            elif commands:
                expected_lines[-1].append(line)
            elif line.strip():
                raise BlockError(f"{self.place(block)}: begins with no '$ command'")
        outputs = self._shell(block, commands)
        for command, expected, actual in zip(commands, expected_lines, outputs, strict=False):
            self._compare(block, command, expected, actual)

    def _compare(self, block: Block, command: str, expected: list[str], actual: str) -> None:
        missing = matches(expected, actual)
        if missing is not None:
            raise BlockError(
                f"{self.place(block)}: '$ {command}' does not print the line\n"
                f"  {missing}\nIt printed:\n{actual}"
            )

    def _sh(self, block: Block) -> None:
        self._shell(block, [block.code])

    def _shell(self, block: Block, commands: list[str]) -> list[str]:
        """Run commands in one shell, and return the output of each command."""
        script = [f"if [ -e {_STATE} ]; then . ./{_STATE}; fi", "set -e"]
        for command in commands:
            script += [command, f"printf '{_MARK}\\n'"]
        state = Path(_STATE).absolute()
        script += [f"{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > {state}"]
        finished = subprocess.run(
            ["bash", "-c", "\n".join(script)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            check=False,
        )
        expected = int(block.words.get("exit", 0))
        if finished.returncode != expected:
            raise BlockError(
                f"{self.place(block)}: exit code {finished.returncode}, not {expected}:\n"
                + finished.stdout.replace(_MARK, "")
            )
        print(finished.stdout.replace(_MARK, ""), flush=True)
        return finished.stdout.split(_MARK + "\n")


def _copy(source: Path) -> None:
    if source.is_dir():
        skipped = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(source, Path.cwd(), dirs_exist_ok=True, ignore=skipped)
    else:
        shutil.copy(source, Path.cwd())


def matches(expected: list[str], actual: str) -> str | None:
    """Return the first expected line that a command did not print, or None.

    Spaces, numbers and identifiers may differ. ``...`` matches anything.
    """
    printed = iter([_loose(line) for line in actual.splitlines()])
    for line in expected:
        if line.strip() in ("", "..."):
            continue
        pattern = re.compile(".*".join(re.escape(_loose(part)) for part in line.split("...")))
        if not any(pattern.fullmatch(output) for output in printed):
            return line
    return None


def _loose(line: str) -> str:
    line = re.sub(r"\b(?=[0-9a-f]*[0-9])[0-9a-f]{4,}(-[0-9a-f]+)*\b", "0", line)
    return " ".join(re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "0", line).split())


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))  # as for a script in that directory
    with tempfile.TemporaryDirectory() as commands, warm_python.warm_commands(Path(commands)):
        Driver(read_page(Path(sys.argv[1]).resolve())).run()
