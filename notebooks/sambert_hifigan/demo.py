"""The demo: type a Mandarin text, choose a voice or record your own, and see each character while it is spoken."""

from __future__ import annotations

import io
import wave
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from time import perf_counter

import gradio as gr
import numpy as np
from matplotlib.figure import Figure

from notebooks.sambert_hifigan import convert
from notebooks.sambert_hifigan.figures import BREAKS, mel_figure
from notebooks.sambert_hifigan.pipeline import MAX_SPEED, MIN_SPEED, Spoken, Synthesizer
from utils.demo import shown_errors
from utils.speech import sound
from utils.speech.listening import prepare_encoder
from utils.speech.speaker_encoder import SAMPLE_RATE, Voiceprint

MAX_CHARACTERS = 500  # of a text
MAX_RECORDING_S = 60  # the rest of a longer recording is ignored
MAX_VOICES = 12  # that say a sentence side by side
EMBEDDING_SIZE = 256  # of the packaged speaker encoder
TEXTS = (
    "欢迎来到北京！这件衣服的颜色很适合你。",
    "我想喝一杯咖啡。今天是星期五，我们出去走走吧！",
    "现在是下午3点20分，气温25°C，降水概率10%。",
)
DESCRIPTIONS = {  # of the voices of tiny
    "xiaobei": "Xiaobei, a woman",
    "xiaoxiao": "Xiaoxiao, a woman",
    "xiaoyi": "Xiaoyi, a woman",
    "yunjian": "Yunjian, a man",
    "yunxi": "Yunxi, a man",
    "yunyang": "Yunyang, a man",
}
PIECEWISE, WHOLE = "sentence by sentence", "all at once"
CONSENT = "This is my own voice, or its owner has agreed that it is imitated"
Sound = tuple[int, np.ndarray]  # Hz, int16 [S]

STYLE = """<style>
.speech {display: flex; flex-direction: column; gap: 6px}
.speech audio {width: 100%; height: 40px; margin-top: 12px}
.speech p {margin: 0; line-height: 1.3}
.speech .character {display: inline-block; min-width: 2.6em; padding: 2px 3px; margin: 1px; text-align: center;
    border-radius: 6px; background: var(--background-fill-secondary)}
.speech .character b {display: block; font-size: 1.35em; font-weight: 500}
.speech .character small {opacity: 0.75; font-size: 0.75rem}
.speech .character.now {background: #ffd24d; color: #23303f}
.voices {display: grid; grid-template-columns: repeat(auto-fill, minmax(320px, 1fr)); gap: 14px}
.voices .character small {display: none}
.voices .character {min-width: 1.6em}
</style>"""
# As long as a sound plays, the character whose time it is gets the class "now".
FOLLOW = (
    "const sound = this, characters = this.parentElement.querySelectorAll('.character');"
    "const step = () => {"
    " const t = sound.currentTime;"
    " characters.forEach(c => c.classList.toggle('now', !sound.ended && t >= c.dataset.begin && t < c.dataset.end));"
    " if (!sound.paused) requestAnimationFrame(step); };"
    "step();"
)


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo."""
    synthesizer = _synthesizer(model, device)
    names = synthesizer.speakers
    choices = [(describe(name), name) for name in names]
    with gr.Blocks(title="SAMBERT-HiFiGAN", delete_cache=(600, 3600)) as demo:
        gr.HTML(STYLE, padding=False)
        gr.Markdown(
            "# Speak Mandarin in a chosen voice\n"
            "Write a text and press the button. You hear the first sentence while the model still computes the others, "
            "and each character is marked while it is spoken. All speech on this page is generated; the small model "
            "has learned from another synthesizer, and you can hear that."
        )
        with gr.Row():
            with gr.Column(scale=2):
                text = gr.Textbox(label="Text", lines=3, max_length=MAX_CHARACTERS, value=TEXTS[0])
                with gr.Row():
                    voice = gr.Dropdown(choices, value=names[0], label="Voice")
                    speed = gr.Slider(MIN_SPEED, MAX_SPEED, 1.0, step=0.05, label="Speed")
                mode = gr.Radio([PIECEWISE, WHOLE], value=PIECEWISE, label="Play the speech")
                with gr.Accordion("Use my own voice", open=False, visible=_takes_recordings(synthesizer)):
                    recording = gr.Audio(
                        label="Some sentences in any language, 5 to 30 seconds",
                        sources=["microphone", "upload"],
                        type="filepath",
                        buttons=[],
                    )
                    consent = gr.Checkbox(label=CONSENT)
                run = gr.Button("Speak", variant="primary")
                gr.Examples([[x, names[i % len(names)]] for i, x in enumerate(TEXTS)], [text, voice], label="Examples")
            with gr.Column(scale=3):
                first = gr.HTML(label="First sentence", show_label=True, container=True)
                timings = gr.HTML(label="Whole text: the numbers are milliseconds", show_label=True, container=True)
                summary = gr.Textbox(label="About the speech", interactive=False)
        gr.Markdown("## The latest sentence: its spectrogram, with the pitch as a blue line")
        picture = gr.Plot(show_label=False, container=False)
        with gr.Accordion("The sound as a file", open=False):
            whole = gr.Audio(label="Whole text", interactive=False, buttons=["download"])
        gr.Markdown("## The same sentence in every voice")
        compare = gr.Button("Speak the first sentence in every voice")
        voices = gr.HTML()

        def respond(text, voice, speed, mode, recording, consent, play=True) -> Iterator[tuple]:
            with shown_errors():
                speaker = embed_recording(recording, consent) if recording else voice
                yield from speak(synthesizer, text, speaker, speed, mode == PIECEWISE, play)

        def open_page(*values) -> Iterator[tuple]:
            yield from respond(*values, play=False)  # a browser plays nothing before a click

        def respond_in_every_voice(text, speed) -> str:
            with shown_errors():
                return every_voice(synthesizer, text, speed)

        inputs = [text, voice, speed, mode, recording, consent]
        outputs = [first, whole, timings, picture, summary]
        for event in (run.click, text.submit):
            event(respond, inputs, outputs, api_name="speak", concurrency_id="speak")
        compare.click(respond_in_every_voice, [text, speed], voices, api_name="voices", concurrency_id="speak")
        opened = demo.load(open_page, inputs, outputs, api_name=False, concurrency_id="speak")
        opened.then(respond_in_every_voice, [text, speed], voices, api_name=False, concurrency_id="speak")
    return demo


def describe(name: str) -> str:
    """The name of a voice for visitors."""
    return DESCRIPTIONS.get(name, name)


def embed_recording(recording: str, consent: bool) -> np.ndarray:
    """The speaker embedding [256] of a recorded file. Raises ValueError without consent, and for an unfit recording."""
    if not consent:
        raise ValueError(f'A voice is imitated only with consent. Tick "{CONSENT}", or remove the recording.')
    return _voiceprint()(sound.read(recording, SAMPLE_RATE, MAX_RECORDING_S), SAMPLE_RATE)


def speak(
    synthesizer: Synthesizer,
    text: str,
    voice: str | np.ndarray,
    speed: float = 1.0,
    piecewise: bool = True,
    play: bool = True,
) -> Iterator[tuple[str | dict, Sound | None, str, Figure, str]]:
    """Yield the outputs of the demo: player of the first sentence (HTML), whole sound, its player, figure, summary.

    piecewise: yield after every sentence, with None for the whole sound until the end; otherwise yield once. play:
    whether the first player starts by itself. Raises the errors of `Synthesizer.stream`, and ValueError for a text that
    is too long.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"The text has {len(text)} characters, and the demo takes {MAX_CHARACTERS}. Shorten it.")
    begin = perf_counter()
    sentences: list[Spoken] = []
    first_s = 0.0
    source = bool(synthesizer.config["sines"])
    for spoken in synthesizer.stream(text, voice, speed):
        sentences.append(spoken)
        first_s = first_s or perf_counter() - begin
        if piecewise:
            figure = mel_figure(spoken, synthesizer.frontend, source)
            first = player([spoken], play) if len(sentences) == 1 else gr.skip()  # it goes on playing
            yield first, None, timeline(sentences), figure, "speaking ..."
    first = gr.skip() if piecewise else player(sentences[:1])
    figure = mel_figure(sentences[-1], synthesizer.frontend, source)
    summary = about(sentences, first_s, perf_counter() - begin)
    yield first, _sound(sentences), player(sentences, play and not piecewise), figure, summary


def every_voice(synthesizer: Synthesizer, text: str, speed: float = 1.0) -> str:
    """Players (HTML) of the first sentence of a text in each voice, up to MAX_VOICES."""
    parts = []
    for name in synthesizer.speakers[:MAX_VOICES]:
        spoken = next(synthesizer.stream(text, name, speed))
        parts.append(player([spoken], title=describe(name)))
    return f'<div class="voices">{"".join(parts)}</div>'


def player(sentences: Sequence[Spoken], play: bool = False, title: str = "") -> str:
    """A player (HTML) of sentences above their characters, which are marked while they are spoken.

    play: whether it starts by itself. title: stands above it.
    """
    rate, samples = _sound(sentences)
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    data = b64encode(written.getvalue()).decode()
    heading = f"<strong>{escape(title)}</strong>" if title else ""
    autoplay = "autoplay " if play else ""
    return (
        f'<div class="speech">{heading}<audio controls {autoplay}src="data:audio/wav;base64,{data}" '
        f'onplay="{FOLLOW}" onseeked="{FOLLOW}" onended="{FOLLOW}"></audio>{timeline(sentences)}</div>'
    )


def timeline(sentences: Sequence[Spoken]) -> str:
    """The characters of sentences as HTML, a line for each sentence, with the milliseconds of each below it."""
    lines, begin_s = [], 0.0
    for spoken in sentences:
        frame_s = spoken.seconds / spoken.mel.shape[1]
        cells = []
        for text, frames in spoken.durations:
            end_s = begin_s + frames * frame_s
            shown = escape(BREAKS.get(text, text)) or "·"
            if frames:
                cells.append(
                    f'<span class="character" data-begin="{begin_s:.3f}" data-end="{end_s:.3f}">'
                    f"<b>{shown}</b><small>{1000 * frames * frame_s:.0f}</small></span>"
                )
            begin_s = end_s
        lines.append(f"<p>{''.join(cells)}</p>")
    return f'<div class="speech">{"".join(lines)}</div>'


def about(sentences: Sequence[Spoken], first_s: float, elapsed_s: float) -> str:
    """A summary for the visitor. first_s, elapsed_s: seconds until the first sentence and until all were ready."""
    seconds = sum(spoken.seconds for spoken in sentences)
    count = f"{len(sentences)} sentence{'' if len(sentences) == 1 else 's'}"
    return (
        f"{count}, {seconds:.1f} s of speech. The first sentence was ready after {first_s:.2f} s, "
        f"all of them after {elapsed_s:.2f} s: {seconds / elapsed_s:.1f} times real time."
    )


def _sound(sentences: Sequence[Spoken]) -> Sound:
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
