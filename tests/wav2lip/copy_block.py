"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from notebooks.wav2lip import convert
from utils.paths import ROOT

PRINTS = r"^result.mp4 [1-9]\d* frames at 25$"
SAMPLES = ROOT / "notebooks" / "wav2lip" / "samples"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    yield {
        "WAV2LIP": str(convert.prepare("wav2lip")),
        "FACE_DETECTION": str(convert.prepare("face_detection")),
        "FACE": str(SAMPLES / "astronaut.jpg"),
        "VOICE": str(SAMPLES / "voice.wav"),
        "RESULT": str(scratch / "result.mp4"),
    }
