"""What would break on Windows or macOS and can be seen from Linux: encodings, names, line ends, POSIX-only calls."""

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from utils.paths import ROOT
from utils.setup.bundle import tracked

TOPS = ("conftest.py", "notebooks", "tests", "utils", "website")
OTHER_OPENERS = {"Image", "archive", "av", "gzip", "opener", "os", "tarfile", "wave", "zipfile"}  # of no text
PROCESSES = {"run", "Popen", "check_output"}
POSIX_ONLY = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"}
NOT_EVERYWHERE = {  # names that Windows lacks, or macOS
    "os": "fork getegid geteuid getgid getuid killpg mkfifo nice sched_getaffinity sched_setaffinity setsid uname",
    "signal": "SIGHUP SIGKILL SIGQUIT SIGSTOP SIGUSR1 SIGUSR2 pause setitimer",
    "socket": "AF_UNIX SO_REUSEPORT socketpair",
}
ASKS = ("os.name", "sys.platform", "hasattr(os,", "platform.system()", "@posix")  # which system it is, or what it has
GUARDED_ELSEWHERE = {  # called by functions that ask
    ("utils/setup/offline.py", "enter_namespace"),
    ("tests/utils/test_preflight.py", "kill_itself"),
}
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
LONGEST_PATH = 120  # characters below the repository: Windows allows 260 with the folder above it
POSIX_FOLDERS = {
    ("notebooks/c_interop/convert/clients.py", "/usr"),  # where Debian has the headers of Node
    ("notebooks/ollama_openvino/ollama_openvino.ipynb", "/etc/cron.d/evil"),  # of an archive that must be refused
}
FORMS = (  # of calls that take the encoding of the system
    "open('a.txt')",
    "path.open('w')",
    "io.open(name, mode='r')",
    "path.read_text()",
    "path.write_text('a')",
    "subprocess.run(['a'], text=True)",
    "subprocess.run(['a'], universal_newlines=True)",
    "tempfile.NamedTemporaryFile('w')",
)


def names() -> list[str]:
    """The committed files."""
    return tracked(ROOT)


def sources() -> Iterator[tuple[str, str]]:
    """Name and Python source of every module, and of every notebook's cells together."""
    for name in names():
        if name.startswith(TOPS) and name.endswith(".py"):
            yield name, (ROOT / name).read_text(encoding="utf-8")
        elif name.startswith("notebooks/") and name.endswith(".ipynb"):
            cells = [cell.source for cell in nbformat.read(ROOT / name, as_version=4).cells if cell.cell_type == "code"]
            lines = "\n".join(cells).splitlines()
            yield name, "\n".join("" if line.startswith(("%", "!")) else line for line in lines)


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each of `sources`."""
    return {name: ast.parse(source) for name, source in sources()}


def calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str, str]]:
    """Each call with the name of the function and the last name before it ("os" of `os.path.join` is "path")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name):
                yield node, function.id, ""
            elif isinstance(function, ast.Attribute):
                owner = function.value
                yield node, function.attr, getattr(owner, "id", getattr(owner, "attr", ""))


def takes_the_systems_encoding(node: ast.Call, name: str, owner: str) -> bool:
    """Whether a call reads or writes text without saying in which encoding."""
    given = {word.arg: word.value for word in node.keywords}
    if "encoding" in given or None in given:  # None: **options
        return False
    if name in ("read_text", "write_text"):
        return bool(owner) or isinstance(node.func, ast.Attribute)
    if name in PROCESSES:
        return any(getattr(given.get(word), "value", False) is True for word in ("text", "universal_newlines"))
    of_a_path = isinstance(node.func, ast.Attribute) and owner != "io"
    position = 0 if name.endswith("TemporaryFile") or (name == "open" and of_a_path) else 1
    values = [*node.args[position : position + 1], *([given["mode"]] if "mode" in given else [])]
    constants = (part for value in values for part in ast.walk(value) if isinstance(part, ast.Constant))
    mode = "".join(part.value for part in constants if isinstance(part.value, str))
    if name in ("TemporaryFile", "NamedTemporaryFile", "SpooledTemporaryFile"):
        return bool(values) and "b" not in mode
    return name == "open" and owner not in OTHER_OPENERS and "b" not in mode


@pytest.mark.parametrize("form", FORMS)
def test_a_call_without_an_encoding_is_seen(form):
    assert [takes_the_systems_encoding(*call) for call in calls(ast.parse(form))] == [True]
    explicit = form.replace(")", ", encoding='utf-8')").replace("(, ", "(")
    assert [takes_the_systems_encoding(*call) for call in calls(ast.parse(explicit))] == [False]


@pytest.mark.parametrize(
    "form",
    ["open(name, 'rb')", "(path / name).open('wb')", "path.open('wb')", "av.open(name)", "subprocess.run(['a'])"],
)
def test_a_call_about_bytes_needs_no_encoding(form):
    assert [takes_the_systems_encoding(*call) for call in calls(ast.parse(form))] == [False]


def test_every_text_has_an_encoding():
    """Windows before Python 3.15 reads text in the code page of the user."""
    found = [
        f"{name}: {ast.unparse(node)[:70]}"
        for name, tree in trees().items()
        for node, *called in calls(tree)
        if takes_the_systems_encoding(node, *called)
    ]
    assert not found, "\n".join(found)


def test_modules_of_posix_are_imported_where_they_are_used():
    """An import at the top of a module would make the module useless on Windows."""
    found = set()
    for name, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = {alias.name for alias in node.names} | {getattr(node, "module", "")}
                found |= {(name, module) for module in modules & POSIX_ONLY}
    assert not found


def unguarded(tree: ast.Module) -> set[tuple[str, str]]:
    """Function and name of each use of NOT_EVERYWHERE in a function that does not ask for the system."""
    names = {f"{module}.{name}" for module, words in NOT_EVERYWHERE.items() for name in words.split()}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = set()
    for function in [*functions, tree]:
        outside = isinstance(function, ast.Module)
        inner = {id(node) for one in functions for node in ast.walk(one)} if outside else set()
        used = [node for node in ast.walk(function) if isinstance(node, ast.Attribute) and id(node) not in inner]
        if not any(word in ast.unparse(function) for word in ASKS):
            found |= {(getattr(function, "name", ""), text) for text in map(ast.unparse, used) if text in names}
    return found


def test_names_that_a_system_lacks_are_used_where_it_was_asked_for():
    assert unguarded(ast.parse("def f():\n    os.fork()")) == {("f", "os.fork")}
    assert unguarded(ast.parse("user = os.getuid()")) == {("", "os.getuid")}
    assert not unguarded(ast.parse("def f():\n    if os.name == 'posix':\n        os.fork()"))
    found = {(name, *use) for name, tree in trees().items() for use in unguarded(tree)}
    assert {use for use in found if use[:2] not in GUARDED_ELSEWHERE} == set()


def test_processes_start_by_spawning():
    """Windows and macOS start processes so; a fork copies the threads' locks of PyTorch and OpenVINO."""
    found = set()
    for name, tree in trees().items():
        if name.startswith("tests/"):
            continue
        for node, called, _ in calls(tree):
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called in ("get_context", "set_start_method") and ast.unparse(node.args[0]) != "'spawn'":
                found.add((name, ast.unparse(node)))
            if called == "ProcessPoolExecutor" and given.get("mp_context") != "get_context('spawn')":
                found.add((name, ast.unparse(node)))
            if called == "fork" and name != "utils/setup/offline.py":  # which does so on Linux only
                found.add((name, ast.unparse(node)))
    assert not found


def test_no_folder_of_one_system_is_named():
    """Absolute paths of POSIX in code, but for what Linux itself offers there."""
    found = set()
    for name, tree in trees().items():
        if name.startswith("tests/"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.match(r"/(tmp|var|home|root|usr|opt|etc|dev)(/|$)", node.value):
                    found.add((name, node.value))
    assert found <= POSIX_FOLDERS


def test_names_are_valid_on_every_system():
    """No two differ in case only, none is reserved on Windows, and all fit into its longest path."""
    lower = [name.lower() for name in names()]
    folders = {str(Path(name).parent) for name in names()}
    assert len(set(lower)) == len(lower) and len({folder.lower() for folder in folders}) == len(folders)
    for name in names():
        assert len(name) <= LONGEST_PATH, name
        for part in name.split("/"):
            assert not RESERVED.fullmatch(part) and not re.search(r'[<>:"\\|?*\x00-\x1f]|[. ]$', part), name


def test_every_target_has_plain_commands():
    """What `make` runs, README.md says without it."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    plain = (ROOT / "README.md").read_text(encoding="utf-8").partition("### Without make")[2].partition("\n## ")[0]
    modules = set(re.findall(r"PYTHON\) -m ([\w.]+)", makefile)) | {
        "notebooks.dien.measuring",
        "notebooks.dien.training",
    }
    assert len(modules) > 10
    assert not [module for module in sorted(modules) if f"-m {module}" not in plain and not module.endswith(".")]


def test_line_ends_are_the_same_on_every_system():
    """.gitattributes says so, knows every binary file, and no text file has other line ends."""
    files = [name for name in names() if (ROOT / name).stat().st_size]
    attributes = subprocess.run(
        ["git", "check-attr", "-z", "--stdin", "text", "eol"],
        cwd=ROOT,
        input="\0".join(files).encode(),
        capture_output=True,
        check=True,
    ).stdout.decode()
    fields = attributes.split("\0")
    said = {(fields[i], fields[i + 1]): fields[i + 2] for i in range(0, len(fields) - 2, 3)}
    for name in files:
        content = (ROOT / name).read_bytes()
        if b"\0" in content[:8000]:
            assert said[name, "text"] == "unset", f"{name} is binary: .gitattributes must say so"
        elif said[name, "text"] != "unset":
            assert said[name, "eol"] == "lf" and b"\r" not in content, name
