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
        "MODEL_FOLDER": str(convert.prepare("tiny", "INT8")),
        "VOICE": str(voice.recording),
        "WORDS": voice.words,
        "SOUND": str(scratch / "speech.wav"),
    }
