"""The demo: its functions, over gradio_client, and in a real browser, with a small random voice."""

import re
import wave
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from gradio_client import Client, handle_file

from notebooks.sambert_hifigan import demo
from notebooks.sambert_hifigan.pipeline import Spoken
from tests.sambert_hifigan.small import NAMES, RATE, embedding
from utils.paths import ROOT
from utils.speech import sound

ABOUT = re.compile(
    r"^(\d+) sentences?, \d+\.\d s of speech. The first sentence was ready after \d+\.\d\d s, all of them after "
    r"\d+\.\d\d s: \d+\.\d times real time\.$"
)
TEXT = "今天天气很好。你好！"


@pytest.fixture(scope="module")
def voice(synthesizers):
    return synthesizers["se"]


@pytest.fixture(scope="module", autouse=True)
def small(voice):
    """A random voice in the place of the tiny one; whoever is recorded sounds like the second of its speakers."""

    def embed(recording: np.ndarray, sample_rate: int) -> np.ndarray:
        assert sample_rate == 16_000 and recording.ndim == 1
        if len(recording) < 3 * sample_rate:
            raise ValueError("The recording has 1.0 seconds of speech. Say 3 or more.")
        return embedding(1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "_synthesizer", lambda model, device: voice)
        patch.setattr(demo, "_voiceprint", lambda: embed)
        patch.setattr(demo, "EMBEDDING_SIZE", 6)
        yield


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("recordings")
    samples = sound.read(ROOT / "notebooks" / "sambert_hifigan" / "samples" / "recording.mp3", 16_000, 5)
    paths = {"long": folder / "long.wav", "short": folder / "short.wav"}
    sound.write_wav(paths["long"], samples, 16_000)
    sound.write_wav(paths["short"], samples[:16_000], 16_000)
    return paths


@pytest.fixture(scope="module")
def address(serve_demo):
    return serve_demo(demo.make_demo())


def played(html: str) -> np.ndarray:
    """The samples int16 in a player."""
    (data,) = re.findall('data:audio/wav;base64,([^"]+)', html)
    with wave.open(BytesIO(b64decode(data))) as file:
        assert file.getframerate() == RATE
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def test_the_first_sentence_comes_first(voice):
    one, two, end = demo.speak(voice, TEXT, NAMES[0])
    expected = [spoken.samples for spoken in voice.stream(TEXT, NAMES[0])]
    first = played(one[0])
    assert np.abs(first / 32767 - expected[0].clip(-1, 1)).max() < 1e-4 and "autoplay" in one[0]
    assert one[1] is two[1] is None and not isinstance(two[0], str) and not isinstance(end[0], str)
    assert len(end[1][1]) == sum(map(len, expected)) and ABOUT.match(end[4])[1] == "2"
    assert (played(end[2]) == end[1][1]).all() and "autoplay" not in end[2]
    assert two[2] in end[2] and one[2].removesuffix("</div>") in two[2]


def test_all_at_once_comes_once(voice):
    ((first, whole, html, picture, told),) = demo.speak(voice, TEXT, NAMES[0], piecewise=False)
    assert len(whole[1]) > len(played(first)) > 0 and ABOUT.match(told) and html.count("<p>") == 2 and picture.axes
    assert "autoplay" in html and "autoplay" not in first


def test_the_speed_is_that_of_the_speech(voice):
    slow, fast = (list(demo.speak(voice, "你好", NAMES[0], speed))[-1][1][1] for speed in (0.5, 2.0))
    assert len(slow) > 2.5 * len(fast)


def test_times_stand_under_characters_and_markup_is_text():
    durations = [("好", 10), ("<b>", 20), ("#1", 4), ("#3", 6), ("#4", 0)]
    spoken = Spoken("", np.zeros(4000, np.float32), 1000, np.zeros((2, 40)), durations)
    html = demo.timeline([spoken, spoken])
    pattern = r'data-begin="([\d.]+)" data-end="([\d.]+)"><b>(.*?)</b><small>(\d+)</small>'
    found = re.findall(pattern, html)
    assert [(text, ms) for *_, text, ms in found[:4]] == [
        ("好", "1000"),
        ("&lt;b&gt;", "2000"),
        ("·", "400"),
        (",", "600"),
    ]
    times = [(float(begin), float(end)) for begin, end, *_ in found]
    assert times[:4] == [(0, 1), (1, 3), (3, 3.4), (3.4, 4)] and times[4:] == [(b + 4, e + 4) for b, e in times[:4]]
    assert html.count("<p>") == 2


def test_the_speech_is_described_in_words():
    spoken = Spoken("", np.zeros(4000, np.float32), 1000, np.zeros((2, 40)), [])
    assert demo.about([spoken, spoken], 0.5, 2.0) == (
        "2 sentences, 8.0 s of speech. The first sentence was ready after 0.50 s, all of them after 2.00 s: "
        "4.0 times real time."
    )
    assert demo.about([spoken], 0.5, 2.0).startswith("1 sentence, 4.0 s")


def test_every_voice_says_the_first_sentence(voice):
    html = demo.every_voice(voice, TEXT)
    assert html.count("<audio") == len(NAMES) and "autoplay" not in html
    assert re.findall("<strong>(.*?)</strong>", html) == NAMES
    sounds = re.findall('data:audio/wav;base64,[^"]+"', html)
    first = next(voice.stream(TEXT, NAMES[1])).samples
    assert np.abs(played(sounds[1]) / 32767 - first.clip(-1, 1)).max() < 1e-4
    assert demo.describe("xiaoyi") == "Xiaoyi, a woman"


def test_a_voice_is_imitated_only_with_consent(recordings):
    assert (demo.embed_recording(str(recordings["long"]), True) == embedding(1)).all()
    with pytest.raises(ValueError, match="only with consent"):
        demo.embed_recording(str(recordings["long"]), False)
    with pytest.raises(ValueError, match="has 1.0 seconds of speech"):
        demo.embed_recording(str(recordings["short"]), True)


def test_only_so_much_of_a_recording_is_read(recordings, monkeypatch):
    heard = []
    monkeypatch.setattr(demo, "MAX_RECORDING_S", 2)
    monkeypatch.setattr(demo, "_voiceprint", lambda: lambda recording, rate: heard.append(len(recording) / rate))
    demo.embed_recording(str(recordings["long"]), True)
    assert heard == [pytest.approx(2, abs=0.3)]


def test_what_is_missing_or_too_long_is_a_sentence(voice):
    for text, sentence in (("", "There is nothing to say"), ("好" * 501, "has 501 characters, and the demo takes 500")):
        with pytest.raises(ValueError, match=sentence):
            list(demo.speak(voice, text, NAMES[0]))


def test_own_voices_are_offered_only_where_they_can_be_had(voice, synthesizers):
    assert demo._takes_recordings(voice) and not demo._takes_recordings(synthesizers["plain"])


def test_a_client_gets_sounds_and_sentences(address, recordings):
    client = Client(address, verbose=False)
    long, short = (handle_file(recordings[name]) for name in ("long", "short"))

    def ask(text=TEXT, voice=NAMES[0], recording=None, consent=False):
        return client.predict(text, voice, 1.0, demo.WHOLE, recording, consent, api_name="/speak")

    _, whole, html, _, told = ask()
    with wave.open(whole) as file:
        named = file.readframes(file.getnframes())
        assert file.getframerate() == RATE
    assert ABOUT.match(told)[1] == "2" and "<b>今</b>" in html and len(played(html)) > 0
    _, whole, *_ = ask(recording=long, consent=True)
    _, second, *_ = ask(voice=NAMES[1])
    assert Path(whole).read_bytes() == Path(second).read_bytes() and Path(second).read_bytes()[44:] != named
    for sentence, given in (
        ("There is nothing to say", {"text": " "}),
        ("characters that cannot be said", {"text": "ひらがな"}),
        ("only with consent", {"recording": long}),
        ("has 1.0 seconds of speech", {"recording": short, "consent": True}),
    ):
        with pytest.raises(Exception, match=sentence):
            ask(**given)


def test_a_visitor_hears_an_answered_example_then_a_text(address, visit):
    from playwright.sync_api import expect

    with visit(address, height=1800) as page:
        text, about = page.get_by_label("Text").first, page.get_by_label("About the speech")
        expect(about).to_have_value(ABOUT, timeout=180_000)
        expect(page.locator(".voices .speech audio")).to_have_count(len(NAMES), timeout=180_000)
        example = about.input_value()

        text.fill(" ")
        page.get_by_role("button", name="Speak", exact=True).click()
        expect(page.get_by_text("There is nothing to say").first).to_be_visible(timeout=180_000)
        text.fill(TEXT)
        page.get_by_role("button", name="Speak", exact=True).click()
        expect(about).not_to_have_value(example, timeout=180_000)
        expect(about).to_have_value(ABOUT, timeout=180_000)
        expect(page.locator(".character b").first).to_have_text("今")

        # at 0.02 s the first character is spoken, and marked
        sound = page.locator(".speech audio").nth(1)
        sound.evaluate("sound => { Object.defineProperty(sound, 'currentTime', {value: 0.02}); sound.onplay(); }")
        expect(page.locator(".character.now")).to_have_count(1)
        expect(page.locator(".character.now b")).to_have_text("今")
        page.get_by_role("gridcell", name=demo.TEXTS[1]).click()
        expect(text).to_have_value(demo.TEXTS[1], timeout=180_000)
