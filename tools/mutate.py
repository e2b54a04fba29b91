"""Measure which faults the tests catch: plant small ones, one at a time, and run the tests.

    nox -s mutants -- plan --seed 1 --out mutants.jsonl src/detcore=120 plugins/keras/src=20
    nox -s mutants -- run mutants.jsonl --out before.jsonl --processes 2
    nox -s mutants -- run mutants.jsonl --out after.jsonl --tests-from main
    nox -s mutants -- compare before.jsonl after.jsonl

``run`` works in clones of the repository in a temporary folder, each with environments of its own,
so that tests and the processes that they start import the module with the fault. A run that was
interrupted continues where it ended when it is started again with the same ``--out``.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import dataclasses
import functools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mutations import Mutation, code_lines, compiles, find_sites, plant, public_names

__all__ = ["Settings", "Tree", "compare", "environment_of", "main", "plan", "room_of", "tests_of"]

ROOT = Path(__file__).resolve().parents[1]
RUNNER = Path(__file__).resolve().with_name("mutant_tests.py")
# The tests of each room, its own first, then those of the rooms that use it.
ROOM_TESTS = {
    "_log": "log database delivery core run",
    "checkpoint": "checkpoint plugins/testing/tests/test_torture.py core storage experimental run"
    " cli",
    "cli": "cli config checkpoint/test_command.py plugins/replay/tests/test_data_command.py"
    " plugins/server/tests/test_auth_commands.py plugins/testing/tests/test_command.py run hooks"
    " delivery experimental launch plugins/server/tests",
    "config": "config cli search run",
    "contract": "trial hooks search storage distributed launch metrics run",
    "core": "core trial checkpoint run",
    "data": "data plugins/testing/tests/test_data_source_suite.py trial run",
    "database": "database plugins/server/tests/test_operating.py cli experimental core run"
    " plugins/server/tests",
    "distributed": "distributed plugins/testing/tests/test_ranks.py core launch trial metrics",
    "experimental": "experimental plugins/server/tests cli",
    "hooks": "hooks delivery run cli architecture/test_public_api.py",
    "launch": "launch plugins/horovod/tests plugins/testing/tests/test_launcher_suite.py core"
    " distributed run",
    "runner": "run cli search launch experimental",
    "search": "search core plugins/testing/tests run",
    "storage": "storage plugins/testing/tests/test_storage_suite.py checkpoint"
    " plugins/storage/tests",
    "testing": "plugins/testing/tests/test_names.py plugins/testing/tests/test_pytest_plugin.py",
    "trial": "trial plugins/testing/tests run",
}
# Of the modules that are in no room.
MODULE_TESTS = {
    "__init__": "architecture/test_weight.py architecture/test_public_api.py core",
    "__main__": "cli",
    "_distributions": "cli/test_distributions.py architecture/test_layers.py hooks cli",
    "_records": "database plugins/server/tests/test_client_models.py experimental cli core"
    " plugins/server/tests",
    "_secrets": "config database architecture/test_growth.py plugins/server/tests",
    "builtin": "hooks config storage search cli run",
    "deprecation": "architecture/test_deprecation.py hooks core",
    "describe": "cli plugins/report/tests plugins/server/tests experimental",
    "environment": "core hooks config experimental database launch cli architecture",
    "errors": "core config hooks launch checkpoint storage trial database cli",
    "lazy": "architecture cli hooks",
    "metrics": "metrics plugins/metrics/tests cli/test_distributions.py trial core",
    "migrate": "cli/test_distributions.py plugins/determined/tests",
    "remote": "cli/test_distributions.py experimental plugins/remote/tests",
    "types": "core hooks config trial database cli run experimental",
}
PLUGIN_TESTS = {
    "determined": "plugins/determined/tests tests/docs",
    "estimator": "plugins/estimator/tests",
    "horovod": "plugins/horovod/tests",
    "keras": "plugins/keras/tests",
    "metrics": "plugins/metrics/tests tests/metrics",
    "optuna": "plugins/testing/tests/test_searcher_suite.py tests/search tests/run/test_search.py",
    "ray": "plugins/ray/tests",
    "registry": "plugins/registry/tests tests/experimental",
    "remote": "plugins/remote/tests tests/experimental plugins/server/tests",
    "replay": "plugins/replay/tests",
    "report": "plugins/report/tests plugins/server/tests tests/experimental/test_notebook.py"
    " tests/cli",
    "server": "plugins/server/tests tests/experimental plugins/remote/tests",
    "storage": "plugins/storage/tests tests/storage/test_targets.py tests/storage",
    "tensorflow": "plugins/tensorflow/tests",
    "testing": "plugins/testing/tests",
    "torch": "plugins/torch/tests",
}
# The environments build nothing that takes minutes.
PLUGIN_ENVIRONMENTS = {
    "estimator": "tensorflow", "keras": "tensorflow", "ray": "torch", "torch": "torch"
}  # fmt: skip
# Tests that cannot even be collected, or do not pass, without the framework they are for.
TEST_ENVIRONMENTS = {
    "plugins/horovod/tests/with_horovod/": "tensorflow-2.15",
    "plugins/ray/tests/test_horovod_on_ray.py": "tensorflow-2.15",
    "plugins/replay/tests/test_torch_faults.py": "torch",
}
# Tests wait for fsync a third of their time on a disk.
MEMORY_FILES = Path("/dev/shm")
TEST_FOLDERS = ("conftest.py", "tests", "plugins/*/tests/*")
# What a session of nox, or of another pytest, says about itself.
FOREIGN_VARIABLES = ("NOX_", "PYTEST_", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "COVERAGE")
QUIET_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
CAUGHT = ("caught", "timeout")
PR_SET_CHILD_SUBREAPER = 36

Line = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How the tests of one mutation are chosen and bounded; see ``mutant_tests.Selection``."""

    budget_s: float = 60.0
    timeout_s: float = 60.0
    assumed_s: float = 0.15
    durations: Path | None = None
    deselected: tuple[str, ...] = ()
    pytest_args: tuple[str, ...] = ()


def room_of(file: str) -> str:
    """Return the room of a source file: a package of the core, ``modules``, or a plugin."""
    parts = file.split("/")
    if parts[0] == "plugins":
        return f"plugins/{parts[1]}"
    return parts[2] if len(parts) > 3 else "modules"


def tests_of(file: str) -> list[str]:
    """Return the files and folders of tests for a source file, the most telling first."""
    room, _, plugin = room_of(file).partition("/")
    if plugin:
        return PLUGIN_TESTS[plugin].split()
    tests = MODULE_TESTS[Path(file).stem] if room == "modules" else ROOM_TESTS[room]
    return [path if path.startswith("plugins/") else f"tests/{path}" for path in tests.split()]


def environment_of(file: str) -> str:
    """Return the nox session whose environment runs the tests of a source file."""
    return PLUGIN_ENVIRONMENTS.get(room_of(file).partition("/")[2], "bare")


def plan(root: Path, seed: int, parts: dict[str, int]) -> list[Mutation]:
    """Choose mutations: a module by its lines of code, then a kind of fault, then a place.

    Args:
        root: The repository.
        seed: Decides everything, together with the text of the modules.
        parts: Number of mutations for each folder below ``root``.

    Returns:
        Different mutations in random order.
    """
    chosen: list[Mutation] = []
    for part, count in parts.items():
        rng = random.Random(f"{seed}:{part}")
        texts = {
            path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted((root / part).rglob("*.py"))
        }
        weights = [code_lines(text) for text in texts.values()]
        drawn: dict[Mutation, None] = {}
        while len(drawn) < count:
            [file] = rng.choices(list(texts), weights)
            kinds = collections.defaultdict(list)
            for site in find_sites(file, texts[file]):
                kinds[site.mutation.operator].append(site)
            if kinds:
                site = rng.choice(kinds[rng.choice(sorted(kinds))])
                if compiles(texts[file], site):
                    drawn[site.mutation] = None
        chosen += drawn
    random.Random(seed).shuffle(chosen)
    return chosen


class Tree:
    """A working tree in which faults are planted and tests run, one at a time.

    Args:
        root: A clone that may be changed and reset.
        settings: How the tests are chosen.
        scratch: Folder for the temporary files and the home of the tests.
    """

    def __init__(self, root: Path, settings: Settings, scratch: Path) -> None:
        self._root = root
        self._settings = settings
        self._scratch = scratch
        self._pythons: dict[str, Path] = {}
        self._num_planted = 0
        self._sound: set[str | None] = set()
        self._unsound: list[str] = []
        lines = _read_lines(settings.durations) if settings.durations else []
        self._durations: dict[str, float] = {line["test"]: line["cpu"] for line in lines}

    def python(self, environment: str) -> Path:
        """Return the interpreter of an environment, which is made the first time."""
        if environment not in self._pythons:
            _run(self._root, sys.executable, "-m", "nox", "--install-only", "-s", environment)
            self._pythons[environment] = self._root / ".nox" / environment / "bin" / "python"
        return self._pythons[environment]

    def try_mutation(self, mutation: Mutation, python: Path) -> Line:
        """Run tests with a fault in the tree and return the fields of the result.

        A test that fails without the fault, too, is left out, and the others run again. One that
        has passed with another fault is trusted.
        """
        start = time.monotonic()
        path = self._root / mutation.file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        planted = plant(text, mutation)
        if planted is None:
            return {"outcome": "gone"}
        while True:
            paths = self._nearest_files(mutation.file, public_names(text))
            self._write_planted(path, planted)
            result = self._run_tests(python, paths, self._settings.budget_s)
            self._restore()
            if result["outcome"] == "timeout":  # the machine may be slower than it was before
                self._sound.discard(result["test"])
            if result["outcome"] not in CAUGHT or self._is_sound(result["test"], python, paths):
                return {**result, "seconds": round(time.monotonic() - start, 1)}
            self._unsound.append(result["test"])

    def _is_sound(self, test: str | None, python: Path, paths: Sequence[str]) -> bool:
        """Whether a test passes on the tree without a fault; of no test, whether tests are found.

        Raises:
            RuntimeError: If tests are not found without a fault.
        """
        if test not in self._sound:
            chosen = [test] if test else paths
            budget_s = self._settings.budget_s if test and "::" in test else 0.0
            result = self._run_tests(python, chosen, budget_s)
            self._restore()
            if result["outcome"] in CAUGHT:
                if test is None:
                    raise RuntimeError(f"pytest does not start for {paths}: {result['message']}")
                return False
            self._sound.add(test)
        return True

    def _write_planted(self, path: Path, planted: str) -> None:
        path.write_text(planted, encoding="utf-8")
        # Compiled modules are told apart by second and size: a fault must not look like another,
        # nor like the original.
        self._num_planted += 1
        os.utime(path, (self._num_planted, self._num_planted))

    def _restore(self) -> None:
        _run(self._root, "git", "reset", "--quiet", "--hard")
        _run(self._root, "git", "clean", "--quiet", "--force", "-d")

    def _nearest_files(self, file: str, names: Sequence[str]) -> list[str]:
        """Return the test files for a source file, the most telling first.

        First come files named after it, then the other tests of its own room, then those of other
        rooms in the order of `tests_of`; in each of these, files that mention one of its public
        names come first. Since pytest takes long to read them, the list ends with enough short
        tests for the budget, as far as their durations are known.
        """
        words = {word for word in Path(file).stem.split("_") if word}
        mention = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in names) or "(?!)")
        environment = environment_of(file)
        elsewhere = [name for name, own in TEST_ENVIRONMENTS.items() if own != environment]
        unreadable = [name for name in self._unsound if "::" not in name]
        found: dict[str, tuple[bool, bool, bool, int]] = {}
        for room, name in enumerate(tests_of(file)):
            path = self._root / name
            for test in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
                key = test.relative_to(self._root).as_posix()
                if test.exists() and not key.startswith((*elsewhere, *unreadable)):
                    is_mentioned = mention.search(test.read_text(encoding="utf-8")) is not None
                    is_namesake = not words.isdisjoint(test.stem.split("_"))
                    order = (not is_namesake, room > 0, not is_mentioned, room)
                    found.setdefault(key, order)
        seconds: dict[str, float] = collections.defaultdict(float)
        for test_id, duration in self._durations.items():
            seconds[test_id.partition("::")[0]] += min(duration, 1.0)
        nearest, total_s = [], 0.0
        for test_file in sorted(found, key=lambda name: found[name]):
            if total_s < self._settings.budget_s:
                nearest.append(test_file)
                total_s += seconds.get(test_file, 1.0)
        return nearest

    def _run_tests(self, python: Path, paths: Sequence[str], budget_s: float) -> Line:
        settings = self._settings
        shutil.rmtree(self._scratch, ignore_errors=True)
        (self._scratch / "home").mkdir(parents=True)
        (self._scratch / "tmp").mkdir()
        log = self._scratch / "log"
        log.touch()
        selection = {
            "log": str(log),
            "paths": list(paths),
            "deselected": [*settings.deselected, *self._unsound],
            "durations": self._durations,
            "assumed_s": settings.assumed_s,
            "budget_s": budget_s,
            "timeout_s": settings.timeout_s,
            "pytest_args": settings.pytest_args,
        }
        (self._scratch / "selection").write_text(json.dumps(selection), encoding="utf-8")
        code, output = _run_to_the_end(
            [str(python), str(RUNNER), str(self._scratch / "selection")],
            cwd=self._root,
            env=self._variables(python),
            log=log,
            silence_s=4 * settings.budget_s + 2 * settings.timeout_s,
        )
        lines = _read_lines(log)
        self._learn(lines)
        return _result(code, output, lines)

    def _learn(self, log: list[Line]) -> None:
        """Keep which tests passed, and how long those took that had no record."""
        ended = [line for line in log if "cpu" in line]
        if any("failed" in line for line in log):
            ended = ended[:-1]  # the last one failed
        self._sound |= {line["test"] for line in ended}
        new = [line for line in ended if line["test"] not in self._durations]
        self._durations |= {line["test"]: line["cpu"] for line in new}
        if self._settings.durations:
            with self._settings.durations.open("a", encoding="utf-8") as durations:
                durations.writelines(json.dumps(line) + "\n" for line in new)

    def _variables(self, python: Path) -> dict[str, str]:
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(FOREIGN_VARIABLES)
        }
        return {
            **own,
            **QUIET_TENSORFLOW,
            "HOME": str(self._scratch / "home"),
            "TMPDIR": str(self._scratch / "tmp"),
            "PATH": f"{python.parent}:{own['PATH']}",
        }


def compare(first: Iterable[Line], second: Iterable[Line] | None = None) -> str:
    """Describe one run, or two runs over the same mutations.

    Args:
        first: Lines of a run.
        second: Lines of another run; only what both tried counts.
    """
    runs = [_tried(run) for run in (first, second) if run is not None]
    common = [mutation for mutation in runs[0] if all(mutation in run for run in runs)]
    rooms = sorted({room_of(mutation.file) for mutation in common})
    lines = [f"{'':20}{'tried':>7}" + "".join(f"{name:>16}" for name in "AB"[: len(runs)])]
    for room in (*rooms, "all"):
        those = [one for one in common if room in (room_of(one.file), "all")]
        shares = []
        for run in runs:
            num_caught = sum(run[one]["outcome"] in CAUGHT for one in those)
            shares.append(f"{num_caught:>7}{num_caught / max(1, len(those)):>9.1%}")
        lines.append(f"{room:20}{len(those):>7}{''.join(shares)}")
    groups: dict[str, list[Mutation]] = {"only A": [], "only B": [], "nothing": [], "all": []}
    for mutation in common:
        by = [name for name, run in zip("AB", runs, strict=False) if _is_caught(run[mutation])]
        groups["all" if len(by) == len(runs) else f"only {by[0]}" if by else "nothing"] += [
            mutation
        ]
    for name in ("only A", "only B", "nothing") if len(runs) > 1 else ("nothing",):
        lines.append(f"\nCaught by {name}: {len(groups[name])}")
        lines += [_describe(one) for one in groups[name]]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    if options.command == "plan":
        parts = {folder: int(count) for folder, _, count in map(_partition, options.parts)}
        with options.out.open("w", encoding="utf-8") as out:
            for mutation in plan(options.root, options.seed, parts):
                out.write(json.dumps(dataclasses.asdict(mutation)) + "\n")
    elif options.command == "run":
        _run_all(options)
    else:
        print(compare(*map(_read_lines, options.results)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mutate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    commands = parser.add_subparsers(dest="command", required=True)
    planning = commands.add_parser("plan", help="choose mutations and write them to a file")
    planning.add_argument("parts", nargs="+", metavar="FOLDER=COUNT")
    planning.add_argument("--seed", type=int, required=True)
    planning.add_argument("--out", type=Path, required=True)
    running = commands.add_parser("run", help="run the tests with each mutation")
    running.add_argument("mutations", type=Path, help="file written by plan")
    running.add_argument(
        "--out", type=Path, required=True, help="results, one line each; appended to"
    )
    running.add_argument(
        "--python", type=Path, help="interpreter for the tests, instead of those that nox installs"
    )
    running.add_argument("--processes", type=int, default=1, help="clones in use at a time")
    running.add_argument("--source", default="HEAD", help="commit to plant the mutations in")
    running.add_argument("--tests-from", help="commit to take the tests from; default: --source")
    running.add_argument(
        "--seconds-per-mutant", type=float, default=60.0,
        help="sum of the processor time, as recorded, of the tests that run for one mutation",
    )  # fmt: skip
    running.add_argument(
        "--timeout", type=float, default=60.0,
        help="smallest number of seconds after which a test counts as hanging",
    )  # fmt: skip
    running.add_argument(
        "--durations", type=Path,
        help='file with lines like {"test": ID, "cpu": SECONDS}, as in build/durations: '
        "shorter tests run first, and tests that it lacks are added",
    )  # fmt: skip
    running.add_argument(
        "--deselect-file", type=Path, help="IDs of tests, or their beginnings, to leave out"
    )
    running.add_argument("--pytest-args", nargs=argparse.REMAINDER, default=[], help="at the end")
    comparing = commands.add_parser("compare", help="print what one or two runs caught")
    comparing.add_argument(
        "results", type=Path, nargs="+", help="files written by run, at most two"
    )
    return parser


def _partition(part: str) -> tuple[str, str, str]:
    return part.partition("=")


def _run_all(options: argparse.Namespace) -> None:
    done = {_mutation(line) for line in _read_lines(options.out)}
    todo = [one for one in map(_mutation, _read_lines(options.mutations)) if one not in done]
    deselected = options.deselect_file.read_text("utf-8") if options.deselect_file else ""
    settings = Settings(
        budget_s=options.seconds_per_mutant,
        timeout_s=options.timeout,
        durations=options.durations,
        deselected=tuple(filter(None, deselected.split("\n"))),
        pytest_args=tuple(options.pytest_args),
    )
    # Workers inherit it: they and this process clean up when they are asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    queue: multiprocessing.Queue[Mutation | None] = multiprocessing.Queue()
    for item in (*todo, *[None] * options.processes):
        queue.put(item)
    memory = MEMORY_FILES if os.access(MEMORY_FILES, os.W_OK) else None
    temporary = functools.partial(
        tempfile.TemporaryDirectory, prefix="mutants-", ignore_cleanup_errors=True
    )
    with temporary() as folder, temporary(dir=memory) as scratch:
        for made in (folder, scratch):
            Path(made).chmod(0o755)  # for servers that tests run as another user
        workers = [
            multiprocessing.Process(
                target=_work,
                args=(
                    Path(folder, str(index)),
                    Path(scratch, str(index)),
                    settings,
                    options,
                    queue,
                ),
                daemon=True,
            )
            for index in range(options.processes)
        ]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            for worker in workers:
                worker.terminate()
                worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a worker process ended early; start the run again to continue it")


def _work(
    folder: Path,
    scratch: Path,
    settings: Settings,
    options: argparse.Namespace,
    queue: multiprocessing.Queue[Mutation | None],
) -> None:
    """Try mutations from the queue in a clone, until it holds None; write each result."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    tests = options.tests_from or options.source
    revisions = _clone(options.root, folder, options.source, tests)
    tree = Tree(folder, settings, scratch)
    while (mutation := queue.get()) is not None:
        python = options.python or tree.python(environment_of(mutation.file))
        result = tree.try_mutation(mutation, python)
        line = json.dumps({**dataclasses.asdict(mutation), **revisions, **result})
        with options.out.open("a", encoding="utf-8") as results:
            results.write(line + "\n")
        print(f"{result['outcome']:9}{_describe(mutation)}", flush=True)


def _clone(root: Path, tree: Path, source: str, tests: str) -> dict[str, str]:
    """Clone the repository at one commit, with the tests of another; return both commits."""
    commits = {
        name: _run(root, "git", "rev-parse", f"{revision}^{{commit}}").strip()
        for name, revision in (("source", source), ("tests", tests))
    }
    _run(root, "git", "clone", "--quiet", "--shared", "--no-checkout", str(root), str(tree))
    _run(tree, "git", "checkout", "--quiet", "--detach", commits["source"])
    if commits["tests"] != commits["source"]:
        _run(tree, "git", "rm", "-r", "--quiet", "--", *TEST_FOLDERS)
        _run(tree, "git", "checkout", "--quiet", commits["tests"], "--", *TEST_FOLDERS)
        _run(tree, "git", "-c", "user.name=mutate", "-c", "user.email=", "commit", "--quiet",
             "--allow-empty", "--message", "tests of another commit")  # fmt: skip
    return commits


def _result(code: int | None, output: str, log: list[Line]) -> Line:
    """Make the fields of a result from the exit code, if there is one, and the log."""
    chosen = next((line for line in log if "selected" in line), {"selected": 0, "left_out": 0})
    num_tests = sum("cpu" in line for line in log)
    result: Line = {
        "num_tests": num_tests,
        "left_out": chosen["left_out"] + chosen["selected"] - num_tests,
    }
    failed = next((line for line in log if "failed" in line), None)
    if failed is not None:
        outcome = "timeout" if failed["timeout"] else "caught"
        return {**result, "outcome": outcome, "test": failed["failed"],
                "message": failed["message"]}  # fmt: skip
    spent = any("spent" in line for line in log)
    if code == 0 or spent or (code == 5 and chosen["left_out"]):  # 5: no tests ran
        return {**result, "outcome": "survived"}
    started = [line["started"] for line in log if "started" in line]
    return {
        **result,
        "outcome": "timeout" if code is None else "caught",
        "test": started[-1] if started else None,
        "message": output.strip().splitlines()[-1][:200] if output.strip() else "",
    }


def _run(folder: Path, *command: str) -> str:
    """Run a command that must succeed; return what it prints."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(
            f"{' '.join(command)} in {folder} ended with {result.returncode}:\n"
            f"{result.stdout}{result.stderr}"
        )
    return result.stdout


def _run_to_the_end(
    command: list[str], *, cwd: Path, env: dict[str, str], log: Path, silence_s: float
) -> tuple[int | None, str]:
    """Run a command, then end every process that it left behind.

    This process must be a subreaper, so that it becomes the parent of processes that are left, and
    must have no other child.

    Returns:
        The exit code, or None if the log did not grow for `silence_s` seconds, and the output.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        grew_at, size_bytes = time.monotonic(), 0
        try:
            while _reap_others(process.pid) and time.monotonic() < grew_at + silence_s:
                if size_bytes != log.stat().st_size:
                    grew_at, size_bytes = time.monotonic(), log.stat().st_size
                time.sleep(0.05)
            code = process.poll()
        finally:
            process.kill()
            process.wait()
            while left := list(_descendants(os.getpid())):
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                _reap_others(None)
                time.sleep(0.02)
        output.seek(0)
        return code, output.read().decode("utf-8", "replace")


def _reap_others(own: int | None) -> bool:
    """Collect children that have ended, except one; return whether that one still runs."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, options)) is not None:
            if ended.si_pid == own:
                return False
            os.waitpid(ended.si_pid, 0)
    return True


def _descendants(ancestor: int) -> Iterator[int]:
    """Yield the running processes that descend from one, without those that have ended."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in ("Z", "X"):
                    parents[int(folder.name)] = int(parent)
    for pid in parents:
        above = pid
        while above in parents and above != ancestor:
            above = parents[above]
        if above == ancestor != pid:
            yield pid


def _read_lines(path: Path) -> list[Line]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _mutation(line: Line) -> Mutation:
    return Mutation(**{field.name: line[field.name] for field in dataclasses.fields(Mutation)})


def _tried(lines: Iterable[Line]) -> dict[Mutation, Line]:
    return {_mutation(line): line for line in lines if line["outcome"] != "gone"}


def _is_caught(line: Line) -> bool:
    return line["outcome"] in CAUGHT


def _describe(mutation: Mutation) -> str:
    before, after = (" ".join(text.split()) for text in (mutation.before, mutation.after))
    return f"{mutation.file}:{mutation.line}: {mutation.operator}: {before} -> {after}"


if __name__ == "__main__":
    sys.exit(main())
