"""The demo: record a voice whose owner agrees, write a text, and listen to it in that voice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import gradio as gr
import numpy as np
from matplotlib.figure import Figure

from notebooks.gpt_sovits import convert
from notebooks.gpt_sovits.data.voices import SAMPLES, read_voices
from notebooks.gpt_sovits.figures import stage_bars
from notebooks.gpt_sovits.pipeline import MAX_SPEED, MIN_SPEED, Timings, VoiceCloner, audio_io

MAX_TEXT_CHARACTERS, MAX_WORDS_CHARACTERS = 400, 200
LANGUAGES = [("told by the script", "auto"), ("English", "en"), ("Mandarin", "zh"), ("Japanese", "ja")]
TEXTS = (
    "I have never said these words. You hear a copy of my voice.",
    "这句话我没有说过。你听到的是电脑的声音。",
)
CONSENT = "I have the consent of the voice's owner"


def make_demo(model: str = "tiny", device: str = "CPU", samples: Path = SAMPLES) -> gr.Blocks:
    """The Blocks of the demo. samples: a folder of voices to choose from, see `data.voices.read_voices`."""
    folder = TemporaryDirectory(prefix="gpt-sovits-")  # lives as long as the page; Gradio copies what it shows
    with gr.Blocks(title="GPT-SoVITS", delete_cache=(600, 3600)) as demo:
        gr.Markdown(
            "# Say it in this voice\n"
            f"Give {audio_io.MIN_RECORDING_S} to {audio_io.MAX_RECORDING_S} seconds of a voice and write down what "
            "is said there. The first sentence sounds while the others are still being made. The file to download says "
            "of itself that it is synthetic speech. (The tiny model has learned short sentences, English and Mandarin, "
            "from another synthesizer, and sounds so.)"
        )
        with gr.Row():
            with gr.Column():
                voice = gr.Audio(
                    label=f"Voice, {audio_io.MIN_RECORDING_S} to {audio_io.MAX_RECORDING_S} seconds",
                    sources=["microphone", "upload"],
                    type="filepath",
                    buttons=[],
                )
                words = gr.Textbox(label="What is said in the recording", lines=2, max_length=MAX_WORDS_CHARACTERS)
                consent = gr.Checkbox(label=CONSENT)
                text = gr.Textbox(label="Text", lines=4, max_length=MAX_TEXT_CHARACTERS, value=TEXTS[0])
                with gr.Row():
                    language = gr.Dropdown(LANGUAGES, value="auto", label="Language of the text")
                    seed = gr.Number(0, precision=0, minimum=0, label="Seed")
                    speed = gr.Slider(MIN_SPEED, MAX_SPEED, 1.0, step=0.05, label="Speed")
                run = gr.Button("Say it", variant="primary")
            with gr.Column():
                first = gr.Audio(label="First sentence", interactive=False, autoplay=True, buttons=[])
                whole = gr.Audio(label="Whole text", interactive=False, buttons=["download"])
                about_sound = gr.Textbox(label="About the sound", lines=2, interactive=False)
                bars = gr.Plot(label="Time of each stage")
        if any(samples.glob("*.mp3")):
            offered = read_voices(samples)
            shown = [[str(x.recording), x.words, TEXTS[i % len(TEXTS)]] for i, x in enumerate(offered)]
            gr.Examples(shown, [voice, words, text], label="Voices to try", examples_per_page=len(shown))

        def respond(voice, words, consent, text, language, seed, speed) -> Iterator[tuple]:
            try:
                check(voice, words, consent, text)
                cloner = _cloner(model, device)
                options = {"language": language, "seed": seed, "speed": speed}
                yield from speak(cloner, voice, words, text, Path(folder.name), **options)
            except (ValueError, OSError) as error:  # for visitors; others stay tracebacks in the log
                raise gr.Error(str(error)) from error

        inputs = [voice, words, consent, text, language, seed, speed]
        for event in (run.click, text.submit):
            event(respond, inputs, [first, whole, bars, about_sound], api_name="speak", concurrency_id="speak")
    return demo


def check(voice: str | None, words: str, consent: bool, text: str) -> None:
    """Raise ValueError without consent or a recording, and for texts that are too long."""
    if consent is not True:
        raise ValueError(f'A voice is cloned only with consent. Tick "{CONSENT}", or take another voice.')
    if not voice:
        raise ValueError("There is no voice yet: record or upload one, or take a sample.")
    for value, name, most in (
        (words, "words of the recording have", MAX_WORDS_CHARACTERS),
        (text, "text has", MAX_TEXT_CHARACTERS),
    ):
        if len(value) > most:
            raise ValueError(f"The {name} {len(value)} characters; up to {most} are read. Shorten it.")


def speak(
    cloner: VoiceCloner, voice: str, words: str, text: str, folder: Path, **options
) -> Iterator[tuple[str | dict, str | None, Figure, str]]:
    """After every piece: the file of the first piece, the file of the whole, bars of the stages' times, and a text.

    The files are in `folder` and marked as synthetic; the whole is None until the end. options: of
    `VoiceCloner.stream`, which raises the errors.
    """
    sounds = []
    for piece in cloner.stream(text, voice, words, reference_language="auto", **options):
        sounds.append(piece.samples)
        timings, rate = piece.timings, piece.sample_rate
        first = _written(folder / "first.wav", sounds, rate) if len(sounds) == 1 else gr.skip()  # which keeps playing
        yield first, None, stage_bars(timings), f"{len(sounds)} of {timings.pieces} ..."
    yield gr.skip(), _written(folder / "cloned.wav", sounds, rate), stage_bars(timings), about(timings)


def about(timings: Timings) -> str:
    """The speed of a call and its warnings, for visitors."""
    speed = (
        f"{timings.sound_s:.1f} s of speech, {timings.tokens} tokens at {timings.tokens_per_second:.0f} a second; a "
        f"second of sound took {timings.real_time_factor:.2f} s."
    )
    return " ".join([speed, *timings.notes])


def _written(path: Path, sounds: list[np.ndarray], rate: int) -> str:
    audio_io.write(path, np.concatenate(sounds), rate)
    return str(path)


@cache
def _cloner(model: str, device: str) -> VoiceCloner:
    return VoiceCloner(convert.prepare(model), device)
