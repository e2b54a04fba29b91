"""The time to read long and deep inputs grows at most linearly or is bounded."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from detcore.cli.output import printable
from detcore.config import load_text
from detcore.config.problems import find_closest
from detcore.core.trial_outcome import describe_cause
from detcore.errors import ConfigError
from detcore.launch.output_lines import LineCutter
from detcore.log.lines import parse_line
from detcore.masking import hide_lines, is_secret_key, mask_code, mask_text
from detcore_report import escape
from detcore_server.http.server_log import hide_secrets

HEAD = "entrypoint: a:b\nsearcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
FILES: dict[str, Callable[[int], str]] = {
    "map": lambda n: f"{HEAD}data:\n" + "".join(f"  k{i}: {i}\n" for i in range(n // 40)),
    "unknown keys": lambda n: HEAD + "".join(f"key{i}: 1\n" for i in range(n // 40)),
    "ranges": lambda n: (
        f"{HEAD}hyperparameters:\n"
        + "".join(f"  h{i}: {{type: int, minval: 1, maxval: 0}}\n" for i in range(n // 400))
    ),
    "mounts": lambda n: (
        f"{HEAD}bind_mounts:\n"
        + "".join("  - {host_path: /a, container_path: /b}\n" for _ in range(n // 400))
    ),
    "merges": lambda n: (
        f"{HEAD}data:\n  a: &a {{x: 1}}\n"
        + "".join(f"  b{i}: {{<<: *a}}\n" for i in range(n // 100))
    ),
    "brackets": lambda n: f"{HEAD}data: {'[' * n}{']' * n}\n",
    "open brackets": lambda n: f"{HEAD}data: {'{a: ' * n}\n",
    "indentation": lambda n: HEAD + "".join(f"{' ' * i}a:\n" for i in range(n // 100)),
    "digits": lambda n: f"{HEAD}max_restarts: {'1' * n}\n",
    "hexadecimal": lambda n: f"{HEAD}max_restarts: 0x{'f' * n}\n",
    "underscores": lambda n: f"{HEAD}max_restarts: 1{'_' * n}x\n",
    "word": lambda n: f"{HEAD}name: {'a' * n}\nx: 1\n",
    "words": lambda n: f"{HEAD}name: {'a_ ' * n}\nx: 1\n",
    "key": lambda n: f"{HEAD}? {'a' * n}\n: 1\n",
    "quoted": lambda n: f'{HEAD}name: "{"a " * n}\n',
    "blank": lambda n: HEAD + "\n" * n,
    "comment": lambda n: f"{HEAD}# {'a:' * n}\n",
    "entrypoint": lambda n: HEAD.replace("a:b", f"{'a.' * n}b:C"),
    "command": lambda n: HEAD.replace("a:b", "python3 x " * n),
    "length": lambda n: HEAD.replace("batches: 1", f"{'batches' * n}: 1"),
    "path": lambda n: f"{HEAD}checkpoint_storage: {{type: shared_fs, host_path: {'/..' * n}}}\n",
    "size": lambda n: f"{HEAD}resources: {{shm_size: {'1' * n}.{'1' * n}kib}}\n",
    "url": lambda n: f"{HEAD}checkpoint_storage: {{type: directory, url: 's3://{'a@' * n}'}}\n",
}
TEXTS: dict[str, Callable[[int], str]] = {
    "word": lambda n: "a" * n,
    "words": lambda n: "a " * n,
    "spaces": lambda n: "a" + " " * n,
    "dots": lambda n: "a." * n,
    "assignments": lambda n: "a: " * n,
    "urls": lambda n: "://a" * n,
    "signatures": lambda n: "?sig=" * n,
    "at signs": lambda n: "x://" + "a@" * n,
    "tokens": lambda n: "detcore_" * n,
    "near a secret": lambda n: "acces_kex: 1\n" * (n // 20),
    "bearer": lambda n: "bearer " * n,
    "hexadecimal": lambda n: "0" * n,
    "escapes": lambda n: "\x1b[" * n,
    "open escape": lambda n: "\x1b[" + "1;" * n,
    "returns": lambda n: "a\r" * n,
    "backspaces": lambda n: "\b" * n,
    "lines": lambda n: "\n" * n,
    "colons": lambda n: ":" * n,
    "frames": lambda n: 'File "' * n,
    "announcement": lambda n: "x: " * n + "Exception",
}
READERS: dict[str, Callable[[str], object]] = {
    "is_secret_key": is_secret_key,
    "mask_text": mask_text,
    "mask_code": lambda text: mask_code(f"entrypoint:\nsearcher:\n{text}", ["a secret"]),
    "hide_lines": lambda text: hide_lines(text.split("\n")),
    "hide_secrets": hide_secrets,
    "nearest": lambda text: find_closest(text, ["max_length", "max_trials"]),
    "describe_cause": lambda text: describe_cause(ValueError(f"a:\n{text}")),
    "printable": printable,
    "printable with colours": lambda text: printable(text, keep_colours=True),
    "escape": escape,
    "line cutter": lambda text: _cut(text.encode()),
    "event log line": lambda text: parse_line(text.encode()),
    "event log array": lambda text: parse_line(b"[" * len(text)),
}
_FEW, _MANY = 5_000, 20_000


def _cut(data: bytes) -> None:
    cutter = LineCutter()
    for start in range(0, len(data), 1000):
        list(cutter.feed(data[start : start + 1000]))
    list(cutter.finish())


def _grows_too_fast(run: Callable[[int], object]) -> str | None:
    """Compare the processor times of one size and of four times this size."""

    def measured(size: int) -> float:
        start = time.process_time()
        run(size)
        return time.process_time() - start

    measured(100)  # imports
    few, many = measured(_FEW), measured(_MANY)
    # Quadratic growth would be a factor of 16. Very short times are not significant.
    return f"{few:.2f} s, then {many:.2f} s" if many > 8 * few + 0.5 else None


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_experiment_files(make: Callable[[int], str]) -> None:
    def run(size: int) -> None:
        with contextlib.suppress(ConfigError):
            load_text(make(size), name="exp.yaml", required=("entrypoint",))

    assert _grows_too_fast(run) is None


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_prose_of_text_files_is_plain(read: Callable[[str], object]) -> None:
    results = {}
    for name, make in TEXTS.items():

        def run(size: int, make: Callable[[int], str] = make) -> None:
            read(make(size))

        if report := _grows_too_fast(run):
            results[name] = report
    assert results == {}
