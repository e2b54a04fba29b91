"""Tests that the page runner finds errors in pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import PageError, read_page
from doc_driver import matches
from source_tree import ROOT

DRIVER = ROOT / "tests" / "support" / "doc_driver.py"
WRONG = {
    "an exception": ("```python\n1 / 0\n```\n", r"page.py?.*line 2|ZeroDivisionError"),
    "a script that fails": ("```python\nraise SystemExit(3)\n```\n", "page.md:2: exit code 3"),
    "an answer": ("```pycon\n>>> 1 + 1\n3\n```\n", "DocTestFailure"),
    "a command": ("```console\n$ true\n$ false\n```\n", "page.md:2: exit code 1, not 0"),
    "its output": ("```console\n$ echo one\ntwo\n```\n", "does not print the line"),
    "an expected failure": (
        "<!-- block: exit=1 -->\n```console\n$ true\n```\n",
        "page.md:3: exit code 0, not 1",
    ),
    "a setting": ("```yaml\nschedulin_unit: 5\n```\n", "did you mean 'scheduling_unit'"),
    "json": ("```json\n{1}\n```\n", "JSONDecodeError"),
    "toml": ("```toml\na = \n```\n", "TOMLDecodeError"),
    "a module": ("<!-- block: file=a.py -->\n```python\ndef (:\n```\n", "SyntaxError"),
    "a diff": (
        "```diff\n--- noxfile.py\n+++ noxfile.py\n+import never_there\n```\n",
        "not in noxfile.py",
    ),
}
RIGHT = """\
<!-- hidden: python
hidden = 20
-->

```python
from __future__ import annotations
value = hidden + 2
```

<!-- block: file=part.py -->
```python
NUMBER = 22
```

```python
from part import NUMBER

assert value == NUMBER
```

```pycon
>>> value
22
```

- in a list

  ```sh
  mkdir folder
  export NAME=1
  cd folder
  ```

```console
$ basename $PWD
folder
$ python -c "import os; print('name', os.environ['NAME'], 123)"
name 7 ...
```

<!-- block: exit=3 -->
```console
$ exit 3
```

<!-- block: skip=network -->
```sh
false
```

<!-- block: plain -->
```yaml
schedulin_unit: 5
```

```yaml
scheduling_unit: 5
```
"""


def run(page: Path) -> tuple[int, str]:
    """Run a page in its directory."""
    finished = subprocess.run(
        [sys.executable, str(DRIVER), str(page)],
        cwd=page.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return finished.returncode, finished.stdout + finished.stderr


@pytest.mark.parametrize("what", WRONG)
def test_wrong_block_fails(what: str, tmp_path: Path) -> None:
    text, problem = WRONG[what]
    page = tmp_path / "page.md"
    page.write_text(text)
    code, output = run(page)
    assert code == 1
    assert any(part in output for part in problem.split("|")), output


def test_a_page_that_is_right_passes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(RIGHT)
    assert run(page)[0] == 0, run(page)[1]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```\nx\n```\n", "language ''"),
        ("```rust\nx\n```\n", "language 'rust'"),
        ("```python\nx\n", "does not end"),
        ('```python title="x"\nx\n```\n', "a language alone"),
        ("~~~python\nx\n~~~\n", "a language alone"),
        ("> ```python\n> x\n> ```\n", "a language alone"),
        ("<!-- block: skip=tired -->\n```sh\nx\n```\n", "valid reasons"),
        ("<!-- block: skip=slow by=tests/none.py -->\n```sh\nx\n```\n", "needs by=PATH"),
        ("<!-- block: sleep=1 -->\n```sh\nx\n```\n", "valid words"),
        ("<!-- blocks: env=mars -->\n", "env=mars"),
        ("<!-- block: exit=1 -->\nwords\n", "stands before no block"),
        ("<!-- hidden: python\nx\n", "does not end with a line"),
        ("<!-- hidden: perl\nx\n-->\n", "valid: python, sh"),
        ("<!-- hidden: copy=nowhere -->\n", "valid: python, sh"),
    ],
)
def test_invalid_page_is_rejected(text: str, found: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(PageError, match=found):
        read_page(page)


def test_output_may_differ_in_numbers_and_ids() -> None:
    printed = "trial 12: batch 900, 1.25 s\ncheckpoint 6d1c2f0e-aa10-4c11 saved\n"
    assert (
        matches(["trial 1: batch 7, 3 s", "checkpoint 0abc1234-0000-1111 saved"], printed) is None
    )
    assert matches(["checkpoint ... saved"], printed) is None
    assert matches(["checkpoint 0abc1234 lost"], printed) == "checkpoint 0abc1234 lost"
    assert matches(["checkpoint 1 saved", "trial 1: batch 1, 1 s"], printed) is not None
