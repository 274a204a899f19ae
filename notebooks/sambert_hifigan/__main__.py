"""`python -m notebooks.sambert_hifigan --text 你好。 --speaker NAME -o out.wav`: speech from the command line."""

from __future__ import annotations

import argparse
import os
import sys
import wave
from collections.abc import Iterable
from pathlib import Path

from notebooks.sambert_hifigan.pipeline import Spoken, Synthesizer


def main(arguments: list[str] | None = None) -> int:
    """Write the sound; says where it is. Exit status 1 with a sentence where something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m notebooks.sambert_hifigan",
        description="Say Mandarin text with a chosen voice.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("folder", nargs="?", help="the converted voice; without it, the tiny one of this repository")
    parser.add_argument("--text", required=True, help="what to say")
    parser.add_argument("--speaker", required=True, help="a voice's name, or a .npy file with its embedding")
    parser.add_argument("--speed", type=float, default=1.0, help="of the speech, 0.5 to 2")
    parser.add_argument("--seed", type=int, default=0, help="of the noise in the sound")
    parser.add_argument("--device", default="CPU", help="OpenVINO's name of the device")
    parser.add_argument("-o", "--output", type=Path, default=Path("out.wav"), help="the .wav file to write, 16 bits")
    given = parser.parse_args(arguments)
    try:
        synthesizer = Synthesizer(given.folder or _prepared(), given.device)
        sentences = synthesizer.stream(given.text, given.speaker, given.speed, given.seed)
        seconds = write(given.output, sentences, synthesizer.config["sample_rate"])
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{given.output}: {seconds:.2f} s")
    return 0


def write(path: Path, sentences: Iterable[Spoken], sample_rate: int) -> float:
    """Write sentences to a .wav file of 16 bits, one channel, as they come; returns its seconds.

    The file is there only when it is whole: whatever fails, one that was there stays.
    """
    if path.suffix.lower() != ".wav":
        raise ValueError(f"The sound is written to a .wav file, not to {path.name}. Give it another name.")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with wave.open(str(partial), "wb") as sound:
            sound.setparams((1, 2, sample_rate, 0, "NONE", ""))
            for spoken in sentences:
                sound.writeframes((spoken.samples.clip(-1, 1) * 32767).round().astype("<i2").tobytes())
            seconds = sound.getnframes() / sample_rate
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return seconds


def _prepared() -> Path:
    """The tiny model's folder; only here PyTorch is needed."""
    from notebooks.sambert_hifigan import convert

    return convert.prepare()


if __name__ == "__main__":
    sys.exit(main())
