"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from notebooks.sambert_hifigan import convert

PRINTS = r"^voices: xiaobei .*\n[1-9]\d*\.\d s of speech at 16000 Hz in .*speech\.wav$"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    yield {"path/to/voice": str(convert.prepare("tiny")), "path/to/speech.wav": str(scratch / "speech.wav")}
