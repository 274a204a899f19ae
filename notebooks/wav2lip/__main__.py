"""`python -m notebooks.wav2lip --face face.mp4 --audio voice.wav`: lip sync from the command line."""

from __future__ import annotations

import argparse
import sys

from tqdm import tqdm

from notebooks.wav2lip.pipeline import PADS, LipSync


def main(arguments: list[str] | None = None) -> int:
    """Make the video; says where it is. Exit status 1 with a sentence where something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m notebooks.wav2lip",
        description="Make the lips of a face follow a sound.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--face", required=True, help="video or picture with a face")
    parser.add_argument("--audio", required=True, help="file with the sound, or a video that has it")
    parser.add_argument("--wav2lip_path", help="the generator's .xml file; without it, the tiny one of this repository")
    parser.add_argument("--face_detection_path", help="the detector's .xml or .tflite file; without it, BlazeFace")
    parser.add_argument("--inference_device", default="CPU", help="OpenVINO's name of the device")
    parser.add_argument("--static", action="store_true", help="show only the first frame of the video")
    parser.add_argument("--outfile", default="results/result_voice.mp4", help="the video to write")
    parser.add_argument("--fps", type=float, help="frames a second; without it, the video's own, 25 for a picture")
    parser.add_argument("--pads", type=int, nargs=4, default=PADS, metavar=("TOP", "BOTTOM", "LEFT", "RIGHT"))
    given = parser.parse_args(arguments)
    try:
        lip_sync = LipSync(
            given.wav2lip_path or _prepared("wav2lip"),
            given.face_detection_path or _prepared("face_detection"),
            given.inference_device,
        )
        with tqdm(unit="frame", disable=None) as bar:

            def progress(done: int, total: int | None) -> None:
                bar.total = total
                bar.update(done - bar.n)

            options = {"static": given.static, "fps": given.fps, "pads": tuple(given.pads), "progress": progress}
            report = lip_sync(given.face, given.audio, given.outfile, **options)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for note in report.notes:
        print(note)
    speed = report.frames / report.elapsed
    print(
        f"{report.path}: {report.seconds:.2f} s, {report.frames} frames at {speed:.1f} a second (limit: {report.limit})"
    )
    return 0


def _prepared(part: str) -> str:
    """The tiny model's file; only here PyTorch is needed."""
    from notebooks.wav2lip import convert

    return str(convert.prepare(part))


if __name__ == "__main__":
    sys.exit(main())
