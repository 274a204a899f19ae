"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from notebooks.gpt_sovits import convert
from notebooks.gpt_sovits.data.voices import read_voices

PRINTS = r"^[1-9]\d*\.\d s of speech at 32000 Hz, marked as synthetic$"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    voice = read_voices()[0]
    yield {
        "path/to/model": str(convert.prepare("tiny", "INT8")),
        "path/to/voice.mp3": str(voice.recording),
        "The words of the recording.": voice.words,
        "path/to/speech.wav": str(scratch / "speech.wav"),
    }
