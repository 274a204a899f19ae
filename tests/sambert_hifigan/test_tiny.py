"""The trained checkpoint is small, a recogniser understands it, and the speaker encoder identifies its voices."""

import json

import numpy as np
import pytest

from notebooks.sambert_hifigan import data
from notebooks.sambert_hifigan.convert import voice
from notebooks.sambert_hifigan.measuring import quality
from notebooks.sambert_hifigan.pipeline import CONFIG, Synthesizer
from utils import paths
from utils.speech import judging, listening
from utils.speech.speaker_encoder import Voiceprint

TINY = paths.ROOT / "notebooks" / "sambert_hifigan" / "tiny"


@pytest.fixture(scope="module")
def synthesizer() -> Synthesizer:
    return Synthesizer(voice.prepare())


@pytest.fixture(scope="module")
def trials(synthesizer) -> list[data.Trial]:
    return data.trials(synthesizer.speakers, len(synthesizer.speakers))


@pytest.fixture(scope="module")
def sounds(synthesizer, trials) -> list[np.ndarray]:
    return [quality.ConvertedVoice(synthesizer).synthesize(trial) for trial in trials]


def test_it_is_small_and_has_several_voices(synthesizer):
    assert sum(file.stat().st_size for file in TINY.rglob("*") if file.is_file()) < 10e6
    assert len(synthesizer.speakers) >= 3
    assert json.loads((voice.prepare() / CONFIG).read_text(encoding="utf-8"))["sines"]


def test_a_recogniser_understands_it(trials, sounds):
    recognise = listening.Recogniser(listening.prepare_recogniser())
    heard, texts = judging.transcripts(sounds, recognise), [trial.text for trial in trials]
    rng = np.random.default_rng(0)
    rates = [
        judging.error_rate(heard, said, quality.syllables)
        for said in (texts, [quality.shuffled(text, rng) for text in texts])
    ]
    assert rates[0] < 0.35 and rates[1] > 0.6


def test_every_sentence_is_nearest_to_the_voice_that_was_asked_for(trials, sounds):
    voiceprint = Voiceprint(listening.prepare_encoder())
    known = {file.stem: np.load(file) for file in (TINY / "am" / "speakers").glob("*.npy")}
    share, _ = judging.ranking(np.stack([voiceprint.embed(x) for x in sounds]), [x.speaker for x in trials], known)
    assert share >= 0.8
