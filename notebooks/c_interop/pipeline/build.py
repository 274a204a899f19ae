"""Compiles llm.c into a library, once for each version of sources, compiler and OpenVINO.

It uses what the packages `openvino` and `openvino-tokenizers` bring: the C headers, libopenvino_c and
libopenvino_tokenizers. No Python extension is built, so any C compiler will do.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).parent  # llm.c and llm.h
COMPILERS = ("cc", "gcc", "clang")
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
LIBRARY = {"win32": "llm"}.get(sys.platform, "libllm") + SUFFIX
TIMEOUT_S = 300


class NoCompiler(ValueError):
    """There is no C compiler on this machine."""


def compiler() -> str:
    """The path of a C compiler: that of CC, or the first of COMPILERS. Raises NoCompiler."""
    names = [os.environ["CC"]] if os.environ.get("CC") else COMPILERS
    if found := next(filter(None, map(shutil.which, names)), None):
        return found
    raise NoCompiler(
        f"There is no C compiler here ({', '.join(names)}). Install one: `apt install gcc libc6-dev` on Debian and "
        "Ubuntu, `xcode-select --install` on macOS, MinGW-w64 on Windows."
    )


def package(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    if found := find_spec(name):
        return Path(found.submodule_search_locations[0])
    raise ValueError(f"The package {name} is not installed. Install it: `pip install {name.replace('_', '-')}`.")


def openvino_libraries() -> Path:
    """The folder of OpenVINO's libraries."""
    return package("openvino") / "libs"


def tokenizers() -> Path:
    """The library that adds the operations of tokenizers to OpenVINO."""
    return _only(package("openvino_tokenizers") / "lib", f"*openvino_tokenizers{SUFFIX}")


def source(name: str = "llm.c") -> str:
    """The text of a file beside this one."""
    return (SOURCES / name).read_text(encoding="utf-8")


def library(cache: str | Path, *sources: str, version: str | None = None) -> Path:
    """The compiled library below the folder `cache`; it is compiled if no earlier call did.

    sources: texts of C files in place of llm.c. version: of OpenVINO, in place of the installed one.
    """
    texts = sources or (source(),)
    version = version or metadata.version("openvino")
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
    flags += [f'-DLLM_OPENVINO="{version}"', f'-DLLM_TOKENIZERS="{tokenizers().as_posix()}"', f"-I{SOURCES}"]
    flags += [f"-I{package('openvino') / 'include'}", *link_flags()]
    files = {f"{i}.c": text for i, text in enumerate(texts)}
    headers = (source("llm.h"), source("genai.h"))
    return compiled(cache, files, [compiler(), *files, *flags, "-o", LIBRARY], *headers) / LIBRARY


def link_flags() -> list[str]:
    """Arguments that link with libopenvino_c and make the result find it where it is now."""
    folder = openvino_libraries()
    found = str(_only(folder, f"*openvino_c{SUFFIX}*" if SUFFIX == ".so" else f"*openvino_c*{SUFFIX}"))
    if sys.platform == "win32":
        return [found, "-static", "-D__USE_MINGW_ANSI_STDIO=1"]
    unresolved = [] if sys.platform == "darwin" else ["-Wl,--allow-shlib-undefined"]
    return [found, f"-Wl,-rpath,{folder}", *unresolved]


def compiled(cache: str | Path, files: dict[str, str], command: list[str], *more: str, env: dict | None = None) -> Path:
    """The folder below `cache` in which `command` was run on `files` (name -> text), by this or an earlier call.

    more: texts that the result depends on, too. Raises ValueError with the compiler's first error.
    """
    text = "\0".join([*files, *files.values(), *command, *more, *map(str, sorted((env or {}).items()))])
    folder = Path(cache) / hashlib.sha256(text.encode()).hexdigest()[:16]
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder.parent) as scratch:
        built = Path(scratch, "built")
        built.mkdir()
        for name, text in files.items():
            (built / name).write_text(text, encoding="utf-8")
        options = {"capture_output": True, "text": True, "timeout": TIMEOUT_S, "errors": "replace"}
        done = subprocess.run(command, cwd=built, env=os.environ | (env or {}), **options)
        if done.returncode:
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            first = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no message")
            raise ValueError(f"{Path(command[0]).name} cannot compile {', '.join(files)}: {first.strip()}")
        try:
            built.rename(folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
    return folder


def _only(folder: Path, pattern: str) -> Path:
    if found := sorted(folder.glob(pattern)):
        return found[0]
    raise ValueError(f"There is no {pattern} in {folder}. Install the packages openvino and openvino-tokenizers.")
