"""The website: what is laid out for Sphinx, its settings, its pins, and what a failed build leaves."""

import json
import re
import shutil

import pytest
from packaging.requirements import Requirement

from utils import about, website
from utils.paths import ROOT
from utils.setup import env

ABOUT = (ROOT / "utils/template/notebooks/new_case/about.toml").read_text(encoding="utf-8")
MARKDOWN = """# Toy

[code](pipeline.py), [`own`](tool/run.py), [folder](tool), [page](README.md#start), [front](../../README.md),
[elsewhere](https://docs.python.org), ![what it made](result.png), [below](#What-it-is%3F-A-test),
[of a tool](tool/README.md)

```
[code](unknown.py)
```
"""


@pytest.fixture
def collection(tmp_path):
    """A repository with two notebooks, `late` being the second to read."""
    root = tmp_path / "repository"
    for case, order in (("late", 2), ("toy", 1)):
        folder = root / "notebooks" / case
        (folder / "tool").mkdir(parents=True)
        for name in (
            "pipeline.py",
            "tool/run.py",
            "tool/README.md",
            "result.png",
            "result.mp3",
            "thumbnail.jpg",
            "weights.bin",
        ):
            (folder / name).write_text(name, encoding="utf-8")
        (folder / "about.toml").write_text(ABOUT.replace("order = 100", f"order = {order}"), encoding="utf-8")
        (folder / "README.md").write_text("# Read me\n\n## Start\n", encoding="utf-8")
        (folder / "RESULTS.md").write_text("# Results\n", encoding="utf-8")
        hidden = {"cell_type": "code", "source": ["1"], "metadata": {"jupyter": {"source_hidden": True}}}
        shown = {"cell_type": "code", "source": ["2"], "metadata": {}}
        text = {"cell_type": "markdown", "source": MARKDOWN.splitlines(keepends=True), "metadata": {}}
        book = {"cells": [text, hidden, shown], "metadata": {"widgets": {}}, "nbformat": 4, "nbformat_minor": 5}
        (folder / f"{case}.ipynb").write_text(json.dumps(book), encoding="utf-8")
    picture = '<a href="notebooks/toy/toy.ipynb"><img src="notebooks/toy/thumbnail.jpg"></a>'
    (root / "README.md").write_text(f"# Front\n\n{picture} [toy](notebooks/toy/toy.ipynb)\n", encoding="utf-8")
    (root / "CONTRIBUTING.md").write_text("# Contributing\n", encoding="utf-8")
    return root


def test_pages_are_laid_out_in_learning_order(collection, tmp_path):
    website.lay_out(tmp_path / "pages", collection)
    index = (tmp_path / "pages" / "index.md").read_text(encoding="utf-8")
    assert '<a href="notebooks/toy/toy.html"><img src="notebooks/toy/thumbnail.jpg"></a> [toy](' in index
    contents = index.partition(":caption: Beginner\n\n")[2].splitlines()
    assert contents[:3] == ["notebooks/toy/toy", "notebooks/late/late", "```"]
    readmes = index.partition(":caption: READMEs\n\n")[2].splitlines()
    assert readmes[:4] == ["notebooks/toy/README", "notebooks/late/README", "CONTRIBUTING", "```"]
    readme = (tmp_path / "pages" / "notebooks" / "toy" / "README.md").read_text(encoding="utf-8")
    assert readme.endswith("```{toctree}\n:hidden:\n\nRESULTS\n```\n")


def test_links_lead_to_pages_and_files_of_the_site(collection, tmp_path):
    website.lay_out(tmp_path, collection)
    folder = tmp_path / "notebooks" / "toy"
    book = json.loads((folder / "toy.ipynb").read_text(encoding="utf-8"))
    text = book["cells"][0]["source"]
    assert "[code](pipeline.py), [`own`](tool/run.py), folder, [page](README.md#start), [front](../../index.md)" in text
    assert "[elsewhere](https://docs.python.org), ![what it made](result.png)" in text and "unknown.py" in text
    assert "[below](#what-it-is-a-test),\nof a tool\n" in text
    for name in ("pipeline.py", "tool/run.py", "result.png"):
        assert (folder / name).read_text(encoding="utf-8") == name
    copied = {file.name for file in (tmp_path / "_extra" / "notebooks" / "toy").iterdir()}
    assert copied == {"result.png", "result.mp3", "thumbnail.jpg"} and not (folder / "weights.bin").exists()


def test_hidden_sources_stay_hidden_and_widgets_bring_no_state(collection, tmp_path):
    website.lay_out(tmp_path, collection)
    book = json.loads((tmp_path / "notebooks" / "toy" / "toy.ipynb").read_text(encoding="utf-8"))
    assert [cell["metadata"].get("tags") for cell in book["cells"]] == [None, ["hide-input"], None]
    assert book["metadata"] == {}


def test_every_notebook_has_a_page_whose_pictures_are_there(tmp_path):
    website.lay_out(tmp_path)
    index = (tmp_path / "index.md").read_text(encoding="utf-8")
    for case in sorted(path.parent.name for path in ROOT.glob("notebooks/*/*.ipynb")):
        assert f"\nnotebooks/{case}/{case}\n" in index
        assert (tmp_path / "notebooks" / case / f"{case}.ipynb").is_file()
        thumbnail = about.load(ROOT / "notebooks" / case).thumbnail.file
        assert (tmp_path / website.EXTRA / "notebooks" / case / thumbnail).is_file()
    pictures = re.findall(r'(?:src|href)="([^":]+)"', index)
    assert pictures
    for target in pictures:
        page = (tmp_path / target).with_suffix(".ipynb")
        assert (tmp_path / website.EXTRA / target).is_file() or page.is_file(), target


def test_the_settings_run_nothing_and_reach_no_other_server():
    text = (website.SETTINGS / "conf.py").read_text(encoding="utf-8")
    compile(text, "conf.py", "exec")
    assert 'nb_execution_mode = "off"' in text and "nb_ipywidgets_js = {}" in text
    assert not [
        name for name in ("conf.py", "style.css") if "://" in (website.SETTINGS / name).read_text(encoding="utf-8")
    ]


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        ("<pre><span>code</span></pre>", '<pre tabindex="0"><span>code</span></pre>'),
        ('<p class="caption" role="heading">A</p>', '<p class="caption" role="heading" aria-level="2">A</p>'),
        ('<div class="table-wrapper a">', '<div tabindex="0" class="table-wrapper a">'),
        ('<th style="text-align:left"></th><th class="head"><p></p></th>', "<td></td><td></td>"),
        ('<th class="head"><p>Stage</p></th>', '<th class="head"><p>Stage</p></th>'),
    ],
)
def test_built_pages_are_mended_for_keyboards_and_screen_readers(built, expected):
    assert website.mended(built) == expected


def pins(path) -> dict[str, str]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    requirements = [Requirement(line.partition("  #")[0]) for line in lines]
    return {requirement.name: str(requirement.specifier).removeprefix("==") for requirement in requirements}


def test_its_packages_are_pinned_with_reasons_and_locked():
    direct, locked = (pins(website.SETTINGS / name) for name in ("requirements.txt", "requirements.lock"))
    assert direct.items() <= locked.items()
    assert all(re.fullmatch(r"[0-9][0-9A-Za-z.]*", version) for version in locked.values())
    others = pins(ROOT / "requirements.lock")
    assert {name: others[name] for name in locked.keys() & others.keys()}.items() <= locked.items()
    text = (website.SETTINGS / "requirements.txt").read_text(encoding="utf-8")
    assert all("  # " in line for line in text.splitlines() if line and line[0] != "#")


@pytest.fixture
def tools(monkeypatch, tmp_path):
    """Commands that are only recorded; `fail` makes them raise; Sphinx writes a page."""
    calls = []

    def execute(*command, environment=None):
        calls.append([str(part) for part in command])
        if execute.fail:
            raise env.SetupError("it failed")
        if "sphinx" in command:
            command[-1].mkdir()
            (command[-1] / "index.html").write_text("new", encoding="utf-8")

    def create(folder, **_):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

    execute.fail = False
    monkeypatch.setattr(website, "VENV", tmp_path / "venv")
    monkeypatch.setattr(website, "STAMP", tmp_path / "venv" / ".ready")
    monkeypatch.setattr(website.venv, "create", create)
    monkeypatch.setattr(env, "execute", execute)
    return execute, calls


def test_the_environment_is_made_once(tools, tmp_path):
    execute, calls = tools
    execute.fail = True
    assert website.main(["--output", str(tmp_path / "site")]) == 1
    execute.fail = False
    assert website.main(["--output", str(tmp_path / "site")]) == 0
    assert website.main(["--output", str(tmp_path / "site")]) == 0
    assert [call[2] for call in calls] == ["pip", "pip", "sphinx", "sphinx"]


def test_a_failed_build_leaves_the_earlier_site(tools, tmp_path, capsys):
    execute, _ = tools
    output = tmp_path / "site"
    assert website.main(["--output", str(output)]) == 0
    assert (output / ".nojekyll").exists() and str(output / "index.html") in capsys.readouterr().out
    (output / "index.html").write_text("earlier", encoding="utf-8")
    execute.fail = True
    assert website.main(["--output", str(output)]) == 1
    assert (output / "index.html").read_text(
        encoding="utf-8"
    ) == "earlier" and "site: it failed" in capsys.readouterr().err
    execute.fail = False
    assert website.main(["--output", str(output)]) == 0
    assert (output / "index.html").read_text(encoding="utf-8") == "new"
