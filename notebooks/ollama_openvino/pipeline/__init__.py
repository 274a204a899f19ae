"""Packages and Modelfiles of the OpenVINO fork of Ollama: write them, read them, unpack what others made.

Standard library only. Copy this folder.
"""

from .modelfile import Modelfile, ModelfileError, parse, read, write
from .package import PackageError, file_sha256, kind_of, pack, unpack

__all__ = [
    "Modelfile",
    "ModelfileError",
    "PackageError",
    "file_sha256",
    "kind_of",
    "pack",
    "parse",
    "read",
    "unpack",
    "write",
]
