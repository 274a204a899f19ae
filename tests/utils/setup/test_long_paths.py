"""On Windows a folder that is too deep is refused before anything is installed."""

import sys
import sysconfig
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest

from utils.setup import env, long_paths

DEEP = PurePosixPath("/" + "a" * 90)


@pytest.fixture
def windows(monkeypatch):
    """windows(value) stands for Windows whose registry has that value of LongPathsEnabled, or none."""

    def with_value(value: int | None):
        class Key:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

        def query(key, name):
            if value is None:
                raise FileNotFoundError(name)
            return value, 4

        registry = SimpleNamespace(HKEY_LOCAL_MACHINE=0, OpenKey=lambda *_: Key(), QueryValueEx=query)
        monkeypatch.setitem(sys.modules, "winreg", registry)
        monkeypatch.setattr(long_paths, "os", SimpleNamespace(name="nt"))

    return with_value


@pytest.mark.parametrize(("value", "refused"), [(None, True), (0, True), (1, False)])
def test_a_deep_folder_is_refused_unless_windows_takes_long_paths(windows, value, refused):
    windows(value)
    assert long_paths.refusal(PurePosixPath("/notebooks")) is None
    reason = long_paths.refusal(DEEP)
    assert bool(reason) == refused
    if refused:
        assert "91 characters" in reason and "leaves 58 for it" in reason


def test_other_systems_take_it():
    assert long_paths.refusal(DEEP) is None


def test_no_package_has_a_longer_path():
    packages = Path(sysconfig.get_path("purelib"))
    files = (file.relative_to(packages) for file in packages.rglob("*") if not file.name.endswith(".pyc"))
    longest = max(files, key=lambda file: len(str(file)))
    assert len(rf".venv\Lib\site-packages\{longest}") <= long_paths.LONGEST, longest


def test_set_up_says_so(monkeypatch):
    monkeypatch.setattr(long_paths, "refusal", lambda root: "too deep")
    with pytest.raises(env.SetupError, match="too deep"):
        env.check_system()
