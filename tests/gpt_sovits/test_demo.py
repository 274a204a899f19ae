"""The demo: its functions, over gradio_client, and in a real browser, with a small random voice."""

import re
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from gradio_client import Client, handle_file

from notebooks.gpt_sovits import demo
from notebooks.gpt_sovits.data.voices import Voice
from notebooks.gpt_sovits.pipeline import Timings, VoiceCloner
from notebooks.gpt_sovits.pipeline.audio_io import is_marked
from tests.gpt_sovits import standin
from utils.speech.sound import mp3, read, same_loudness

WORDS = "The words that are said in the recording"
TEXT = "Yes it is. No it is not."
TOLD = re.compile(r"^\d+\.\d s of speech, \d+ tokens at \d+ a second; a second of sound took \d+\.\d\d s\.")
LIKENESS = re.compile(r"The clone has a cosine of -?\d\.\d\d with the recording\. \(1 is the same voice\.\)")
RATE = 1000


@pytest.fixture(scope="module", autouse=True)
def cloner(ir):
    """A random model in the place of the tiny one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "notebooks.gpt_sovits.pipeline.frontend", standin)
        made = VoiceCloner(ir)
        patch.setattr(demo, "_cloner", lambda model, device: made)
        yield made


@pytest.fixture(scope="module")
def recordings(voice, tmp_path_factory) -> dict[str, str]:
    """A good one, a short one and none at all."""
    folder = tmp_path_factory.mktemp("recordings")
    samples, rate = voice
    for name, said in (("good", samples), ("short", samples[:rate])):
        with wave.open(str(folder / f"{name}.wav"), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes((said / 2 * 32767).astype("<i2").tobytes())
    (folder / "broken.wav").write_bytes(b"RIFF, but no sound at all")
    return {path.stem: str(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def samples(voice, tmp_path_factory) -> Path:
    """A folder of voices as the room has one."""
    folder = tmp_path_factory.mktemp("samples")
    (folder / "someone.mp3").write_bytes(mp3(*voice))
    (folder / "someone.txt").write_text(WORDS, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def address(samples, serve_demo):
    return serve_demo(demo.make_demo(samples=samples))


def test_a_voice_is_cloned_only_with_consent():
    demo.check("voice.wav", WORDS, True, TEXT)
    for consent in (False, None, "yes"):
        with pytest.raises(ValueError, match=f'cloned only with consent. Tick "{demo.CONSENT}"'):
            demo.check("voice.wav", WORDS, consent, TEXT)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((None, WORDS, True, TEXT), "There is no voice yet"),
        (("voice.wav", "x" * 201, True, TEXT), "The words of the recording have 201 characters; up to 200 are read"),
        (("voice.wav", WORDS, True, "x" * 401), "The text has 401 characters; up to 400 are read"),
    ],
)
def test_what_is_missing_or_too_long_is_a_sentence(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        demo.check(*given)


def test_the_first_piece_comes_first_and_both_files_are_marked(cloner, recordings, tmp_path):
    options = {"language": "en", "seed": 3, "speed": 1.0}
    one, two, end = demo.speak(cloner, recordings["good"], WORDS, TEXT, tmp_path, [], **options)
    pieces = [x.samples for x in cloner.stream(TEXT, recordings["good"], WORDS, seed=3)]
    assert one[2] is two[2] is None and (one[5], two[5]) == ("Sentence 1 of 2 ...", "Sentence 2 of 2 ...")
    assert not isinstance(two[0], str) and not isinstance(end[0], str) and TOLD.match(end[5])
    for path, samples in ((one[0], pieces[0]), (end[2], same_loudness(np.concatenate(pieces), RATE))):
        with wave.open(path) as file:
            assert is_marked(path) and file.getframerate() == RATE
            written = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767
        assert written.shape == samples.shape and np.abs(written - samples.clip(-1, 1)).max() < 1e-4
    assert len(end[4].axes[0].patches) == 7
    rate, original = end[1]
    assert rate == RATE and len(original) == 4 * RATE and abs(original).max() > 3000
    assert LIKENESS.fullmatch(end[3])


def test_the_most_similar_other_voice_is_named(voice, tmp_path):
    samples, rate = voice
    noise = 0.1 * np.random.default_rng(0).standard_normal(len(samples)).astype(np.float32)
    (tmp_path / "new_bm_george.mp3").write_bytes(mp3(samples, rate))
    (tmp_path / "af_heart.mp3").write_bytes(mp3(noise, rate))
    others = [Voice(path.stem, path, WORDS, "en") for path in tmp_path.iterdir()]
    recording = read(tmp_path / "new_bm_george.mp3", rate)
    found = demo.compare_voices(recording, recording, rate, others)
    assert re.match("The clone has a cosine of 1.00 with the recording and 0.* with Heart, American woman", found)


def test_notes_are_told():
    figures = Timings(1, 50, 2.0, {"tokens": 0.5, "synthesizer": 0.5}, ["The voice found no end."])
    assert demo.about(figures) == (
        "2.0 s of speech, 50 tokens at 100 a second; a second of sound took 0.50 s. The voice found no end."
    )


def test_a_client_gets_marked_sounds_and_sentences(address, recordings):
    client = Client(address, verbose=False)

    def ask(voice="good", words=WORDS, consent=True, text=TEXT, language="en", seed=0, speed=1.0):
        given = handle_file(recordings[voice]) if voice else None
        return client.predict(given, words, consent, text, language, seed, speed, api_name="/speak")

    _, _, whole, likeness, _, told = ask()
    assert is_marked(whole) and TOLD.match(told)
    assert likeness.startswith("The clone has a cosine of")
    again, other, fast = (ask(**given)[2] for given in ({}, {"seed": 1}, {"speed": 2.0}))
    same, changed, shorter = (Path(x).read_bytes() for x in (again, other, fast))
    assert same == Path(whole).read_bytes() != changed and len(shorter) < 0.7 * len(same)
    for sentence, given in (
        ("only with consent", {"consent": False}),
        ("There is no voice yet", {"voice": None}),
        ("short.wav is too short: 1.0 s", {"voice": "short"}),
        ("cannot be read as sound", {"voice": "broken"}),
        ("The text of the recording has no words", {"words": " "}),
        ("The text has no words", {"text": "..."}),
        ("Nobody can say", {"text": "A ☃."}),
    ):
        with pytest.raises(Exception, match=sentence):
            ask(**given)


def test_a_visitor_hears_a_clone_only_with_consent(address, visit):
    from playwright.sync_api import expect

    with visit(address, height=1600) as page:
        about = page.get_by_label("Speed and notes")
        expect(about).to_have_value(TOLD, timeout=180_000)  # the example that the page opens with
        expect(page.get_by_label("Likeness")).to_have_value(re.compile("cosine"))
        opened = about.input_value()
        page.get_by_role("button", name="Someone").click()
        words, text = page.get_by_label("What is said in the recording"), page.get_by_label("Text", exact=True)
        expect(words).to_have_value(WORDS, timeout=180_000)
        text.fill(TEXT)
        page.get_by_role("button", name="Say it").click()
        expect(page.get_by_text("only with consent").first).to_be_visible(timeout=180_000)
        page.get_by_label(demo.CONSENT).check()
        page.get_by_role("button", name="Say it").click()
        expect(about).not_to_have_value(opened, timeout=180_000)
        expect(about).to_have_value(TOLD, timeout=180_000)
        expect(page.get_by_role("link", name="Download").last).to_be_visible(timeout=180_000)
