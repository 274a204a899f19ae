"""The demo: record a voice whose owner agrees, write a text, and hear it said in that voice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import gradio as gr
import numpy as np
from matplotlib.figure import Figure

from notebooks.gpt_sovits import convert
from notebooks.gpt_sovits.figures import stage_bars
from notebooks.gpt_sovits.measuring.quality import SAMPLES, voices
from notebooks.gpt_sovits.pipeline import FASTEST, SLOWEST, Figures, VoiceCloner, audio_io

LONGEST_TEXT, LONGEST_WORDS = 400, 200  # characters
LANGUAGES = [("told by the script", "auto"), ("English", "en"), ("Mandarin", "zh"), ("Japanese", "ja")]
TEXTS = (
    "I have never said these words. You hear a copy of my voice.",
    "这句话我没有说过。你听到的是电脑的声音。",
)
CONSENT = "I have the consent of the voice's owner"


def make_demo(model: str = "tiny", device: str = "CPU", samples: Path = SAMPLES) -> gr.Blocks:
    """The Blocks of the demo. samples: a folder of voices to choose from, see `quality.voices`."""
    folder = TemporaryDirectory(prefix="gpt-sovits-")  # lives as long as the page; Gradio copies what it shows
    with gr.Blocks(title="GPT-SoVITS", delete_cache=(600, 3600)) as demo:
        gr.Markdown(
            "# Say it in this voice\n"
            f"Give {audio_io.SHORTEST} to {audio_io.LONGEST} seconds of a voice and write down what is said there. "
            "The first sentence sounds while the others are still being made. The file to download says of itself that "
            "it is synthetic speech. (The tiny model has learned short sentences, English and Mandarin, from another "
            "synthesizer, and sounds so.)"
        )
        with gr.Row():
            with gr.Column():
                voice = gr.Audio(
                    label=f"Voice, {audio_io.SHORTEST} to {audio_io.LONGEST} seconds",
                    sources=["microphone", "upload"],
                    type="filepath",
                    buttons=[],
                )
                words = gr.Textbox(label="What is said in the recording", lines=2, max_length=LONGEST_WORDS)
                consent = gr.Checkbox(label=CONSENT)
                text = gr.Textbox(label="Text", lines=4, max_length=LONGEST_TEXT, value=TEXTS[0])
                with gr.Row():
                    language = gr.Dropdown(LANGUAGES, value="auto", label="Language of the text")
                    seed = gr.Number(0, precision=0, minimum=0, label="Seed")
                    speed = gr.Slider(SLOWEST, FASTEST, 1.0, step=0.05, label="Speed")
                run = gr.Button("Say it", variant="primary")
            with gr.Column():
                first = gr.Audio(label="First sentence", interactive=False, autoplay=True, buttons=[])
                whole = gr.Audio(label="Whole text", interactive=False, buttons=["download"])
                told = gr.Textbox(label="About the sound", lines=2, interactive=False)
                bars = gr.Plot(label="Time of each stage")
        if any(samples.glob("*.mp3")):
            offered = voices(samples)
            shown = [[str(x.recording), x.words, TEXTS[i % len(TEXTS)]] for i, x in enumerate(offered)]
            gr.Examples(shown, [voice, words, text], label="Voices to try", examples_per_page=len(shown))

        def respond(voice, words, consent, text, language, seed, speed) -> Iterator[tuple]:
            try:
                check(voice, words, consent, text)
                cloner = _cloner(model, device)
                given = {"language": language, "seed": seed, "speed": speed}
                yield from speak(cloner, voice, words, text, Path(folder.name), **given)
            except (ValueError, OSError) as error:  # sentences of this collection; others stay tracebacks in the log
                raise gr.Error(str(error)) from error

        given = [voice, words, consent, text, language, seed, speed]
        for event in (run.click, text.submit):
            event(respond, given, [first, whole, bars, told], api_name="speak", concurrency_id="speak")
    return demo


def check(voice: str | None, words: str, consent: bool, text: str) -> None:
    """Raise ValueError without consent or a recording, and for texts that are too long."""
    if consent is not True:
        raise ValueError(f'A voice is cloned only with consent. Tick "{CONSENT}", or take another voice.')
    if not voice:
        raise ValueError("There is no voice yet: record or upload one, or take a sample.")
    for given, name, most in ((words, "words of the recording have", LONGEST_WORDS), (text, "text has", LONGEST_TEXT)):
        if len(given) > most:
            raise ValueError(f"The {name} {len(given)} characters; up to {most} are read. Shorten it.")


def speak(
    cloner: VoiceCloner, voice: str, words: str, text: str, folder: Path, **options
) -> Iterator[tuple[str | dict, str | None, Figure, str]]:
    """Files of the first piece and of the whole, marked and in `folder`, bars of the stages' time, and what there is to
    tell, as it is made; the whole is None until the end. options: of `VoiceCloner.stream`, which tells the errors."""
    made = []
    for spoken in cloner.stream(text, voice, words, reference_language="auto", **options):
        made.append(spoken.samples)
        figures, rate = spoken.figures, spoken.sample_rate
        heard = _written(folder / "first.wav", made, rate) if len(made) == 1 else gr.skip()  # which goes on playing
        yield heard, None, stage_bars(figures), f"{len(made)} of {figures.pieces} ..."
    yield gr.skip(), _written(folder / "cloned.wav", made, rate), stage_bars(figures), about(figures)


def about(figures: Figures) -> str:
    """What a visitor is told about a sound."""
    made = (
        f"{figures.sound_s:.1f} s of speech, {figures.tokens} tokens at {figures.tokens_per_second:.0f} a second; a "
        f"second of sound took {figures.real_time_factor:.2f} s."
    )
    return " ".join([made, *figures.notes])


def _written(path: Path, sounds: list[np.ndarray], rate: int) -> str:
    audio_io.write(path, np.concatenate(sounds), rate)
    return str(path)


@cache
def _cloner(model: str, device: str) -> VoiceCloner:
    return VoiceCloner(convert.prepare(model), device)
