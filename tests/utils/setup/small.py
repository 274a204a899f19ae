"""A toy of this repository, small enough to bundle and install in seconds, and the wheels it needs."""

import importlib.metadata
import shutil
import subprocess
import zipfile
from pathlib import Path

from utils.paths import ROOT

MODULES = ["utils/__init__.py", "utils/files.py", "utils/paths.py"]
SETUP = "__init__ browser bundle env long_paths manifest packages quiet start_here systems wheels"
MODULES += [f"utils/setup/{name}.py" for name in SETUP.split()]
WEIGHTS = '''"""Stands in for utils.weights: writes down which folder of wheels it was given."""
import os, pathlib
folder = pathlib.Path("models/checkpoints")
folder.mkdir(parents=True, exist_ok=True)
(folder / "wheels.txt").write_text(os.environ.get("WHEELS", "an index"))
'''
CHECKPOINTS = """
[tiny]
source = "wheel"
package = "toy-model"
version = "2.0"
when = "setup"

[guarded]
source = "wheel"
package = "guarded-model"
version = "3.0"
when = "setup"
redistribute = false

[large]
source = "wheel"
package = "nowhere-to-be-had"
version = "1.0"
when = "demand"
"""


def write_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    """Zip `files` as a pure-Python wheel."""
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{x},,\n" for x in [*files, f"{info}/RECORD"]))
    return path


def rewheel(folder: Path, name: str) -> str:
    """Zip an installed pure-Python package back into a wheel; returns its version."""
    installed = importlib.metadata.distribution(name)
    files = {}
    for file in installed.files or ():
        if ".." not in file.parts and file.suffix != ".pyc" and file.name not in ("RECORD", "METADATA", "WHEEL"):
            files[file.as_posix()] = Path(installed.locate_file(file)).read_bytes()
    write_wheel(folder, name, installed.version, files)
    return installed.version


def wheels(folder: Path) -> Path:
    """The index of the toy: a folder with its wheels."""
    folder.mkdir()
    for name in ("pip", "setuptools"):
        rewheel(folder, name)
    write_wheel(folder, "toy", "1.0", {"toy.py": b"VALUE = 42\n"})
    write_wheel(folder, "toy_model", "2.0", {"toy_model/weights.bin": b"weights"})
    write_wheel(folder, "guarded_model", "3.0", {"guarded_model/weights.bin": b"weights"})
    return folder


def repository(folder: Path) -> Path:
    """A git repository with the modules of set-up and nothing heavy."""
    (folder / "utils/setup").mkdir(parents=True)
    (folder / "notebooks/case").mkdir(parents=True)
    for module in MODULES:
        shutil.copy(ROOT / module, folder / module)
    pins = [f"{name}=={importlib.metadata.version(name)}" for name in ("pip", "setuptools")]
    texts = {
        "utils/weights.py": WEIGHTS,
        "notebooks/__init__.py": "",
        "notebooks/case/checkpoints.toml": CHECKPOINTS,
        "requirements.txt": "\n".join([*pins, "toy==1.0"]),
        "requirements.lock": "\n".join([*pins, "toy==1.0"]),
        "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\n'
        'build-backend = "setuptools.build_meta"\n[project]\nname = "toy-collection"\nversion = "1"\n'
        '[tool.setuptools.packages.find]\ninclude = ["notebooks*", "utils*"]\n',
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    git = ["git", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "-q"], cwd=folder, check=True)
    subprocess.run([*git, "add", "."], cwd=folder, check=True)
    return folder
