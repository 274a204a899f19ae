"""A cloned voice from a shell: `python -m notebooks.gpt_sovits FOLDER --reference voice.wav --reference-text "What is
said there." --text "What to say." -o out.wav`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from notebooks.gpt_sovits.pipeline import VoiceCloner, audio_io


def main(arguments: list[str] | None = None) -> int:
    """Write the sound; says where it is. Exit status 1 with a sentence where something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m notebooks.gpt_sovits",
        description="Say a text in the voice of a recording. Clone only voices whose owners agree.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("folder", nargs="?", help="the converted model; without it, the tiny one of this repository")
    parser.add_argument("--reference", required=True, metavar="PATH", help="3 to 10 seconds of the voice")
    parser.add_argument("--reference-text", required=True, metavar="TEXT", help="what is said in the recording")
    parser.add_argument("--text", required=True, help="what to say")
    parser.add_argument("--language", default="en", help="of the text: en, zh, ja or auto")
    parser.add_argument("--reference-language", metavar="LANGUAGE", help="of the recording, if it is another")
    parser.add_argument("--speaker", metavar="PATH", help="a .npy file with the voice's embedding, which v2Pro needs")
    parser.add_argument("--speed", type=float, default=1.0, help="of the speech, 0.5 to 2")
    parser.add_argument("--seed", type=int, default=0, help="another one says it in another way")
    parser.add_argument("--device", default="CPU", help="OpenVINO's name of the device")
    parser.add_argument("-o", "--output", type=Path, default=Path("out.wav"), help="the .wav file to write, 16 bits")
    given = parser.parse_args(arguments)
    try:
        figures, seconds = _say(given)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for note in figures.notes:
        print(note, file=sys.stderr)
    print(
        f"{figures.tokens} tokens, {figures.tokens_per_second:.0f} a second; a second of sound took "
        f"{figures.real_time_factor:.2f} s",
        file=sys.stderr,
    )
    print(f"{given.output}: {seconds:.2f} s")
    return 0


def _say(given: argparse.Namespace):
    """The figures, and how many seconds were written."""
    audio_io.check_name(given.output)  # told before it takes time
    speaker = None if given.speaker is None else _embedding(given.speaker)
    cloner = VoiceCloner(given.folder or _prepared(), given.device)
    pieces, sounds = (
        cloner.stream(
            given.text,
            given.reference,
            given.reference_text,
            given.language,
            given.reference_language,
            seed=given.seed,
            speed=given.speed,
            speaker=speaker,
        ),
        [],
    )
    for spoken in pieces:
        sounds.append(spoken.samples)
        seconds = len(spoken.samples) / spoken.sample_rate
        print(f"{len(sounds)} of {spoken.figures.pieces}: {seconds:.2f} s of sound", file=sys.stderr, flush=True)
    whole = np.concatenate(sounds)
    audio_io.write(given.output, whole, cloner.sample_rate)
    return spoken.figures, len(whole) / cloner.sample_rate


def _embedding(path: str) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Give a .npy file with a speaker's embedding.") from error


def _prepared() -> Path:
    """The tiny model's folder; only here PyTorch is needed."""
    from notebooks.gpt_sovits import convert

    return convert.prepare()


if __name__ == "__main__":
    sys.exit(main())
