"""`python -m notebooks.wav2lip --face face.mp4 --audio voice.wav -o out.mp4`: lip sync from the command line.

Arguments with an underscore are those of the authors' program, as are `--static`, `--fps` and `--pads`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from notebooks.wav2lip.pipeline import PADS, PASTES, LipSync
from utils import command


def main(arguments: list[str] | None = None) -> int:
    """Write the video and print where it is. The exit status is 1 after an error, whose message is printed."""
    parser = argparse.ArgumentParser(
        prog="python -m notebooks.wav2lip",
        description="Make the lips of a face follow a sound.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--face", required=True, help="video or picture with a face")
    parser.add_argument("--audio", required=True, help="file with the sound, or a video that has it")
    parser.add_argument("--wav2lip_path", help="the generator's .xml file; without it, the tiny one of this repository")
    parser.add_argument("--face_detection_path", help="the detector's .xml or .tflite file; without it, BlazeFace")
    parser.add_argument("--device", "--inference_device", default="CPU", help="OpenVINO's name of the device")
    parser.add_argument("--static", action="store_true", help="show only the first frame of the video")
    parser.add_argument("-o", "--output", "--outfile", type=Path, default=Path("out.mp4"), help="the video to write")
    parser.add_argument("--fps", type=float, help="frames a second; without it, the video's own, 25 for a picture")
    parser.add_argument("--pads", type=int, nargs=4, default=PADS, metavar=("TOP", "BOTTOM", "LEFT", "RIGHT"))
    parser.add_argument("--paste", choices=PASTES, default="feathered", help="the lower half, or the authors' way")
    return command.run(write_video, parser.parse_args(arguments))


def write_video(options: argparse.Namespace) -> None:
    """Run the pipeline with a progress bar, and print its notes and its speed."""
    lip_sync = LipSync(
        options.wav2lip_path or command.tiny(__package__, "wav2lip"),
        options.face_detection_path or command.tiny(__package__, "face_detection"),
        options.device,
    )
    with tqdm(unit="frame", disable=None) as bar:

        def progress(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        report = lip_sync(
            options.face,
            options.audio,
            options.output,
            static=options.static,
            fps=options.fps,
            pads=tuple(options.pads),
            paste=options.paste,
            progress=progress,
        )
    for note in report.notes:
        print(note)
    speed = report.frames / report.elapsed
    print(
        f"{report.path}: {report.seconds:.2f} s, {report.frames} frames at {speed:.1f} a second (limit: {report.limit})"
    )


if __name__ == "__main__":
    sys.exit(main())
