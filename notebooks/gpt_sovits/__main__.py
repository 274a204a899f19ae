"""A cloned voice from a shell: `python -m notebooks.gpt_sovits --recording voice.wav --words "What is said there."
--text "What to say." -o out.wav`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from notebooks.gpt_sovits.pipeline import VoiceCloner, audio_io
from utils import command


def main(arguments: list[str] | None = None) -> int:
    """Write the sound and print where it is; the exit status is 1 after an error, whose message is printed."""
    parser = command.parser(
        __package__, "Say a text in the voice of a recording. Clone only voices whose owners agree."
    )
    parser.add_argument("--recording", required=True, metavar="PATH", help="3 to 10 seconds of the voice")
    parser.add_argument("--words", required=True, metavar="TEXT", help="what is said in the recording")
    parser.add_argument("--text", required=True, help="what to say")
    parser.add_argument("--language", default="en", help="of the text: en, zh, ja or auto")
    parser.add_argument("--recording-language", metavar="LANGUAGE", help="of the recording, if it is another")
    parser.add_argument("--speaker", metavar="PATH", help="a .npy file with the voice's embedding, which v2Pro needs")
    parser.add_argument("--speed", type=float, default=1.0, help="of the speech, 0.5 to 2")
    parser.add_argument("--seed", type=int, default=0, help="another one says it in another way")
    parser.add_argument("-o", "--output", type=Path, default=Path("out.wav"), help="the .wav file to write, 16 bits")
    return command.run(_clone, parser.parse_args(arguments))


def _clone(options: argparse.Namespace) -> None:
    audio_io.check_name(options.output)  # before anything that takes time
    speaker = None if options.speaker is None else _read_embedding(options.speaker)
    cloner = VoiceCloner(options.folder or command.tiny(__package__), options.device)
    pieces = cloner.stream(
        options.text,
        options.recording,
        options.words,
        options.language,
        options.recording_language,
        seed=options.seed,
        speed=options.speed,
        speaker=speaker,
    )
    sounds = []
    for piece in pieces:
        sounds.append(piece.samples)
        seconds = len(piece.samples) / piece.sample_rate
        print(f"{len(sounds)} of {piece.timings.pieces}: {seconds:.2f} s of sound", file=sys.stderr, flush=True)
    samples, timings = np.concatenate(sounds), cloner.timings
    audio_io.write(options.output, samples, cloner.sample_rate)
    for note in timings.notes:
        print(note, file=sys.stderr)
    print(
        f"{timings.tokens} tokens, {timings.tokens_per_second:.0f} a second; a second of sound took "
        f"{timings.real_time_factor:.2f} s",
        file=sys.stderr,
    )
    print(f"{options.output}: {len(samples) / cloner.sample_rate:.2f} s")


def _read_embedding(path: str) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Give a .npy file with a speaker's embedding.") from error


if __name__ == "__main__":
    sys.exit(main())
