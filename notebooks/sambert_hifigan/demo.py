"""The demo: type a Mandarin text, choose a voice or record your own, and listen."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html import escape
from time import perf_counter

import gradio as gr
import numpy as np
from matplotlib.figure import Figure

from notebooks.sambert_hifigan import convert
from notebooks.sambert_hifigan.figures import BREAKS, mel_figure
from notebooks.sambert_hifigan.pipeline import MAX_SPEED, MIN_SPEED, Spoken, Synthesizer
from utils.speech import sound
from utils.speech.listening import prepare_encoder
from utils.speech.speaker_encoder import SAMPLE_RATE, Voiceprint

MAX_CHARACTERS = 500  # of a text
MAX_RECORDING_S = 60  # the rest of a longer recording is ignored
EMBEDDING_SIZE = 256  # of the packaged speaker encoder
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
                text = gr.Textbox(label="Text", lines=4, max_length=MAX_CHARACTERS, value=TEXTS[0])
                names = synthesizer.speakers
                voice = gr.Dropdown(names, value=names[0], label="Voice")
                speed = gr.Slider(MIN_SPEED, MAX_SPEED, 1.0, step=0.05, label="Speed")
                mode = gr.Radio([PIECEWISE, WHOLE], value=PIECEWISE, label="Sound comes")
                with gr.Accordion("Or your own voice", open=False, visible=_takes_recordings(synthesizer)):
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
                summary = gr.Textbox(label="About the sound", interactive=False)
        timings = gr.HTML(label="Milliseconds of every character")
        picture = gr.Plot(label="Mel spectrogram of the latest sentence")
        gr.Examples([[x, names[i % len(names)]] for i, x in enumerate(TEXTS)], [text, voice], label="Texts")

        def respond(text, voice, speed, mode, recording, consent) -> Iterator[tuple]:
            try:
                speaker = embed_recording(recording, consent) if recording else voice
                yield from speak(synthesizer, text, speaker, speed, mode == PIECEWISE)
            except (ValueError, OSError) as error:  # their messages are for visitors; others stay in the log
                raise gr.Error(str(error)) from error

        inputs = [text, voice, speed, mode, recording, consent]
        for event in (run.click, text.submit):
            event(respond, inputs, [first, whole, timings, picture, summary], api_name="speak", concurrency_id="speak")
    return demo


def embed_recording(recording: str, consent: bool) -> np.ndarray:
    """The speaker embedding [256] of a recorded file. Raises ValueError without consent, and for an unfit recording."""
    if not consent:
        raise ValueError(f'A voice is imitated only with consent. Tick "{CONSENT}", or remove the recording.')
    return _voiceprint()(sound.read(recording, SAMPLE_RATE, MAX_RECORDING_S), SAMPLE_RATE)


def speak(
    synthesizer: Synthesizer, text: str, voice: str | np.ndarray, speed: float = 1.0, piecewise: bool = True
) -> Iterator[tuple[Sound | dict, Sound | None, str, Figure, str]]:
    """Yield the outputs of the demo: first sound, whole sound, timeline (HTML), figure and summary.

    piecewise: yield after every sentence, with None for the whole sound until the end; otherwise yield once. Raises the
    errors of `Synthesizer.stream`, and ValueError for a text that is too long.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"The text has {len(text)} characters; up to {MAX_CHARACTERS} are said. Shorten it.")
    begin = perf_counter()
    sentences: list[Spoken] = []
    first_s = 0.0
    source = bool(synthesizer.config["sines"])
    for spoken in synthesizer.stream(text, voice, speed):
        sentences.append(spoken)
        first_s = first_s or perf_counter() - begin
        if piecewise:
            figure = mel_figure(spoken, synthesizer.frontend, source)
            first = _sound([spoken]) if len(sentences) == 1 else gr.skip()  # it goes on playing
            yield first, None, timeline(sentences), figure, "speaking ..."
    first = gr.skip() if piecewise else _sound(sentences[:1])
    figure = mel_figure(sentences[-1], synthesizer.frontend, source)
    summary = about(sentences, first_s, perf_counter() - begin)
    yield first, _sound(sentences), timeline(sentences), figure, summary


def timeline(sentences: list[Spoken]) -> str:
    """The characters of sentences as HTML, with the milliseconds of every character and pause below it."""
    rubies = []
    for spoken in sentences:
        frame_ms = 1000 * spoken.seconds / spoken.mel.shape[1]
        for text, frames in spoken.durations:
            shown = escape(BREAKS.get(text, text)) or "·"
            rubies.append(f"<ruby>{shown}<rt>{frames * frame_ms:.0f}</rt></ruby>")
        rubies.append("<br>")
    return f'<div style="ruby-position: under; font-size: 1.4em; line-height: 2.2">{" ".join(rubies)}</div>'


def about(sentences: list[Spoken], first_s: float, elapsed_s: float) -> str:
    """A summary for the visitor. first_s, elapsed_s: seconds until the first sentence and until all were ready."""
    seconds = sum(spoken.seconds for spoken in sentences)
    count = f"{len(sentences)} sentence{'' if len(sentences) == 1 else 's'}"
    return (
        f"{count}, {seconds:.1f} s of speech; the first sound after {first_s:.2f} s, "
        f"made {seconds / elapsed_s:.1f} times as fast as it is said."
    )


def _sound(sentences: list[Spoken]) -> Sound:
    samples = np.concatenate([spoken.samples for spoken in sentences])
    return sentences[0].sample_rate, sound.to_int16(samples)


def _takes_recordings(synthesizer: Synthesizer) -> bool:
    """Whether the voices are embeddings of the packaged speaker encoder."""
    return synthesizer.config["embedding"] == EMBEDDING_SIZE


@cache
def _synthesizer(model: str, device: str) -> Synthesizer:
    return Synthesizer(convert.prepare(model), device)


@cache
def _voiceprint() -> Voiceprint:
    return Voiceprint(prepare_encoder())
