"""Cut a text into passages of so many tokens, which overlap."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

WORD = re.compile(r"\S+")
LONGEST_WORD = 100  # characters; a longer one is cut
LINE_END_PART = 0.7  # a passage may end this early if a line ends there


@dataclass(frozen=True)
class Chunk:
    """A passage of a document: its text, and where it begins, in characters."""

    start: int
    text: str


def split(text: str, count_tokens: Callable[[Sequence[str]], Sequence[int]], size: int, overlap: int) -> list[Chunk]:
    """Passages of at most `size` tokens. The last `overlap` tokens of one are the first of the next, in whole words.

    count_tokens: the number of tokens of each of several words. A passage ends with a line where it can. Raises
    ValueError for an overlap that is not smaller than half of the size.
    """
    if not 0 <= overlap < size / 2:
        raise ValueError(f"The overlap is {overlap} tokens of {size}. Choose less than half.")
    spans = [(begin, min(begin + LONGEST_WORD, found.end())) for found in WORD.finditer(text)
             for begin in range(found.start(), found.end(), LONGEST_WORD)]  # fmt: skip
    if not spans:
        return []
    counts = np.maximum(count_tokens([text[begin:end] for begin, end in spans]), 1)
    ends_line = [
        "\n" in text[end:begin] for (_, end), (begin, _) in zip(spans, [*spans[1:], (len(text), 0)], strict=True)
    ]
    before = np.concatenate([[0], np.cumsum(counts)])  # tokens before each word
    chunks, first = [], 0
    while True:
        last = max(int(np.searchsorted(before, before[first] + size, side="right")) - 1, first + 1)  # exclusive
        if last >= len(spans):
            last = len(spans)
        else:
            early = int(np.searchsorted(before, before[first] + LINE_END_PART * size))
            last = next((end for end in range(last, max(early, first + 1) - 1, -1) if ends_line[end - 1]), last)
        chunks.append(Chunk(spans[first][0], text[spans[first][0] : spans[last - 1][1]]))
        if last == len(spans):
            return chunks
        first = max(int(np.searchsorted(before, before[last] - overlap)), first + 1)
