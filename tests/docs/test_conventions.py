"""Tests that no block of a page is hidden from the tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from doc_blocks import ENVIRONMENTS, SKIP_REASONS, Block, Page, name_of, pages, read_page
from plugin_wheels import with_required
from source_tree import ROOT

PAGES = pages()
# Blocks that no test runs. Before you add one, try to make it run.
# Pages by reason. A page occurs once for each block.
NOT_RUN = {
    "forever": [
        "docs/page.md",
        "docs/server.md",
        "docs/server.md",
        "docs/server.md",
    ],
    "machines": [
        "docs/distributed.md",
        "docs/distributed.md",
        "docs/orchestrators.md",
        "docs/orchestrators.md",
        "docs/orchestrators.md",
        "docs/orchestrators.md",
        "docs/orchestrators.md",
        "docs/server.md",
        "docs/server.md",
        "examples/ray/README.md",
    ],
    "network": [
        "README.md",
        "docs/installation.md",
        "docs/installation.md",
        "docs/installation.md",
        "docs/pytorch-scripts.md",
        "docs/pytorch-scripts.md",
        "docs/pytorch-scripts.md",
        "docs/pytorch.md",
        "docs/quickstart.md",
        "docs/server.md",
        "docs/testing.md",
        "docs/writing-a-plugin.md",
        "docs/writing-a-plugin.md",
        "docs/writing-a-plugin.md",
        "docs/writing-a-plugin.md",
        "examples/accelerate_torch/README.md",
        "examples/core_api/README.md",
        "examples/digits_estimator/README.md",
        "examples/digits_keras/README.md",
        "examples/digits_torch/README.md",
        "examples/language_torch/README.md",
        "examples/lightning_torch/README.md",
        "examples/plugins/detcore-mlflow/README.md",
        "examples/plugins/detcore-sklearn/README.md",
        "examples/ray/README.md",
        "examples/trainer_torch/README.md",
    ],
    "nox": [
        "README.md",
    ],
    "server": [
        "docs/migrating.md",
        "docs/migrating.md",
        "docs/records.md",
        "docs/records.md",
        "docs/server.md",
        "docs/server.md",
        "docs/server.md",
    ],
    "slow": [
        "README.md",
        "docs/client.md",
        "docs/data.md",
        "docs/data.md",
        "docs/data.md",
        "docs/distributed.md",
        "docs/orchestrators.md",
        "docs/writing-a-plugin.md",
        "examples/accelerate_torch/README.md",
        "examples/core_api/README.md",
        "examples/core_api/README.md",
        "examples/digits_keras/README.md",
        "examples/digits_torch/README.md",
        "examples/digits_torch/README.md",
        "examples/language_torch/README.md",
        "examples/lightning_torch/README.md",
        "examples/plugins/detcore-sklearn/README.md",
        "examples/trainer_torch/README.md",
    ],
}
_COMMAND = re.compile(
    r"^(\$ |detcore |pip |python3? |nox |from \w+ import |import \w+|def |class )"
)


@pytest.fixture(params=PAGES, ids=name_of)
def page(request: pytest.FixtureRequest) -> Page:
    """Each page in turn."""
    return read_page(request.param)


@pytest.mark.parametrize("session", sorted(set(ENVIRONMENTS.values()) - {"bare"}))
def test_session_runs_pages_of_its_environment(session: str) -> None:
    text = _sessions()[session]
    assert '"tests/docs/test_pages.py"' in text, f"{session} runs no pages"


def test_sessions_run_tests_of_each_plugin() -> None:
    source = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    folders = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("plugins/*/tests")]
    assert len(folders) > 10
    assert [folder for folder in folders if f'"{folder}"' not in source] == []


def test_session_installs_required_plugins() -> None:
    """Sessions install without dependencies, because the locks list them."""
    lists: dict[str, list[str]] = {}
    num_calls = 0
    for node in ast.walk(ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            lists[ast.unparse(node.targets[0])] = _listed(node.value.elts, lists)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "install_locked":
            num_calls += 1
            paths = _listed(node.args[1:], lists)
            plugins = [path.removeprefix("plugins/") for path in paths if "plugins/" in path]
            assert {*with_required(*plugins)} == {*plugins}, ast.unparse(node)
    assert num_calls > 3


def _listed(items: list[ast.expr], lists: dict[str, list[str]]) -> list[str]:
    """Return the strings of a list and of its nested lists."""
    texts = []
    for item in items:
        if isinstance(item, ast.Starred):
            texts += lists.get(ast.unparse(item.value), [])
        elif isinstance(item, ast.Constant):
            texts.append(str(item.value))
    return texts


def _sessions() -> dict[str, str]:
    """Return the source of each nox session, including its decorator, by name."""
    source = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    sessions = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            decorators = "".join(ast.unparse(decorator) for decorator in node.decorator_list)
            match = re.search(r"name='([\w.-]+)'", decorators)
            name = match[1] if match else node.name
            sessions[name] = ast.get_source_segment(source, node) or ""
    return sessions


def test_page_files_are_used_by_its_commands(page: Page) -> None:
    for number, block in enumerate(page.blocks):
        if block.file is not None:
            other_blocks = page.blocks[:number] + page.blocks[number + 1 :]
            used = [other for other in other_blocks if _is_run(other) and _names(other, block)]
            assert used, f"{page.name}:{block.line}: nothing uses {block.file}"


def _is_run(block: Block) -> bool:
    """Whether a block runs, here or in the test it names."""
    return block.words.get("skip", "slow") == "slow"


def _names(other: Block, written: Block) -> bool:
    stem = re.escape(Path(written.file or "").stem)
    text = other.code + other.words.get("of", "")
    return re.search(rf"\b{stem}\b|\bpytest\b|\bdetcore migrate\b", text) is not None


def test_text_is_no_code(page: Page) -> None:
    for block in page.blocks:
        if block.language == "text" and not block.hidden and block.file is None:
            code = [line for line in block.code.splitlines() if _COMMAND.match(line)]
            assert code == [], f"{page.name}:{block.line}: say which language it is"


def test_skipped_blocks_are_listed() -> None:
    pages_by_reason: dict[str, list[str]] = {}
    for page in map(read_page, PAGES):
        for block in page.blocks:
            if "skip" in block.words:
                assert not block.hidden
                pages_by_reason.setdefault(block.words["skip"], []).append(page.name)
    assert {reason: sorted(names) for reason, names in pages_by_reason.items()} == NOT_RUN
    assert set(pages_by_reason) <= set(SKIP_REASONS)


def test_links_lead_to_files_and_headings(page: Page) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.path.read_text("utf-8"), flags=re.M | re.S)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)", text):
        if re.match(r"\w+:", target):
            continue
        path = (page.path.parent / target) if target else page.path
        assert path.exists(), f"{page.name} links to {target}"
        if anchor and path.suffix == ".md":
            assert anchor in _anchors(path), f"{page.name} links to {target}#{anchor}"


def _anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site generate them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
