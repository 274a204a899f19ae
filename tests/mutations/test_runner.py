"""Which mutations are chosen: all, those of one notebook, or those of folders that the last commits changed."""

import os
import subprocess

import pytest

from tests.mutations import runner

KNOWN = {
    "one": {"a": {"listed": "tests/mutations/one.toml"}},
    "two": {"b": {"listed": "tests/mutations/two.toml"}, "c": {"listed": "tests/mutations/two_more.toml"}},
    "utils": {"d": {"listed": "tests/mutations/shared.toml"}},
}


@pytest.mark.parametrize(("chosen", "expected"), [("", set()), ("all", set(KNOWN)), ("two", {"two"})])
def test_groups_are_chosen_by_name(chosen, expected):
    assert runner.groups(chosen, KNOWN) == expected


def test_an_unknown_name_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match="There are no mutations of 'three'. There are: all, changed, one, two, utils"):
        runner.groups("three", KNOWN)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("notebooks/one/network/layers.py", {"one"}),
        ("tests/one/test_network.py", {"one"}),
        ("tests/mutations/two_more.toml", {"two"}),
        ("utils/setup/env.py", {"utils"}),
        ("tests/utils/setup/test_env.py", {"utils"}),
        ("README.md", set()),
    ],
)
def test_a_group_changes_with_its_sources_its_tests_and_its_mutations(file, expected, monkeypatch):
    monkeypatch.setattr(runner, "changed_files", lambda: [file])
    assert runner.groups("changed", KNOWN) == expected


@pytest.fixture
def clone(tmp_path):
    """Functions that run git and commit a file on a day, in a new repository with commits of the days 1 and 3."""

    def git(*arguments: str, day: int = 0) -> None:
        time = f"{1_700_000_000 + day * runner.DAY_S} +0000"
        settings = {"GIT_AUTHOR_DATE": time, "GIT_COMMITTER_DATE": time, "GIT_CONFIG_GLOBAL": os.devnull}
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, env=os.environ | settings, check=True)

    def commit(name: str, day: int) -> None:
        (tmp_path / name).write_text(name, encoding="utf-8")
        git("add", name)
        git("commit", "-q", "-m", name, day=day)

    git("init", "-q")
    commit("first.py", 1)
    commit("second.py", 3)
    return git, commit


def test_on_main_the_files_of_the_last_day_count(clone, tmp_path):
    _, commit = clone
    assert runner.changed_files(tmp_path) == ["second.py"]
    commit("third.py", 3)
    assert runner.changed_files(tmp_path) == ["second.py", "third.py"]
    commit("fourth.py", 9)
    assert runner.changed_files(tmp_path) == ["fourth.py"]


def test_on_a_branch_the_files_since_the_merge_base_count_and_what_is_not_committed(clone, tmp_path):
    git, commit = clone
    git("update-ref", "refs/remotes/origin/main", "HEAD~1")
    commit("third.py", 9)
    (tmp_path / "first.py").write_text("edited", encoding="utf-8")
    assert runner.changed_files(tmp_path) == ["first.py", "second.py", "third.py"]


def test_a_young_history_counts_as_a_whole(clone, tmp_path):
    git, _ = clone
    git("checkout", "-q", "HEAD~1")
    assert runner.changed_files(tmp_path) == ["first.py"]


def test_outside_a_clone_nothing_says_what_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(ValueError, match="is no git clone with a commit.*name a notebook"):
        runner.changed_files(tmp_path)
