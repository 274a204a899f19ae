"""The demo: give it a face and a voice, and see the face say it, beside the original."""

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
LONGEST_VOICE = 30  # seconds
LONGEST_SIDE = 1280  # pixels
HEIGHT = 400  # pixels of original and result on the page


def make_demo(model: str = "tiny", device: str = "CPU", samples: Path = SAMPLES) -> gr.Blocks:
    """The Blocks of the demo. samples: a folder of faces and voices to choose from."""
    folder = TemporaryDirectory(prefix="wav2lip-")  # lives as long as the page; Gradio copies what it shows
    with gr.Blocks(title="Wav2Lip", delete_cache=(600, 3600)) as demo:
        gr.Markdown(
            "# Make a face say it\n"
            "Give a face, as a video or a photo, and a voice: the lips follow the voice. The result is marked as "
            "generated. Use only faces and voices of people who agree to it."
        )
        with gr.Row():
            with gr.Column():
                kind = gr.Radio(["Video", "Photo"], value="Video", label="The face is in a")
                given = {"sources": ["upload", "webcam"], "height": HEIGHT, "buttons": []}  # no sharing
                video = gr.Video(label="Original video", **given)
                photo = gr.Image(label="Original photo", type="filepath", visible=False, **given)
            with gr.Column():
                result = gr.Video(label="Result", interactive=False, height=HEIGHT, buttons=["download"])
                told = gr.Textbox(label="About the result", interactive=False)
        voice = gr.Audio(
            label=f"Voice, up to {LONGEST_VOICE} seconds",
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
            if found := [[sort, face, said] for face, said in zip(faces, cycle(voices), strict=False)]:
                gr.Examples(found, [kind, component, voice], label=f"{sort} and voice")

        def shown(kind: str) -> tuple[dict, dict]:
            return gr.update(visible=kind == "Video"), gr.update(visible=kind == "Photo")

        def spoken(kind, video, photo, voice, static, progress=gr.Progress()) -> tuple[str, str]:  # noqa: B008
            def show(done: int, total: int | None) -> None:
                progress((done, total), unit="frames")

            try:
                face = video if kind == "Video" else photo
                report = speak(face, voice, static, Path(folder.name) / "result.mp4", model, device, show)
            except (ValueError, OSError) as error:  # sentences of this collection; others stay tracebacks in the log
                raise gr.Error(str(error)) from error
            return str(report.path), about(report)

        kind.change(shown, kind, [video, photo], api_name=False)
        run.click(spoken, [kind, video, photo, voice, static], [result, told], api_name="speak")
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
    """Write the video to `path`. Raises ValueError where a file is missing, or the voice too long, and as LipSync."""
    if not face:
        raise ValueError("There is no face yet: upload or record one, or take a sample.")
    if not voice:
        raise ValueError("There is no voice yet: upload or record one, or take a sample.")
    if (seconds := sound_seconds(voice) or _counted_seconds(voice)) > LONGEST_VOICE:
        raise ValueError(f"The voice lasts {seconds:.0f} seconds, the demo takes up to {LONGEST_VOICE}. Cut it.")
    return _lip_sync(model, device)(face, voice, path, static=static, longest=LONGEST_SIDE, progress=progress)


def _counted_seconds(voice: str) -> float:
    """How long a sound is whose header does not say it, as recordings of browsers."""
    return sum(map(len, read_sound(voice, SAMPLE_RATE))) / SAMPLE_RATE


def about(report: Report) -> str:
    """What a visitor is told about a result."""
    speed = f"{report.frames} frames in {report.elapsed:.1f} s; the slowest stage: {report.limit}."
    return " ".join([speed, *report.notes])


@cache
def _lip_sync(model: str, device: str) -> LipSync:
    parts = (convert.prepare(part, model) for part in ("wav2lip", "face_detection"))
    return LipSync(*parts, device)
