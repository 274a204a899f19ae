"""Text on its way to a client: cut at stop strings, and separated into thoughts and answer."""

from __future__ import annotations

from collections.abc import Sequence

BEGIN, END = "<think>", "</think>"  # around the thoughts of DeepSeek-R1, Qwen3 and others


def held(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of a text may be the beginning of a mark."""
    longest = max((len(mark) for mark in marks), default=1) - 1
    return next((n for n in range(min(longest, len(text)), 0, -1) if text.endswith(_beginnings(marks, n))), 0)


def _beginnings(marks: Sequence[str], n: int) -> tuple[str, ...]:
    return tuple(mark[:n] for mark in marks if len(mark) > n)


class StopFilter:
    """Passes text on up to the first stop string. `found` says whether there was one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.stop, self.found = stop, False
        self._rest = ""

    def feed(self, text: str, last: bool = False) -> str:
        """The text that can be sent now; last: no more will come."""
        self._rest += text
        places = [place for mark in self.stop if (place := self._rest.find(mark)) >= 0]
        if places:
            self.found, last = True, True
            self._rest = self._rest[: min(places)]
        return self._take(0 if last else held(self._rest, self.stop))

    def _take(self, keep: int) -> str:
        sent, self._rest = self._rest[: len(self._rest) - keep], self._rest[len(self._rest) - keep :]
        return sent


class Thoughts:
    """Separates thoughts from the answer. inside: the prompt has opened the thoughts already."""

    def __init__(self, inside: bool) -> None:
        self.inside = inside
        self._started = inside  # thoughts come first, or not at all
        self._rest, self._trim = "", True

    def feed(self, text: str, last: bool = False) -> tuple[str, str]:
        """(thoughts, answer) that can be sent now; last: no more will come."""
        self._rest += text
        thoughts = ""
        if not self._started:
            begun = self._rest.lstrip()
            if not last and len(begun) < len(BEGIN) and BEGIN.startswith(begun):
                return "", ""  # it may be a beginning
            self._started, self.inside = True, begun.startswith(BEGIN)
            self._rest = begun.removeprefix(BEGIN) if self.inside else self._rest
            self._trim = self.inside
        if self.inside:
            thoughts, end, rest = self._rest.partition(END)
            if end:
                self.inside, self._rest, self._trim = False, rest, True
            else:
                keep = 0 if last else held(thoughts, [END])
                thoughts, self._rest = thoughts[: len(thoughts) - keep], thoughts[len(thoughts) - keep :]
                return thoughts, ""
        answer, self._rest = self._rest, ""
        if self._trim:  # the blank lines between thoughts and answer
            answer = answer.lstrip("\n")
            self._trim = not answer
        return thoughts, answer
