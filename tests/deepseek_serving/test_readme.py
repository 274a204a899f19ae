"""The README lists the differences between the local server and Model Server that the contract tests hold."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_differences_is_the_one_that_is_tested():
    entries = tomllib.loads((ROOT / "tests" / "contract" / "differences.toml").read_text(encoding="utf-8"))[
        "difference"
    ]
    readme = (ROOT / "notebooks" / "deepseek_serving" / "README.md").read_text(encoding="utf-8")
    rows = readme.partition("## Local server and Model Server")[2].partition("\n## ")[0].splitlines()
    expected = [f"| {entry['what']} | {entry['ovms']} | {entry['local']} | {entry['basis']} |" for entry in entries]
    assert [row for row in rows if row.startswith("| ")][1:] == expected
