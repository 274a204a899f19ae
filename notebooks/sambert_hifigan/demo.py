"""The demo: write something in Mandarin, choose a voice or record your own, and hear it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html import escape
from time import perf_counter

import gradio as gr
import numpy as np
from matplotlib.figure import Figure

from notebooks.sambert_hifigan import convert
from notebooks.sambert_hifigan.figures import BREAKS, mel_picture
from notebooks.sambert_hifigan.pipeline import FASTEST, SLOWEST, Spoken, Synthesizer
from utils.speech import sound
from utils.speech.listening import prepare_encoder
from utils.speech.speaker_encoder import SAMPLE_RATE, Voiceprint

LONGEST_TEXT = 500  # characters
LONGEST_RECORDING_S = 60  # that are read of a recording
VOICEPRINT = 256  # numbers of an embedding that the packaged encoder makes
TEXTS = (
    "你好！很高兴认识你。今天天气真不错，我们出去走走吧。",
    "现在是下午3点20分，气温25°C，降水概率10%。",
    "请问，去火车站怎么走？从这里坐2路公交车，大约15分钟就到了。",
)
PIECEWISE, WHOLE = "sentence by sentence", "all at once"
CONSENT = "This is my own voice, or its owner has agreed that it is imitated"
Sound = tuple[int, np.ndarray]  # Hz, int16 [S]


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo."""
    synthesizer = _synthesizer(model, device)
    with gr.Blocks(title="SAMBERT-HiFiGAN", delete_cache=(600, 3600)) as demo:
        gr.Markdown(
            "# Say it in Mandarin\n"
            "Write a text; the first sentence sounds while the others are still being made. All that you hear is "
            "generated. (The tiny voice has learned from another synthesizer, and sounds so.)"
        )
        with gr.Row():
            with gr.Column():
                text = gr.Textbox(label="Text", lines=4, max_length=LONGEST_TEXT, value=TEXTS[0])
                names = synthesizer.speakers
                voice = gr.Dropdown(names, value=names[0], label="Voice")
                speed = gr.Slider(SLOWEST, FASTEST, 1.0, step=0.05, label="Speed")
                mode = gr.Radio([PIECEWISE, WHOLE], value=PIECEWISE, label="Sound comes")
                with gr.Accordion("Or your own voice", open=False, visible=_personal(synthesizer)):
                    recording = gr.Audio(
                        label="Some sentences in any language, 5 to 30 seconds",
                        sources=["microphone", "upload"],
                        type="filepath",
                        buttons=[],
                    )
                    consent = gr.Checkbox(label=CONSENT)
                run = gr.Button("Say it", variant="primary")
            with gr.Column():
                first = gr.Audio(label="First sentence", interactive=False, autoplay=True, buttons=[])
                whole = gr.Audio(label="Whole text", interactive=False, buttons=["download"])
                told = gr.Textbox(label="About the sound", interactive=False)
        spelled = gr.HTML(label="Milliseconds of every character")
        picture = gr.Plot(label="Mel spectrogram of the latest sentence")
        gr.Examples([[x, names[i % len(names)]] for i, x in enumerate(TEXTS)], [text, voice], label="Texts")

        def respond(text, voice, speed, mode, recording, consent) -> Iterator[tuple]:
            try:
                who = personal(recording, consent) if recording else voice
                yield from speak(synthesizer, text, who, speed, mode == PIECEWISE)
            except (ValueError, OSError) as error:  # sentences of this collection; others stay tracebacks in the log
                raise gr.Error(str(error)) from error

        given = [text, voice, speed, mode, recording, consent]
        for event in (run.click, text.submit):
            event(respond, given, [first, whole, spelled, picture, told], api_name="speak", concurrency_id="speak")
    return demo


def personal(recording: str, consent: bool) -> np.ndarray:
    """The voice in a file, [256]. Raises ValueError without consent, and for a recording that will not do."""
    if not consent:
        raise ValueError(f'A voice is imitated only with consent. Tick "{CONSENT}", or remove the recording.')
    return _voiceprint()(sound.read(recording, SAMPLE_RATE, LONGEST_RECORDING_S), SAMPLE_RATE)


def speak(
    synthesizer: Synthesizer, text: str, voice: str | np.ndarray, speed: float = 1.0, piecewise: bool = True
) -> Iterator[tuple[Sound | dict, Sound | None, str, Figure, str]]:
    """First sound, whole sound, characters with their times (HTML), picture and what there is to tell, as it is made.

    piecewise: also after every sentence, the whole sound being None until the end. Raises ValueError as
    `Synthesizer.stream`, and for a text that is too long.
    """
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"The text has {len(text)} characters; up to {LONGEST_TEXT} are said. Shorten it.")
    begin, made, after = perf_counter(), [], 0.0
    source = bool(synthesizer.config["sines"])
    for spoken in synthesizer.stream(text, voice, speed):
        made.append(spoken)
        after = after or perf_counter() - begin
        if piecewise:
            picture = mel_picture(spoken, synthesizer.frontend, source)
            shown = _sound([spoken]) if len(made) == 1 else gr.skip()  # which goes on playing
            yield shown, None, timeline(made), picture, "speaking ..."
    shown = gr.skip() if piecewise else _sound(made[:1])
    picture = mel_picture(made[-1], synthesizer.frontend, source)
    yield shown, _sound(made), timeline(made), picture, about(made, after, perf_counter() - begin)


def timeline(made: list[Spoken]) -> str:
    """Sentences as HTML, the milliseconds of every character and pause below it."""
    found = []
    for spoken in made:
        frame = 1000 * spoken.seconds / spoken.mel.shape[1]
        for text, frames in spoken.durations:
            shown = escape(BREAKS.get(text, text)) or "·"
            found.append(f"<ruby>{shown}<rt>{frames * frame:.0f}</rt></ruby>")
        found.append("<br>")
    return f'<div style="ruby-position: under; font-size: 1.4em; line-height: 2.2">{" ".join(found)}</div>'


def about(made: list[Spoken], first: float, elapsed: float) -> str:
    """What a visitor is told. first, elapsed: seconds until the first sentence, and all of them, were there."""
    seconds = sum(spoken.seconds for spoken in made)
    count = f"{len(made)} sentence{'' if len(made) == 1 else 's'}"
    return (
        f"{count}, {seconds:.1f} s of speech; the first sound after {first:.2f} s, "
        f"made {seconds / elapsed:.1f} times as fast as it is said."
    )


def _sound(made: list[Spoken]) -> Sound:
    samples = np.concatenate([spoken.samples for spoken in made])
    return made[0].sample_rate, (samples.clip(-1, 1) * 32767).round().astype(np.int16)


def _personal(synthesizer: Synthesizer) -> bool:
    """Whether the voice takes embeddings of the packaged encoder."""
    return synthesizer.config["embedding"] == VOICEPRINT


@cache
def _synthesizer(model: str, device: str) -> Synthesizer:
    return Synthesizer(convert.prepare(model), device)


@cache
def _voiceprint() -> Voiceprint:
    return Voiceprint(prepare_encoder())
