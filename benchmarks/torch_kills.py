"""Scripts of PyTorch's libraries, killed by SIGKILL at random, against runs that were not.

Each script trains once without a kill and once with them, in the same setting: loader processes and
ranks, over gloo. A row compares weights, optimizer, schedule, scaler, random generators and
validation metrics, and gives the verdict of the data ledger. With ``--alone`` the library saves and
resumes by itself, in the same harness: the control, which shows what the comparison notices.

    python benchmarks/torch_kills.py [--family trainer] [--kills 50] [--alone] [--quick]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path

import torch
from _report import parse_options, print_table

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "torch" / "tests"))

from _campaign import FAMILIES, TASKS, Case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, action="append")
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--workers", type=int, action="append", help="loader processes: 0 and 2")
    parser.add_argument("--ranks", type=int, action="append", help="1 and 2")
    parser.add_argument("--kills", type=int, default=50, help="of each script in each setting")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", action="store_true")
    options = parse_options(parser, kills=1, family=["accelerate"], task=["points"], ranks=[1])
    torch.set_num_threads(1)
    rows = []
    settings = itertools.product(
        options.family or FAMILIES, options.task or TASKS, options.workers or (0, 2),
        options.ranks or (1, 2),
    )  # fmt: skip
    for family, task, workers, ranks in settings:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            case = Case(family, task, workers, ranks)
            found = case.run(
                Path(folder) / "case", kills=options.kills, seed=options.seed, alone=options.alone
            )
        differing = ", ".join(found.differing) or "nothing"
        row = [family, task, workers, ranks, found.kills, differing, found.twice, found.never]
        rows.append([str(cell) for cell in row])
        print(*rows[-1], f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print_table(
        ["family", "script", "loader workers", "ranks", "kills", "differs", "twice", "never"], rows
    )


if __name__ == "__main__":
    main()
