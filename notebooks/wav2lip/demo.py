"""The demo: type what a face should say, or give it a recording; original and result are shown side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

import gradio as gr

from notebooks.wav2lip import convert
from notebooks.wav2lip.pipeline import PASTES, SAMPLE_RATE, LipSync, Report
from notebooks.wav2lip.pipeline.media import read_sound, sound_seconds
from utils.demo import shown_errors
from utils.speech.espeak import synthesise
from utils.speech.sound import write_wav

SAMPLES = Path(__file__).parent / "samples"
FACES = {"Eileen Collins": "astronaut.jpg", "Grace Hopper": "hopper.jpg", "A drawn head": "face.mp4"}
OWN_VIDEO, OWN_PHOTO = "My video", "My photo"
TYPED, RECORDED = "What I type", "A recording"
VOICES = {"Alex": "Alex", "Shelby": "shelby", "Robot": "klatt3"}  # of espeak-ng; training never used them
EXAMPLE = "Hello! Type a sentence below, and I will say it."
VIDEOS = (".mp4", ".webm")
MAX_VOICE_S = 30
MAX_CHARACTERS = 400
MAX_SIDE = 1280  # pixels
HEIGHT = 360  # pixels of original and result on the page
TOOLBAR_HEIGHT = 40  # pixels, below a photo
PASTE_LABELS = {"feathered": "lower half of the face, soft edge", "rectangle": "whole face, as the authors do"}
PLAY_BOTH = """() => {
    const videos = [...document.querySelectorAll("video")].filter(video => video.offsetParent !== null);
    if (videos.length === 2) { videos[0].muted = true; videos[0].currentTime = 0; videos[0].play(); }
}"""
_espeak = Lock()  # which only one thread may use at a time


def make_demo(
    model: str = "tiny", device: str = "CPU", generator: Path | None = None, samples: Path = SAMPLES
) -> gr.Blocks:
    """The Blocks of the demo. generator: its IR, converted if None. samples: a folder with the files of FACES."""
    folder = TemporaryDirectory(prefix="wav2lip-")  # exists as long as the page; Gradio copies what it shows
    faces = {name: samples / file for name, file in FACES.items() if (samples / file).is_file()}
    with gr.Blocks(title="Wav2Lip", delete_cache=(600, 3600)) as demo:
        gr.Markdown(
            "# Type what the face should say\n"
            "Choose a face, type a sentence, press the button: the lips follow the voice. Results are marked as "
            "generated. Use only faces and voices of people who agree to it."
        )
        with gr.Row():
            options = {"sources": ["upload", "webcam"], "buttons": []}  # no sharing
            video = gr.Video(label="Original", visible=False, height=HEIGHT, **options)
            photo = gr.Image(
                label="Original", type="filepath", elem_id="photo", height=HEIGHT + TOOLBAR_HEIGHT, **options
            )
            result = gr.Video(label="Result", interactive=False, autoplay=True, height=HEIGHT, buttons=["download"])
        with gr.Row() as typing:
            text = gr.Textbox(EXAMPLE, label="What the face should say", max_length=MAX_CHARACTERS, scale=3)
            voice = gr.Dropdown(list(VOICES), value=next(iter(VOICES)), label="Voice", scale=1)
        recording = gr.Audio(
            label=f"Recording, up to {MAX_VOICE_S} seconds",
            sources=["upload", "microphone"],
            type="filepath",
            buttons=[],
            visible=False,
        )
        run = gr.Button("Make it speak", variant="primary")
        with gr.Row():
            face = gr.Radio([*faces, OWN_VIDEO, OWN_PHOTO], value=next(iter(faces)), label="Face", scale=5)
            source = gr.Radio([TYPED, RECORDED], value=TYPED, label="It says", scale=2)
        with gr.Accordion("Options", open=False):
            paste = gr.Radio([(PASTE_LABELS[name], name) for name in PASTES], value="feathered", label="Paste the")
            static = gr.Checkbox(label="Hold the first frame of a video still")
        notes = gr.Textbox(label="About the result", interactive=False)
        gr.HTML("<style>#photo img {width: 100%; height: 100%; object-fit: contain}</style>", padding=False)

        def is_video(face: str) -> bool:
            return face == OWN_VIDEO or face in faces and faces[face].suffix in VIDEOS

        def select_face(face: str) -> tuple[dict, dict]:
            shown = gr.update(value=str(faces[face]) if face in faces else None, visible=True)
            hidden = gr.update(value=None, visible=False)
            return (shown, hidden) if is_video(face) else (hidden, shown)

        def select_source(name: str) -> tuple[dict, dict]:
            return gr.update(visible=name == TYPED), gr.update(visible=name == RECORDED)

        def run_lip_sync(
            face, video, photo, source, text, voice, recording, paste, static, progress=gr.Progress()  # noqa: B008
        ) -> tuple[str, str]:  # fmt: skip
            def show(done: int, total: int | None) -> None:
                progress((done, total), unit="frames")

            with shown_errors():
                if source == TYPED:
                    recording = say(text, voice, Path(folder.name) / "voice.wav")
                report = speak(
                    video if is_video(face) else photo,
                    recording,
                    static,
                    Path(folder.name) / "result.mp4",
                    model,
                    device,
                    generator,
                    paste=paste,
                    progress=show,
                )
            return str(report.path), about(report)

        face.change(select_face, face, [video, photo], api_name=False)
        source.change(select_source, source, [typing, recording], api_name=False)
        inputs = [face, video, photo, source, text, voice, recording, paste, static]
        opened = demo.load(select_face, face, [video, photo], api_name=False)
        for event, name in ((run.click, "speak"), (text.submit, False), (opened.then, False)):
            event(run_lip_sync, inputs, [result, notes], api_name=name, concurrency_id="speak")
        result.play(None, js=PLAY_BOTH)
    return demo


def say(text: str, voice: str, path: Path) -> Path:
    """Write the text, spoken by one of VOICES, to a WAV file. Raises ValueError for a text without words."""
    if not text.strip():
        raise ValueError("There is nothing to say yet: type a sentence.")
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"The text has {len(text)} characters, the demo takes up to {MAX_CHARACTERS}. Shorten it.")
    with _espeak:
        speech = synthesise(text, variant=VOICES[voice], rate=150)
    write_wav(path, speech.samples, SAMPLE_RATE)
    return path


def speak(
    face: str | Path | None,
    voice: str | Path | None,
    static: bool,
    path: Path,
    model: str = "tiny",
    device: str = "CPU",
    generator: Path | None = None,
    *,
    paste: str = "feathered",
    progress: Callable[[int, int | None], None] | None = None,
) -> Report:
    """Write the video to `path`. Raises ValueError for a missing file or a long voice, and as `LipSync`."""
    if not face:
        raise ValueError("There is no face yet: upload or record one, or take a sample.")
    if not voice:
        raise ValueError("There is no voice yet: upload or record one, or type a text.")
    if (seconds := sound_seconds(voice) or _counted_seconds(voice)) > MAX_VOICE_S:
        raise ValueError(f"The voice lasts {seconds:.0f} seconds, the demo takes up to {MAX_VOICE_S}. Cut it.")
    lip_sync = _lip_sync(model, device, generator)
    return lip_sync(face, voice, path, static=static, paste=paste, longest=MAX_SIDE, progress=progress)


def _counted_seconds(voice: str) -> float:
    """The length of a sound whose header does not hold it, as in recordings of browsers."""
    return sum(map(len, read_sound(voice, SAMPLE_RATE))) / SAMPLE_RATE


def about(report: Report) -> str:
    """The speed of a run and its notes, for the visitor."""
    speed = f"{report.frames} frames in {report.elapsed:.1f} s; the slowest stage: {report.limit}."
    return " ".join([speed, *report.notes])


@cache
def _lip_sync(model: str, device: str, generator: Path | None) -> LipSync:
    return LipSync(generator or convert.prepare("wav2lip", model), convert.prepare("face_detection", model), device)
