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
        "path/to/wav2lip.xml": str(convert.prepare("wav2lip")),
        "path/to/face_detection.tflite": str(convert.prepare("face_detection")),
        "path/to/face.mp4": str(SAMPLES / "astronaut.jpg"),
        "path/to/voice.wav": str(SAMPLES / "voice.wav"),
        "path/to/result.mp4": str(scratch / "result.mp4"),
    }
