"""Which pins a system needs: the markers of the lock are read as pip reads them."""

import platform
import sys

import pytest
from packaging.requirements import Requirement

from utils.paths import ROOT
from utils.setup import systems

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PINS = [Requirement(line) for line in LOCK.splitlines() if line and line[0] != "#"]


@pytest.mark.parametrize("python", systems.PYTHONS)
@pytest.mark.parametrize("name", systems.SYSTEMS)
def test_markers_are_read_as_pip_reads_them(name, python):
    environment = {
        **{key: value for key, value in vars(systems.SYSTEMS[name]).items() if key not in ("tags", "title")},
        "python_version": python,
        "python_full_version": f"{python}.9",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    expected = {f"{pin.name}{pin.specifier}" for pin in PINS if not pin.marker or pin.marker.evaluate(environment)}
    found = systems.needed(LOCK, name, python)
    assert set(found) == expected and len(found) == len(expected) > 200


def test_systems_need_different_pins():
    needed = {name: set(systems.needed(LOCK, name, "3.11")) for name in systems.SYSTEMS}
    assert {pin.partition("==")[0] for pin in needed["windows"] - needed["linux"]} >= {"colorama"}
    assert {pin.partition("==")[0] for pin in needed["macos"] - needed["linux"]} == {"appnope"}


@pytest.mark.parametrize("marker", ["python_version in '3.11'", "extra == 'a'", "sys_platform ==", "not a"])
def test_a_marker_of_another_kind_is_an_error(marker):
    with pytest.raises(ValueError, match="cannot be read"):
        systems.holds(marker, "linux", "3.11")


def test_this_system_has_a_name(monkeypatch):
    for name, system in systems.SYSTEMS.items():
        monkeypatch.setattr(sys, "platform", system.sys_platform)
        monkeypatch.setattr(platform, "machine", lambda machine=system.platform_machine: machine)
        assert systems.here() == name
    monkeypatch.setattr(platform, "machine", lambda: "ARM64")
    assert systems.here() == "win32-ARM64"
