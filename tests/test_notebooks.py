"""Every committed notebook keeps the collection's promises: executed, readable, safe, of one structure."""

import ast
import json
import re
from pathlib import Path

import pytest

from utils import new, sources
from utils.paths import ROOT

NOTEBOOKS = sorted(ROOT.glob("notebooks/*/*.ipynb"))
FILES = ["README.md", "demo.py", "checkpoints.toml"]
MODULES = ["convert", "pipeline", "demo"]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request) -> Path:
    return request.param


@pytest.fixture
def cells(notebook) -> list[dict]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def of_kind(cells: list[dict], kind: str) -> list[dict]:
    return [cell for cell in cells if cell["cell_type"] == kind]


def without_blocks(text: str) -> str:
    """A markdown text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def texts(cell: dict) -> str:
    parts = [output.get("text", output.get("data", {}).get("text/plain", "")) for output in cell["outputs"]]
    return "".join("".join(part) for part in parts)


def test_there_are_notebooks():
    assert NOTEBOOKS


def test_it_is_committed_executed_in_order_and_without_errors(cells):
    code = of_kind(cells, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [source(c) for c in code for output in c["outputs"] if output["output_type"] == "error"]


def test_nbval_compares_at_least_three_cells_and_the_last_says_done(cells):
    code = of_kind(cells, "code")
    compared = [
        cell
        for cell in code
        if cell["outputs"] and "nbval-ignore-output" not in cell["metadata"].get("tags", []) and texts(cell).strip()
    ]
    assert len(compared) >= 3
    assert compared[-1] is code[-1]
    assert texts(code[-1]).strip() == "done"


def test_its_sections_have_the_names_and_order_of_the_template(cells):
    headings = [
        (len(match[1]), match[2].strip())
        for cell in of_kind(cells, "markdown")
        for match in re.finditer(r"^(#+) (.+)$", without_blocks(source(cell)), re.MULTILINE)
    ]
    levels = [level for level, _ in headings]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False)), "a skipped level"
    assert [text for level, text in headings if level == 2] == new.sections()


def test_cells_and_outputs_are_short_enough_to_read(cells, notebook):
    assert notebook.stat().st_size <= 400_000
    for cell in of_kind(cells, "code"):
        assert len(source(cell).splitlines()) <= 40, source(cell)[:80]
        assert len(texts(cell).splitlines()) < 100, source(cell)[:80]


def test_pictures_are_described(cells, notebook):
    for i, cell in enumerate(cells):
        for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", source(cell)):
            assert len(alt.split()) > 3, f"{target} needs a description"
            assert (notebook.parent / target).is_file()
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", [])):
            assert cells[i + 1]["cell_type"] == "markdown", "a sentence after the figure must say what it shows"


def streams(cell: dict, *names: str) -> list[str]:
    return ["".join(output["text"]) for output in cell["outputs"] if output.get("name") in names]


def test_outputs_have_no_noise(cells):
    """Warnings, progress bars and news of conversions come over stderr; widgets show nothing on a page."""
    for cell in of_kind(cells, "code"):
        assert not streams(cell, "stderr"), source(cell)[:80]
        assert len(streams(cell, "stdout")) <= 2, source(cell)[:80]
        assert not [x for x in cell["outputs"] if "widget-view" in str(x.get("data", {}).keys())], source(cell)[:80]


def test_progress_of_compressions_is_not_compared(cells):
    """NNCF draws progress bars on the first run only, when nothing is cached."""
    for cell in of_kind(cells, "code"):
        if re.search(r"nncf\.(compress_weights|quantize)\(", source(cell)):
            assert "nbval-ignore-output" in cell["metadata"].get("tags", []), source(cell)[:80]


def test_news_of_conversions_is_not_compared(cells):
    """On the first run, a conversion says over stderr that it has begun, or that it waits for another process."""
    for cell in of_kind(cells, "code"):
        if re.search(r"\bconvert\.(prepare|llm_checkpoint)", source(cell)):
            assert "nbval-ignore-output" in cell["metadata"].get("tags", []), source(cell)[:80]


def test_rows_of_a_table_in_the_text_are_lines(cells):
    for cell in of_kind(cells, "markdown"):
        for line in source(cell).splitlines():
            assert "|---" not in line or line.lstrip().startswith("|--"), line


def test_tables_are_for_people(cells):
    """At most 15 rows that are not folded, and no number like 3.5e-04."""
    for cell in of_kind(cells, "code"):
        for output in cell["outputs"]:
            page = "".join(output.get("data", {}).get("text/html", ""))
            shown = re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)
            assert shown.count("<tr") <= 16, source(cell)[:80]
        assert not re.search(r"\b\d(\.\d+)?e[+-]\d+\b", texts(cell)), source(cell)[:80]


def test_what_every_notebook_does_not_need_to_show_is_folded(cells):
    parameters, *_, last = of_kind(cells, "code")
    assert all(cell["metadata"].get("jupyter", {}).get("source_hidden") for cell in (parameters, last))


def test_nothing_is_installed_downloaded_or_local_to_one_machine(cells):
    for cell in of_kind(cells, "code"):
        text = source(cell)
        assert not re.search(r"^\s*[%!]|git clone|https?://", text, re.MULTILINE), text
        ast.parse(text)
        assert not re.search(r"(/home/|/Users/|[A-Z]:\\\\|/tmp/|/root/|site-packages)", texts(cell)), texts(cell)


def test_committed_media_are_small(notebook):
    media = [f for f in notebook.parent.rglob("*") if f.suffix in {".png", ".jpg", ".mp4", ".webm", ".ogg", ".mp3"}]
    assert sum(file.stat().st_size for file in media) <= 2_000_000


def test_its_folder_has_the_files_of_every_notebook(notebook):
    assert not [name for name in FILES if not (notebook.parent / name).is_file()]
    assert not [name for name in MODULES if not sources.file_of(name, notebook.parent)]


def test_the_runtime_stands_alone(notebook):
    """The pipeline is copied into projects: neither torch nor anything of this repository."""
    found = sources.reachable("pipeline", notebook.parent)
    libraries = {name.partition(".")[0] for module in found for name in sources.libraries(module, notebook.parent)}
    assert not libraries & {"torch", "transformers", "utils", "notebooks"}
