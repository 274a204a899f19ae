"""`python -m utils.setup.lock` resolves requirements.txt for all platforms and Pythons, into requirements.lock.

It does the same for the website, with the versions of requirements.lock. It needs uv, which nothing else does
(`python -m pip install uv`). Locked versions are kept where they fit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from utils.files import replaced
from utils.paths import ROOT

HEADER = """\
# Every package at its version, for all platforms and Python >= 3.11; a test compares it with
# requirements.txt.
# Made by `make lock` (uv pip compile --universal, without the CUDA packages of torch).
"""
# torch names the CUDA packages of its own build exactly; the CPU build has none, so they stay out.
# Nothing here runs inside a web browser's Python (emscripten).
LEFT_OUT = re.compile(r"nvidia-|cuda-|triton\b|.*sys_platform == 'emscripten'")


def resolve(uv: str, folder: Path, *options: str | Path) -> None:
    """Write requirements.lock of a folder from its requirements.txt. Raises subprocess.CalledProcessError."""
    target = folder / "requirements.lock"
    with tempfile.TemporaryDirectory() as scratch:
        resolved = Path(scratch, "lock")
        if target.exists():
            shutil.copy(target, resolved)
        command = [uv, "pip", "compile", "--universal", "--python-version", "3.11", "--no-header", "--no-annotate"]
        command += ["--quiet", "--no-emit-index-url", "--no-emit-find-links", *options]
        command += [folder / "requirements.txt", "-o", resolved]
        subprocess.run(list(map(str, command)), cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        lines = resolved.read_text(encoding="utf-8").splitlines()
    packages = [line for line in lines if not LEFT_OUT.match(line)]
    with replaced(target) as partial:
        partial.write_text(HEADER + "\n".join(packages) + "\n", encoding="utf-8")
    print(f"lock: {target.relative_to(ROOT)} has {len(packages)} packages")


def main() -> int:
    """Write both lock files; returns the exit status: 1 after an error, whose message is printed."""
    scripts = Path(sys.executable).parent
    uv = shutil.which("uv", path=os.pathsep.join([str(scripts), os.environ.get("PATH", "")]))
    if uv is None:
        print("lock: this needs uv; `python -m pip install uv`, then run it again.", file=sys.stderr)
        return 1
    try:
        resolve(uv, ROOT)
        resolve(uv, ROOT / "website", "--constraint", ROOT / "requirements.lock")
    except subprocess.CalledProcessError:
        print("lock: the requirements cannot be resolved, for the reason above.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
