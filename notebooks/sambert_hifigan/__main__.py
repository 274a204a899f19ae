"""`python -m notebooks.sambert_hifigan --text 你好。 --speaker NAME -o out.wav`: speech from the command line."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from notebooks.sambert_hifigan.pipeline import Spoken, Synthesizer
from utils import command
from utils.speech.sound import write_wav


def main(arguments: list[str] | None = None) -> int:
    """Synthesize a text and print the name of the file; returns the exit status, see `command.run`."""
    parser = command.parser(__package__, "Say Mandarin text with a chosen voice.")
    parser.add_argument("--text", required=True, help="what to say")
    parser.add_argument("--speaker", required=True, help="a voice's name, or a .npy file with its embedding")
    parser.add_argument("--speed", type=float, default=1.0, help="of the speech, 0.5 to 2")
    parser.add_argument("--seed", type=int, default=0, help="of the noise in the sound")
    parser.add_argument("-o", "--output", type=Path, default=Path("out.wav"), help="the .wav file to write, 16 bits")
    return command.run(synthesize, parser.parse_args(arguments))


def synthesize(options: Namespace) -> None:
    """Write the sound of a text. options: of the command line."""
    synthesizer = Synthesizer(options.folder or command.tiny(__package__), options.device)
    sentences = synthesizer.stream(options.text, options.speaker, options.speed, options.seed)
    seconds = write(options.output, sentences, synthesizer.config["sample_rate"])
    print(f"{options.output}: {seconds:.2f} s")


def write(path: Path, sentences: Iterable[Spoken], sample_rate: int) -> float:
    """Write each sentence to a .wav file as soon as it is synthesized; returns the duration in seconds.

    The file appears once it is complete. After an error, an earlier file is as it was.
    """
    if path.suffix.lower() != ".wav":
        raise ValueError(f"The sound is written to a .wav file, not to {path.name}. Give it another name.")
    return write_wav(path, (spoken.samples for spoken in sentences), sample_rate)


if __name__ == "__main__":
    sys.exit(main())
