"""The demo: record a voice whose owner agrees, write a text, and listen to it in that voice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import gradio as gr
import numpy as np
from matplotlib.figure import Figure

from notebooks.gpt_sovits import convert
from notebooks.gpt_sovits.data.voices import SAMPLES, Voice, read_voices
from notebooks.gpt_sovits.figures import stage_bars
from notebooks.gpt_sovits.pipeline import MAX_SPEED, MIN_SPEED, Timings, VoiceCloner, audio_io
from utils.demo import shown_errors
from utils.speech.listening import prepare_encoder
from utils.speech.sound import read, same_loudness, to_int16
from utils.speech.speaker_encoder import SAMPLE_RATE, Voiceprint, resampled

MAX_TEXT_CHARACTERS, MAX_WORDS_CHARACTERS = 400, 200
LANGUAGES = [("found by the script", "auto"), ("English", "en"), ("Mandarin", "zh"), ("Japanese", "ja")]
TEXTS = (
    "I have never said these words. You hear a copy of my voice.",
    "这句话我没有说过。你听到的是电脑的声音。",
)
CONSENT = "I have the consent of the voice's owner"
SAME_RECORDING = 0.99  # cosine of two embeddings above which a recording is taken for the same
Sound = tuple[int, np.ndarray]  # Hz, int16 [S]


def make_demo(model: str = "tiny", device: str = "CPU", samples: Path = SAMPLES) -> gr.Blocks:
    """The Blocks of the demo. samples: a folder of voices to choose from, see `data.voices.read_voices`."""
    folder = TemporaryDirectory(prefix="gpt-sovits-")  # lives as long as the page; Gradio copies what it shows
    offered = read_voices(samples)
    example = offered[0]
    limits = f"{audio_io.MIN_RECORDING_S} to {audio_io.MAX_RECORDING_S} seconds"
    with gr.Blocks(title="GPT-SoVITS", delete_cache=(600, 3600)) as demo:
        gr.Markdown(
            "# Say it in this voice\n"
            f"Give {limits} of a voice, and write down what is said there. The first sentence plays while the model "
            "still computes the others. The page opens with a synthetic voice. The metadata of the file that you can "
            "download say that it is synthetic speech. (The tiny model has learned short English and Mandarin "
            "sentences from another synthesizer. It shows how cloning works; its words are often hard to understand.)"
        )
        with gr.Row():
            with gr.Column():
                voice = gr.Audio(
                    str(example.recording),
                    label=f"Voice, {limits}",
                    sources=["microphone", "upload"],
                    type="filepath",
                    buttons=[],
                )
                words = gr.Textbox(
                    example.words, label="What is said in the recording", lines=2, max_length=MAX_WORDS_CHARACTERS
                )
                consent = gr.Checkbox(label=CONSENT)
                text = gr.Textbox(TEXTS[0], label="Text", lines=3, max_length=MAX_TEXT_CHARACTERS)
                with gr.Row():
                    language = gr.Dropdown(LANGUAGES, value="auto", label="Language of the text")
                    seed = gr.Number(0, precision=0, minimum=0, label="Seed")
                    speed = gr.Slider(MIN_SPEED, MAX_SPEED, 1.0, step=0.05, label="Speed")
                run = gr.Button("Say it", variant="primary")
            with gr.Column():
                first = gr.Audio(label="First sentence", interactive=False, autoplay=True, buttons=[])
                with gr.Row():
                    original = gr.Audio(label="The recording", interactive=False, buttons=[])
                    whole = gr.Audio(label="The clone: whole text", interactive=False, buttons=["download"])
                likeness = gr.Textbox(label="Likeness", lines=2, interactive=False)
                about_sound = gr.Textbox(label="Speed and notes", lines=2, interactive=False)
                bars = gr.Plot(show_label=False)
        names = [f"{x.label}{' (not in the training)' if x.new else ''}" for x in offered]
        shown = [[str(x.recording), x.words] for x in offered]
        gr.Examples(shown, [voice, words], label="Voices to try", examples_per_page=len(shown), example_labels=names)
        gr.Examples([[x] for x in TEXTS], [text], label="Texts to try")

        def respond(voice, words, consent, text, language, seed, speed) -> Iterator[tuple]:
            with shown_errors():
                check(voice, words, consent, text)
                options = {"language": language, "seed": seed, "speed": speed}
                yield from speak(_cloner(model, device), voice, words, text, Path(folder.name), offered, **options)

        def open_page() -> Iterator[tuple]:
            cloner, sample = _cloner(model, device), (str(example.recording), example.words)
            list(cloner.stream(TEXTS[0], *sample))  # loads dictionaries and compiles kernels; the times shown are later
            yield from speak(cloner, *sample, TEXTS[0], Path(folder.name), offered)

        inputs = [voice, words, consent, text, language, seed, speed]
        outputs = [first, original, whole, likeness, bars, about_sound]
        for event in (run.click, text.submit):
            event(respond, inputs, outputs, api_name="speak", concurrency_id="speak")
        demo.load(open_page, None, outputs, api_name=False, concurrency_id="speak")
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
    cloner: VoiceCloner,
    voice: str,
    words: str,
    text: str,
    folder: Path,
    others: Sequence[Voice],
    language: str = "auto",
    **options,
) -> Iterator[tuple[str | dict, Sound, str | None, str, Figure, str]]:
    """After every piece: the file of the first piece, the recording, the file of the whole, its likeness to the
    recording and to other voices, bars of the stages' times, and a text about the speed.

    The files are in `folder` and marked as synthetic; whole and likeness come at the end. Recording and whole have the
    same loudness. options: of `VoiceCloner.stream`, which raises the errors.
    """
    sounds = []
    for piece in cloner.stream(text, voice, words, language, "auto", **options):
        sounds.append(piece.samples)
        timings, rate = piece.timings, piece.sample_rate
        recording = audio_io.read(voice).at(rate)
        original = rate, to_int16(same_loudness(recording, rate))
        first = _written(folder / "first.wav", sounds, rate) if len(sounds) == 1 else gr.skip()  # which keeps playing
        yield first, original, None, "", stage_bars(timings), f"Sentence {len(sounds)} of {timings.pieces} ..."
    clone = np.concatenate(sounds)
    whole = _written(folder / "cloned.wav", [same_loudness(clone, rate)], rate)
    likeness = compare_voices(recording, clone, rate, others)
    yield gr.skip(), original, whole, likeness, stage_bars(timings), about(timings)


def compare_voices(recording: np.ndarray, clone: np.ndarray, rate: int, others: Sequence[Voice]) -> str:
    """How similar a clone is to the recording [S] of its voice, and to the most similar other voice."""
    encode = _voiceprint().embed
    own, cloned = (encode(resampled(samples, rate)) for samples in (recording, clone))
    cosines = {
        voice.label: cloned @ embedding
        for voice, embedding in ((x, _embedding(x.recording)) for x in others)
        if own @ embedding < SAME_RECORDING
    }
    nearest = max(cosines, key=cosines.get, default="")
    rival = f" and {cosines[nearest]:.2f} with {nearest}, the most similar other voice here" if nearest else ""
    return f"The clone has a cosine of {cloned @ own:.2f} with the recording{rival}. (1 is the same voice.)"


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


@cache
def _voiceprint() -> Voiceprint:
    return Voiceprint(prepare_encoder())


@cache
def _embedding(recording: Path) -> np.ndarray:
    return _voiceprint().embed(read(recording, SAMPLE_RATE))
