"""llm.h in other languages: `python -m notebooks.c_interop.convert.bindings` writes the declarations for Python
(ctypes), C# (P/Invoke) and Rust. C, Go (cgo) and Node's addon include the header itself, so that nothing can be stale.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pycparser import CParser, c_ast

from utils.files import replaced
from utils.paths import ROOT, notebook_dir

FOLDER = notebook_dir(__spec__.name)
HEADER = FOLDER / "pipeline" / "llm.h"
# How each type of llm.h is written in Python, C# and Rust.
TYPES = {
    "int32_t": ("ctypes.c_int32", "int", "i32"),
    "uint32_t": ("ctypes.c_uint32", "uint", "u32"),
    "uint64_t": ("ctypes.c_uint64", "ulong", "u64"),
    "double": ("ctypes.c_double", "double", "f64"),
    "size_t": ("ctypes.c_size_t", "UIntPtr", "usize"),
    "llm_status": ("ctypes.c_int32", "int", "i32"),
    "llm_handle": ("ctypes.c_uint64", "ulong", "u64"),
    "llm_callback": ("llm_callback", "llm_callback", "llm_callback"),
    "const char*": ("ctypes.c_char_p", "byte[]", "*const u8"),
    "char*": ("ctypes.c_char_p", "byte[]", "*mut u8"),
    "const char* const*": ("ctypes.POINTER(ctypes.c_char_p)", "IntPtr[]", "*const *const u8"),
    "void*": ("ctypes.c_void_p", "IntPtr", "*mut c_void"),
    "int64_t*": ("ctypes.POINTER(ctypes.c_int64)", "[Out] long[]", "*mut i64"),
    "llm_handle*": ("ctypes.POINTER(ctypes.c_uint64)", "out ulong", "*mut u64"),
    "llm_result*": ("ctypes.POINTER(llm_result)", "out llm_result", "*mut llm_result"),
}
BORROWED = ("ctypes.c_void_p", "IntPtr", "*const u8")  # a text that C passes to a callback, without a final 0
NOTE = "Generated from llm.h by `python -m notebooks.c_interop.convert.bindings`; do not edit."

Field = tuple[str, str]  # type, name


@dataclass(frozen=True)
class Header:
    """What llm.h declares: constants by name, and types and names of fields, of arguments, and of results."""

    constants: dict[str, int]
    structs: dict[str, list[Field]]
    callbacks: dict[str, tuple[str, list[Field]]]
    functions: dict[str, tuple[str, list[Field]]]


def parse(text: str) -> Header:
    """Read a header that has no macros but constants. Raises ValueError for a type that TYPES does not have."""
    constants = {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)", text, re.MULTILINE)}
    plain = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    plain = re.sub(r"^#.*$|LLM_API|extern \"C\" \{", "", plain, flags=re.MULTILINE)
    plain = plain.rstrip().removesuffix("}") if 'extern "C"' in text else plain
    known = "".join(f"typedef int {name};" for name in ("int32_t", "uint32_t", "int64_t", "uint64_t", "size_t"))
    header = Header(constants, {}, {}, {})
    for node in CParser().parse(known + plain):
        inner = node.type.type if isinstance(node, c_ast.Typedef) else None
        if isinstance(node.type, c_ast.FuncDecl):
            header.functions[node.name] = _signature(node.type)
        elif isinstance(node.type, c_ast.PtrDecl):
            header.callbacks[node.name] = _signature(inner)
        elif isinstance(inner, c_ast.Struct):
            header.structs[node.name] = [(_spelled(field.type), field.name) for field in inner.decls]
        elif isinstance(inner, c_ast.Enum):
            constants |= {one.name: int(one.value.value) for one in inner.values.enumerators}
    return header


def _signature(function: c_ast.FuncDecl) -> tuple[str, list[Field]]:
    arguments = [(_spelled(one.type), one.name) for one in function.args.params]
    return _spelled(function.type), [field for field in arguments if field[0] != "void"]


def _spelled(node: c_ast.Node) -> str:
    """A type as TYPES spells it."""
    if isinstance(node, c_ast.PtrDecl):
        inner = _spelled(node.type)
        return f"{inner}{' const' if 'const' in getattr(node.type, 'quals', []) and inner.endswith('*') else ''}*"
    return " ".join([*(one for one in node.quals if one == "const"), *node.type.names])


def _written(kind: str, language: int, callback: bool = False) -> str:
    if callback and kind == "const char*":
        return BORROWED[language]
    if kind not in TYPES:
        raise ValueError(f"llm.h uses the type {kind!r}. Add it to TYPES in {__name__}.")
    return TYPES[kind][language]


def python(header: Header) -> str:
    """Declarations for ctypes: constants, structures, callbacks, and `declare(library)`."""
    lines = [f'"""{NOTE}"""', "", "import ctypes", ""]
    lines += [f"{name} = {value}" for name, value in header.constants.items()]
    for name, (result, arguments) in header.callbacks.items():
        types = [_written(kind, 0, callback=True) for kind, _ in arguments]
        lines += ["", f"{name} = ctypes.CFUNCTYPE({', '.join([_written(result, 0), *types])})"]
    for name, fields in header.structs.items():
        lines += ["", "", f"class {name}(ctypes.Structure):", "    _fields_ = ["]
        lines += [f'        ("{field}", {_written(kind, 0)}),' for kind, field in fields]
        lines += ["    ]"]
    lines += ["", "", "def declare(library: ctypes.CDLL) -> ctypes.CDLL:"]
    lines += ['    """Set the types of all functions of a library."""']
    for name, (result, arguments) in header.functions.items():
        types = [f"        {_written(kind, 0)},  # {argument}" for kind, argument in arguments]
        lines += [f"    library.{name}.restype = {_written(result, 0)}"]
        lines += (
            [f"    library.{name}.argtypes = [", *types, "    ]"] if types else [f"    library.{name}.argtypes = []"]
        )
    return "\n".join([*lines, "    return library", ""])


def csharp(header: Header) -> str:
    """Declarations for P/Invoke in a static class."""
    lines = [f"// {NOTE}", "using System;", "using System.Runtime.InteropServices;", "", "static class Native", "{"]
    lines += [f"    public const int {name} = {value};" for name, value in header.constants.items()]
    for name, (result, arguments) in header.callbacks.items():
        types = ", ".join(f"{_written(kind, 1, callback=True)} {argument}" for kind, argument in arguments)
        lines += ["", "    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]"]
        lines += [f"    public delegate {_written(result, 1)} {name}({types});"]
    for name, fields in header.structs.items():
        lines += ["", "    [StructLayout(LayoutKind.Sequential)]", f"    public struct {name}", "    {"]
        lines += [f"        public {_written(kind, 1)} {field};" for kind, field in fields] + ["    }"]
    for name, (result, arguments) in header.functions.items():
        listed = [f"{_written(kind, 1)} {argument}" for kind, argument in arguments]
        lines += ["", '    [DllImport("llm", CallingConvention = CallingConvention.Cdecl)]']
        lines += _declared(f"    public static extern {_written(result, 1)} {name}(", listed, ");")
    return "\n".join([*lines, "}", ""])


def rust(header: Header) -> str:
    """Declarations for Rust: constants, structures, and an `extern` block."""
    lines = [f"// {NOTE}", "#![allow(non_camel_case_types, dead_code)]", "use std::ffi::c_void;", ""]
    lines += [f"pub const {name}: i32 = {value};" for name, value in header.constants.items()]
    for name, (result, arguments) in header.callbacks.items():
        types = ", ".join(_written(kind, 2, callback=True) for kind, _ in arguments)
        lines += ["", f'pub type {name} = Option<extern "C" fn({types}) -> {_written(result, 2)}>;']
    for name, fields in header.structs.items():
        lines += ["", "#[repr(C)]", "#[derive(Default)]", f"pub struct {name} {{"]
        lines += [f"    pub {field}: {_written(kind, 2)}," for kind, field in fields] + ["}"]
    lines += ["", '#[link(name = "llm")]', 'extern "C" {']
    for name, (result, arguments) in header.functions.items():
        listed = [f"{argument}: {_written(kind, 2)}" for kind, argument in arguments]
        lines += _declared(f"    pub fn {name}(", listed, f") -> {_written(result, 2)};")
    return "\n".join([*lines, "}", ""])


def _declared(begin: str, arguments: list[str], end: str) -> list[str]:
    """The lines of a declaration of a function, with an argument in each."""
    if not arguments:
        return [begin + end]
    return [begin, *(f"        {one}," for one in arguments[:-1]), f"        {arguments[-1]}", f"    {end}"]


WRITERS: dict[str, Callable[[Header], str]] = {
    "pipeline/declarations.py": python,
    "clients/csharp/Native.cs": csharp,
    "clients/rust/llm.rs": rust,
}


def generated() -> dict[Path, str]:
    """The declarations as they should be: file -> text."""
    header = parse(HEADER.read_text(encoding="utf-8"))
    return {FOLDER / place: write(header) for place, write in WRITERS.items()}


def main() -> None:
    for file, text in generated().items():
        with replaced(file) as partial:
            partial.write_bytes(text.encode())
        print(file.relative_to(ROOT).as_posix())


if __name__ == "__main__":
    main()
