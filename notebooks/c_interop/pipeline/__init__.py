"""A language model from Python through C: ctypes over llm.h, which any other language can call in the same way.

    with LLM("folder/of/the/model", cache="build") as llm:
        print(llm.generate("Once upon a time", 32, on_text=print).text)

It needs a C compiler and the packages openvino and openvino-tokenizers, none of which it imports.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import declarations as c
from .build import NoCompiler, compiler, library, openvino_libraries, source, tokenizers

REASONS = {c.LLM_END: "end", c.LLM_LENGTH: "length", c.LLM_STOPPED: "stopped", c.LLM_CANCELLED: "cancelled"}


class LLMError(ValueError):
    """What a function of llm.h reports; status: one of the constants LLM_..."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """text: of the new tokens. ids: the new tokens. reason: "end", "length", "stopped" or "cancelled". Times in ms."""

    text: str
    ids: list[int]
    reason: str
    prompt_tokens: int
    tokenize_ms: float
    first_ms: float
    infer_ms: float
    detokenize_ms: float
    whole_ms: float

    @property
    def overhead_us(self) -> float:
        """Microseconds per token that are not spent in the model."""
        return 1e3 * (self.whole_ms - self.tokenize_ms - self.infer_ms) / max(1, len(self.ids))


def load(path: str | Path) -> ctypes.CDLL:
    """The library with the declarations of llm.h. Raises ValueError where it is none, or that of another version."""
    if sys.platform == "win32":
        os.add_dll_directory(str(openvino_libraries()))
    try:
        loaded = c.declare(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        raise ValueError(f"{path} is no library of llm.h: {error}. Build it with `library(cache)`.") from error
    if loaded.llm_version() != c.LLM_VERSION:
        found = loaded.llm_version()
        raise ValueError(
            f"{path} has version {found} of llm.h, not {c.LLM_VERSION} as these declarations. Build it again."
        )
    return loaded


class LLM:
    """An open model. Threads may share it: each call of `generate` has a cache of its own."""

    def __init__(
        self,
        folder: str | Path,
        device: str = "CPU",
        properties: Mapping[str, str] | None = None,
        *,
        cache: str | Path | None = None,
        built: str | Path | None = None,
    ) -> None:
        """folder: of openvino_model.xml and the tokenizer's models. properties: for compiling, such as
        {"INFERENCE_PRECISION_HINT": "f32"}. cache: where to build the library; or built: its path.

        Raises LLMError for what the library reports, NoCompiler where it cannot be built.
        """
        self._handle = ctypes.c_uint64(0)
        self._c = load(built or library(cache or Path.cwd() / "build"))
        pairs = [text.encode() for pair in (properties or {}).items() for text in pair]
        arguments = (os.fsencode(folder), device.encode(), None, (ctypes.c_char_p * len(pairs))(*pairs))
        self._check(self._c.llm_open(c.LLM_VERSION, *arguments, len(pairs) // 2, self._handle))

    def generate(
        self,
        prompt: str,
        max_new_tokens: int = 128,
        on_text: Callable[[str], object] | None = None,
        ignore_end: bool = False,
    ) -> Answer:
        """Continue a prompt, always with the most probable token.

        on_text: gets each piece of the answer as it is made; the answer ends when it returns True. What it raises ends
        the answer and is raised here: an exception may not pass through C.
        """
        pieces, errors = [], []

        def receive(text: int, size: int, _user: int | None) -> int:
            try:
                pieces.append(ctypes.string_at(text, size).decode())
                return int(bool(on_text and on_text(pieces[-1]) is True))
            except BaseException as error:
                errors.append(error)
                return 1

        callback = c.llm_callback(receive)  # a variable, so that it lives as long as the call
        ids, result, encoded = (ctypes.c_int64 * max(0, max_new_tokens))(), c.llm_result(), prompt.encode()
        options = (max(0, max_new_tokens), ignore_end, callback, None, ids, len(ids), result)
        status = self._c.llm_generate(self._handle, encoded, len(encoded), *options)
        if errors:
            raise errors[0]
        self._check(status)
        times = {name: getattr(result, name) for name, _ in result._fields_ if name.endswith("_ms")}
        made = ids[: result.new_tokens]
        return Answer("".join(pieces), made, REASONS[result.reason], result.prompt_tokens, **times)

    def cancel(self) -> None:
        """End what other threads generate with this model now, before the next token."""
        self._check(self._c.llm_cancel(self._handle))

    def close(self) -> None:
        """Free the model. Raises LLMError where it is closed already, or generates."""
        self._check(self._c.llm_close(self._handle))

    def _check(self, status: int) -> None:
        if status:
            buffer = ctypes.create_string_buffer(self._c.llm_last_error(None, 0))
            self._c.llm_last_error(buffer, len(buffer))
            raise LLMError(status, buffer.value.decode(errors="replace"))

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
