"""The programs of `clients/` in five languages: how each is compiled and started, and what it prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from notebooks.c_interop.convert import build_folder
from notebooks.c_interop.pipeline import build
from utils.paths import notebook_dir

FOLDER = notebook_dir(__spec__.name) / "clients"
TIMEOUT_S = 300
END = re.compile(rb"\nids: ([\d ]*)\nms per token: ([\d.]+), in the model: ([\d.]+)\n$")


@dataclass(frozen=True)
class Client:
    """folder: below `clients`. tools: programs that it needs, with a C compiler. packages: of Debian, that have them.
    source: the file to show; start: how the compiled program is started, in the folder it was built in."""

    folder: str
    tools: tuple[str, ...]
    packages: str
    source: str
    start: tuple[str, ...]
    compile: Callable[[Path], list[str]]


def _c(libraries: Path) -> list[str]:
    return [build.compiler(), "main.c", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{build.SOURCES}", *_linked(libraries),
            "-o", "main"]  # fmt: skip


def _linked(libraries: Path) -> list[str]:
    """Arguments of a C compiler that link a program with our library."""
    return [f"-L{libraries}", "-lllm", f"-Wl,-rpath,{libraries}", *build.link_flags()[1:]]


def _csharp(_: Path) -> list[str]:
    return ["mcs", "-warnaserror", "-out:main.exe", "Program.cs", "Native.cs"]


def _rust(libraries: Path) -> list[str]:
    linked = [f"-Clink-arg={flag}" for flag in _linked(libraries)[2:]]
    return ["rustc", "-O", "--edition=2021", f"-L{libraries}", *linked, "main.rs", "-o", "main"]


def _go(_: Path) -> list[str]:
    return ["go", "build", "-buildvcs=false", "-o", "main", "."]


def _node(libraries: Path) -> list[str]:
    return [build.compiler(), "addon.c", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-I{build.SOURCES}",
            f"-I{node_headers()}", *_linked(libraries), "-o", "llm.node"]  # fmt: skip


CLIENTS = {
    "C": Client("c", (), "gcc libc6-dev", "main.c", ("./main",), _c),
    "C#": Client("csharp", ("mcs", "mono"), "mono-mcs mono-runtime", "Program.cs", ("mono", "main.exe"), _csharp),
    "Rust": Client("rust", ("rustc",), "rustc", "main.rs", ("./main",), _rust),
    "Go": Client("go", ("go",), "golang-go", "main.go", ("./main",), _go),
    "Node": Client("node", ("node",), "nodejs libnode-dev", "main.js", ("node", "main.js"), _node),
}


def node_headers() -> Path | None:
    """The folder of node_api.h of the installed Node, if it is there."""
    node = shutil.which("node")
    roots = [Path(node).resolve().parents[1]] if node else []
    places = [root / "include" / name for root in [*roots, Path("/usr")] for name in ("node", "nodejs/src")]
    return next((place for place in places if (place / "node_api.h").is_file()), None)


def missing(language: str) -> str:
    """What is not installed for a language, as a sentence; "" if nothing is missing."""
    client = CLIENTS[language]
    lacking = [tool for tool in client.tools if not shutil.which(tool)]
    try:
        build.compiler()
    except build.NoCompiler:
        lacking.append("a C compiler")
    if language == "Node" and not lacking and not node_headers():
        lacking.append("node_api.h")
    return f"{language} needs {' and '.join(lacking)}: `apt install {client.packages}`." if lacking else ""


@dataclass(frozen=True)
class Outcome:
    """What a client printed. text: of the new tokens; per_token_ms: with everything, infer_ms: of it in the model."""

    text: str
    ids: list[int]
    per_token_ms: float
    infer_ms: float
    errors: str

    @property
    def overhead_us(self) -> float:
        """Microseconds per token that are not spent in the model."""
        return 1e3 * (self.per_token_ms - self.infer_ms)


def program(language: str, library: Path | None = None) -> Path:
    """The folder in which the program of a language is, compiled by this or an earlier call.

    library: the path of our library, which is built if none is given. Raises ValueError where something is missing, and
    with the compiler's first error.
    """
    if language not in CLIENTS:
        raise ValueError(f"There is no client in {language!r}. There are: {', '.join(CLIENTS)}.")
    if sentence := missing(language):
        raise ValueError(sentence)
    client, library = CLIENTS[language], library or build.library(build_folder())
    files = {file.name: file.read_text(encoding="utf-8") for file in sorted((FOLDER / client.folder).iterdir())}
    command = client.compile(library.parent)
    environment = {}
    if language == "Go":
        links = " ".join(_linked(library.parent))
        environment = {"CGO_CFLAGS": f"-I{build.SOURCES}", "CGO_LDFLAGS": links, "GOFLAGS": "-mod=mod",
                       "GOCACHE": str(build_folder() / "go-cache"), "GOPROXY": "off"}  # fmt: skip
    return build.compiled(build_folder(), files, command, build.source("llm.h"), env=environment)


def start(language: str, model: Path, tokens: int, *options: str, library: Path | None = None) -> subprocess.Popen:
    """A started client, which waits for its prompt. options: "fail" lets its callback fail at the third piece."""
    library = library or build.library(build_folder())
    folder = program(language, library)
    environment = os.environ | {"LD_LIBRARY_PATH": str(library.parent)}  # where Mono looks for it
    command = [*CLIENTS[language].start, str(Path(model).absolute()), str(tokens), *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)


def run(language: str, model: Path, prompt: str, tokens: int, *options: str, library: Path | None = None) -> Outcome:
    """Let a client answer. Raises ValueError with the sentence that it ended with."""
    with start(language, model, tokens, *options, library=library) as process:
        try:
            output, errors = process.communicate(prompt.encode(), timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise ValueError(f"The client in {language} did not answer within {TIMEOUT_S} s.") from None
    return outcome(language, output, errors.decode(errors="replace"))


def outcome(language: str, output: bytes, errors: str) -> Outcome:
    """What a client's output says. Raises ValueError where it ended early."""
    if not (end := END.search(output)):
        raise ValueError(errors.strip() or f"The client in {language} ended without an answer.")
    ids = [int(number) for number in end[1].split()]
    return Outcome(output[: end.start()].decode(), ids, float(end[2]), float(end[3]), errors)


def stream(language: str, model: Path, prompt: str, tokens: int) -> Iterator[str]:
    """The output of a client so far, each time that it has grown. Raises ValueError as `run` does."""
    with start(language, model, tokens) as process:
        try:
            process.stdin.write(prompt.encode())
            process.stdin.close()
            output = b""
            while piece := os.read(process.stdout.fileno(), 1 << 16):
                output += piece
                yield output.decode(errors="ignore")
            errors = process.stderr.read().decode(errors="replace")
        finally:
            process.kill()
    outcome(language, output, errors)


def source_of(language: str) -> str:
    """The text of a client's program."""
    client = CLIENTS[language]
    return (FOLDER / client.folder / client.source).read_text(encoding="utf-8")
