"""What importing detcore and asking the command for help cost, over an empty interpreter.

    python benchmarks/import_time.py [--rounds 15] [--quick]

Each start is a process of its own; variants take turns in one run. Times are medians of wall and
CPU time minus those of the empty start in the same round; modules are counted over bare Python.
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
    """Run code in a new interpreter; return wall and CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def modules(code: str) -> int:
    """Return how many modules code brings in over an empty interpreter."""

    def count(text: str) -> int:
        command = f"{text}\nimport sys; print(len(sys.modules), file=sys.stderr)"
        done = subprocess.run(
            [sys.executable, "-c", command], check=True, capture_output=True, text=True
        )
        return int(done.stderr.split()[-1])

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
