"""The repository's address stands in one place. Without one the front page says so, and Colab's notebook asks."""

import json

import pytest

from utils import links, report
from utils.paths import ROOT

GITHUB = "https://github.com/owner/collection"


def project(folder, text: str):
    (folder / "pyproject.toml").write_text(f'[project]\nname = "toy"\n{text}', encoding="utf-8")
    return folder


def test_the_address_comes_from_the_project_file(tmp_path):
    assert links.repository(tmp_path) is None
    assert links.repository(project(tmp_path, "")) is None
    assert links.repository(project(tmp_path, f'[project.urls]\nRepository = "{GITHUB}"')) == GITHUB


@pytest.mark.parametrize("placeholder", ["", "TODO", "github.com/owner/name", "https://github.com/<owner>/<name>"])
def test_a_placeholder_is_an_error(tmp_path, placeholder):
    with pytest.raises(ValueError, match="as Repository. Write the address in full"):
        links.repository(project(tmp_path, f'[project.urls]\nRepository = "{placeholder}"'))


def test_links_open_the_same_repository():
    text = links.front_page(GITHUB)
    for start in (
        "https://colab.research.google.com/github/owner/collection/blob/main/binder/colab.ipynb",
        "https://mybinder.org/v2/gh/owner/collection/main?urlpath=lab%2Ftree%2FREADME.md",
        "https://codespaces.new/owner/collection",
    ):
        assert f"]({start})" in text
    other = links.front_page("https://git.example.org/owner/collection")
    assert "mybinder.org/v2/git/https%3A%2F%2Fgit.example.org%2Fowner%2Fcollection/main" in other
    assert "Colab" not in other and "Codespaces" not in other


def test_without_an_address_the_front_page_says_what_is_missing():
    assert "will stand here" in links.front_page(None) and "://" not in links.front_page(None)


def test_the_notebook_for_colab_asks_for_an_address_that_it_does_not_have():
    source = "".join(json.loads(links.colab(None))["cells"][1]["source"])
    with pytest.raises(ValueError, match="Write the address of the repository into REPOSITORY"):
        exec(source, {})
    assert f"REPOSITORY = '{GITHUB}'" in "".join(json.loads(links.colab(GITHUB))["cells"][1]["source"])


def test_the_committed_pages_have_the_address():
    assert (ROOT / links.COLAB).read_text(encoding="utf-8") == links.colab(links.repository())
    assert links.front_page(links.repository()) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_report_writes_them(tmp_path):
    project(tmp_path, f'[project.urls]\nRepository = "{GITHUB}"')
    (tmp_path / "binder").mkdir()
    (tmp_path / "README.md").write_text("<!-- results:open -->\n<!-- /results -->\n", encoding="utf-8")
    assert set(report.regenerate(tmp_path)) == {tmp_path / "README.md", tmp_path / links.COLAB}
    assert "codespaces.new/owner/collection" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert report.regenerate(tmp_path) == []
