"""espeak-ng's phonemes have their true times; what it cannot do is an error."""

import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from utils.speech import espeak
from utils.speech.espeak import PAUSE, synthesise
from utils.speech.sentences.english import HELD_OUT, TRAINING
from utils.speech.speaker_encoder import SAMPLE_RATE


def test_phonemes_follow_each_other_to_the_end_of_the_sound():
    for text in TRAINING[:20] + HELD_OUT:
        one = synthesise(text)
        assert one.phonemes[0][1] == 0
        assert all(before[2] == after[1] for before, after in pairwise(one.phonemes))
        assert one.phonemes[-1][2] == pytest.approx(one.seconds, abs=1e-4)


# of both kinds of synthesis, high and low; f3 has an echo
@pytest.mark.parametrize("variant", ["m3", "f1", "f3", "Andrea", "m5", "shelby", "klatt3", "Alex"])
def test_the_times_are_those_of_the_sound(variant):
    """Pauses are silent, sibilants hiss, and the silence of p, t and k is counted to them."""
    said = synthesise("Sap, a puppet, tatty, pick a sock.", "en-us", variant)
    loud, quiet = np.abs(said.samples).max(), 0
    for (before, _, _), (symbol, begin, end) in pairwise(said.phonemes):
        part = said.samples[round(begin * SAMPLE_RATE) : round(end * SAMPLE_RATE)]
        if symbol == PAUSE and end - begin > 0.1:
            assert np.abs(part[len(part) * 3 // 4 :]).max() < 0.01 * loud
        if symbol == "s":
            middle = part[len(part) // 4 : -len(part) // 4]
            assert np.mean(np.diff(np.sign(middle)) != 0) > 0.4  # crossings of zero: noise, not voice
        if symbol in ("p", "t", "k") and before != PAUSE:
            quiet += 1
            assert np.abs(part[len(part) // 8 : len(part) // 5]).max() < 0.05 * loud
            assert np.abs(part[len(part) // 5 :]).max() > 0.03 * loud  # the burst
    assert quiet > 4


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not unload libraries")
def test_what_was_said_before_changes_nothing():
    def say() -> np.ndarray:
        return synthesise("Put the mop away.", "en-us", "m3").samples

    first = say()
    synthesise("Few people knew that.", "en-us", "f3", rate=200)
    np.testing.assert_array_equal(say(), first)


def test_rate_and_pitch():
    slow, fast = (synthesise("A lawn of yarn.", "en-us", "m3", rate=rate) for rate in (100, 200))
    assert slow.seconds > 1.4 * fast.seconds

    def pitch(setting):
        vowel = synthesise("aah", "en-us", "m3", rate=80, pitch=setting).samples[1600:4800]
        alike = np.correlate(vowel, vowel, "full")[len(vowel) - 1 :]
        return SAMPLE_RATE / (64 + alike[64:300].argmax())  # Hz

    assert 1.15 * pitch(30) < pitch(60) < pitch(90) / 1.15


def test_settings_make_another_voice():
    def centre(settings: str) -> float:
        """The centre of the spectrum of a vowel, in Hz."""
        vowel = synthesise("aah", rate=80, settings=settings).samples[1600:8000]
        power = np.abs(np.fft.rfft(vowel)) ** 2
        return (power @ np.fft.rfftfreq(len(vowel), 1 / SAMPLE_RATE)) / power.sum()

    raised = "\n".join(f"formant {number} 130" for number in range(1, 6))
    assert centre(raised) > 1.15 * centre("")
    plain, same = (synthesise("A lawn of yarn.", settings=settings) for settings in ("", "pitch 82 118"))
    assert plain.phonemes[0][0] == same.phonemes[0][0] and len(plain.phonemes) == len(same.phonemes)


def test_settings_that_espeak_cannot_read_are_told(monkeypatch):
    library = SimpleNamespace(espeak_SetVoiceByFile=lambda path: 1)
    with pytest.raises(OSError, match="could not read .*TMPDIR"):
        espeak._change_voice(library, "en-us", "pitch 80 120")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("",), "nothing to say"),
        ((" ?! ",), "nothing to say"),
        (("Hello", "xx"), "no voice 'xx'"),
        (("Hello", "en-us", "nobody"), "no variant 'nobody'"),
        (("Hello", "en-us", "m1", 20), "80 to 450"),
        (("Hello", "en-us", "m1", 170, 50, "pitch 80 130"), "replace the variant"),
        (("Hello", "en-us", "m1", 170, 101), "0 to 100"),
    ],
)
def test_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        synthesise(*arguments)


def test_a_damaged_installation_is_told(monkeypatch):
    unloaded = []
    without_data = SimpleNamespace(_handle=7, espeak_Initialize=lambda *arguments: 0)
    monkeypatch.setattr(espeak.ctypes, "CDLL", lambda path: without_data)
    monkeypatch.setattr(espeak, "_unload", unloaded.append)
    with pytest.raises(OSError, match="found no voices in .*espeak-ng-data: install"):
        synthesise("Hello")
    assert unloaded == [7]
