"""The demo: upload a face and a voice, and see the original next to a video whose lips follow the voice."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import gradio as gr

from notebooks.wav2lip import convert
from notebooks.wav2lip.pipeline import SAMPLE_RATE, LipSync, Report
from notebooks.wav2lip.pipeline.media import read_sound, sound_seconds

SAMPLES = Path(__file__).parent / "samples"
VIDEOS, PHOTOS, VOICES = (".mp4", ".webm"), (".png", ".jpg"), (".wav", ".mp3", ".m4a", ".flac", ".ogg")
MAX_VOICE_S = 30
MAX_SIDE = 1280  # pixels
HEIGHT = 400  # pixels of original and result on the page


def make_demo(model: str = "tiny", device: str = "CPU", samples: Path = SAMPLES) -> gr.Blocks:
    """The Blocks of the demo. samples: a folder of faces and voices to choose from."""
    folder = TemporaryDirectory(prefix="wav2lip-")  # exists as long as the page; Gradio copies what it shows
    with gr.Blocks(title="Wav2Lip", delete_cache=(600, 3600)) as demo:
        gr.Markdown(
            "# Make a face say it\n"
            "Give a face, as a video or a photo, and a voice: the lips follow the voice. The result is marked as "
            "generated. Use only faces and voices of people who agree to it."
        )
        with gr.Row():
            with gr.Column():
                kind = gr.Radio(["Video", "Photo"], value="Video", label="The face is in a")
                options = {"sources": ["upload", "webcam"], "height": HEIGHT, "buttons": []}  # no sharing
                video = gr.Video(label="Original video", **options)
                photo = gr.Image(label="Original photo", type="filepath", visible=False, **options)
            with gr.Column():
                result = gr.Video(label="Result", interactive=False, height=HEIGHT, buttons=["download"])
                notes = gr.Textbox(label="About the result", interactive=False)
        voice = gr.Audio(
            label=f"Voice, up to {MAX_VOICE_S} seconds",
            sources=["upload", "microphone"],
            type="filepath",
            buttons=[],
        )
        static = gr.Checkbox(label="Hold the first frame of the video still")
        run = gr.Button("Make it speak", variant="primary")
        offered = sorted(samples.glob("*"))
        voices = [str(path) for path in offered if path.suffix in VOICES]
        for sort, suffixes, component in (("Video", VIDEOS, video), ("Photo", PHOTOS, photo)):
            faces = [str(path) for path in offered if path.suffix in suffixes]
            if examples := [[sort, face, sample] for face, sample in zip(faces, cycle(voices), strict=False)]:
                gr.Examples(examples, [kind, component, voice], label=f"{sort} and voice")

        def select_input(kind: str) -> tuple[dict, dict]:
            return gr.update(visible=kind == "Video"), gr.update(visible=kind == "Photo")

        def run_lip_sync(kind, video, photo, voice, static, progress=gr.Progress()) -> tuple[str, str]:  # noqa: B008
            def show(done: int, total: int | None) -> None:
                progress((done, total), unit="frames")

            try:
                face = video if kind == "Video" else photo
                report = speak(face, voice, static, Path(folder.name) / "result.mp4", model, device, show)
            except (ValueError, OSError) as error:  # others stay tracebacks in the log
                raise gr.Error(str(error)) from error
            return str(report.path), about(report)

        kind.change(select_input, kind, [video, photo], api_name=False)
        run.click(run_lip_sync, [kind, video, photo, voice, static], [result, notes], api_name="speak")
    return demo


def speak(
    face: str | None,
    voice: str | None,
    static: bool,
    path: Path,
    model: str = "tiny",
    device: str = "CPU",
    progress: Callable[[int, int | None], None] | None = None,
) -> Report:
    """Write the video to `path`. Raises ValueError for a missing file or a long voice, and as `LipSync`."""
    if not face:
        raise ValueError("There is no face yet: upload or record one, or take a sample.")
    if not voice:
        raise ValueError("There is no voice yet: upload or record one, or take a sample.")
    if (seconds := sound_seconds(voice) or _counted_seconds(voice)) > MAX_VOICE_S:
        raise ValueError(f"The voice lasts {seconds:.0f} seconds, the demo takes up to {MAX_VOICE_S}. Cut it.")
    return _lip_sync(model, device)(face, voice, path, static=static, longest=MAX_SIDE, progress=progress)


def _counted_seconds(voice: str) -> float:
    """The length of a sound whose header does not hold it, as in recordings of browsers."""
    return sum(map(len, read_sound(voice, SAMPLE_RATE))) / SAMPLE_RATE


def about(report: Report) -> str:
    """The speed of a run and its notes, for the visitor."""
    speed = f"{report.frames} frames in {report.elapsed:.1f} s; the slowest stage: {report.limit}."
    return " ".join([speed, *report.notes])


@cache
def _lip_sync(model: str, device: str) -> LipSync:
    parts = (convert.prepare(part, model) for part in ("wav2lip", "face_detection"))
    return LipSync(*parts, device)
