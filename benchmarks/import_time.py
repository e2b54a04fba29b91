"""Measure the time to import detcore and to print the help of the command.

    python benchmarks/import_time.py [--rounds 15] [--quick]

Each start is a separate process. The variants take turns. Times are medians of wall and CPU time
minus the time of an empty interpreter in the same round. Modules are counted relative to the empty
interpreter.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time

from _report import parse_options, print_table

VARIANTS = {
    "null control (empty again)": "pass",
    "import detcore": "import detcore",
    "from detcore import core": "from detcore import core",
    "detcore --help": (
        "import sys; sys.argv = ['detcore', '--help']\n"
        "from detcore.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass"
    ),
}


def start(code: str) -> tuple[float, float]:
    """Run code in a new interpreter, and return wall and CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def modules(code: str) -> int:
    """Return the number of modules that code imports."""

    def count(text: str) -> int:
        command = f"{text}\nimport sys; print(len(sys.modules), file=sys.stderr)"
        result = subprocess.run(
            [sys.executable, "-c", command], check=True, capture_output=True, text=True
        )
        return int(result.stderr.split()[-1])

    return count(code) - count("pass")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parse_options(parser, rounds=1)
    net: dict[str, list[tuple[float, float]]] = {name: [] for name in VARIANTS}
    for _ in range(options.rounds):
        empty = start("pass")
        for name, code in VARIANTS.items():
            wall, cpu = start(code)
            net[name].append((wall - empty[0], cpu - empty[1]))
    rows = []
    for name, times in net.items():
        wall_ms, cpu_ms = (statistics.median(t[i] for t in times) * 1000 for i in (0, 1))
        rows.append((name, f"{wall_ms:.0f}", f"{cpu_ms:.0f}", str(modules(VARIANTS[name]))))
    print_table(("variant", "wall ms", "cpu ms", "modules"), rows)


if __name__ == "__main__":
    main()
