"""PyTorch synthesizes what the pipeline does: the same tokens, and sounds as near as rounding allows."""

import numpy as np
import pytest

from notebooks.gpt_sovits.network.pytorch_cloner import PyTorchCloner
from notebooks.gpt_sovits.pipeline import VoiceCloner
from tests.gpt_sovits import small, standin
from utils.models import llm

WORDS = "The words that are said in the recording"
RATE, HOP = 1000, 20

pytestmark = pytest.mark.usefixtures("frontend")


@pytest.fixture
def pytorch(checkpoint) -> PyTorchCloner:
    return PyTorchCloner(checkpoint)


@pytest.fixture
def cloner(ir) -> VoiceCloner:
    return VoiceCloner(ir, **llm.FP32_PROPERTIES)


def both(pytorch, cloner, *given, **options):
    return (list(speaker.stream(*given, **options)) for speaker in (pytorch, cloner))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("Good morning to you. 你好，今天天气很猫。", {"top_k": 1}),
        ("Go", {"top_k": 1, "speed": 1.3}),
        ("今天天气很好。It is late.", {"seed": 5, "top_p": 1.0, "temperature": 1.0, "speed": 0.7}),
        ("Good morning to you.", {"seed": 2, "split": "none"}),
    ],
    ids=["greedy", "short", "drawn", "by default"],
)
def test_tokens_are_the_same_and_sounds_near(text, options, pytorch, cloner, voice):
    ours, theirs = both(pytorch, cloner, text, voice, WORDS, "auto", **options)
    assert [x.text for x in ours] == [x.text for x in theirs] and ours
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.tokens.tolist() == other.tokens.tolist() and len(set(mine.tokens.tolist())) > 1
        assert mine.samples.shape == other.samples.shape and mine.samples.dtype == np.float32
        assert mine.samples.std() > 0.01 and mine.sample_rate == other.sample_rate == RATE
        assert np.abs(mine.samples - other.samples).max() < 1e-3 * np.abs(other.samples).max()


@pytest.mark.parametrize("seed", [0, 3])
def test_given_tokens_are_said_with_the_noise_that_follows_them(seed, pytorch, cloner, voice):
    given = "Yes it is. No it is not.", voice, WORDS
    spoken = list(cloner.stream(*given, seed=seed, top_k=40, top_p=1.0, temperature=3.0))
    assert cloner.timings.notes == []  # the end was drawn
    again = list(pytorch.stream(*given, seed=seed, tokens=[x.tokens for x in spoken]))
    for mine, other in zip(again, spoken, strict=True):
        assert mine.tokens is other.tokens
        assert np.abs(mine.samples - other.samples).max() < 1e-3 * np.abs(other.samples).max()


def test_a_voice_that_finds_no_end_leaves_the_same_noise(pytorch, cloner, voice, monkeypatch):
    monkeypatch.setattr("notebooks.gpt_sovits.pipeline.cloner.SPARE_TOKENS", -60)
    given = "Yes it is.", voice, WORDS
    (spoken,) = cloner.stream(*given, top_k=1)
    assert len(spoken.tokens) == 20 and cloner.timings.notes[0].startswith("The voice found no end")
    (again,) = pytorch.stream(*given, tokens=[spoken.tokens])
    assert np.abs(again.samples - spoken.samples).max() < 1e-3 * np.abs(spoken.samples).max()


def test_pieces_may_be_changed_before_they_are_said(pytorch, voice):
    """Those of the recording stay."""
    changed = []

    def backwards(pieces):
        changed.append(pieces)
        return [piece._replace(phones=piece.phones[::-1].copy()) for piece in pieces]

    given = "Good morning to you.", voice, WORDS
    (plain,), (other,) = (list(pytorch.stream(*given, top_k=1, **x)) for x in ({}, {"change": backwards}))
    assert [piece.text for pieces in changed for piece in pieces] == ["Goodmorningtoyou."]
    assert plain.tokens.tolist() != other.tokens.tolist()


def test_v2pro_knows_the_speaker(voice, tmp_path):
    pytorch = PyTorchCloner(small.checkpoint(tmp_path, version="v2Pro"))
    embeddings = (small.drawn(20480).numpy() * scale for scale in (0.1, 0.2))
    one, other = (next(pytorch.stream("Yes it is.", voice, WORDS, speaker=x, top_k=1)) for x in embeddings)
    assert one.tokens.tolist() == other.tokens.tolist() and np.abs(one.samples - other.samples).max() > 1e-4


def test_without_bert_chinese_has_no_features(voice, tmp_path):
    folder = small.checkpoint(tmp_path)
    with_bert = PyTorchCloner(folder).features(chinese())
    for file in (folder / "bert").iterdir():
        file.unlink()
    without = PyTorchCloner(folder).features(chinese())
    assert with_bert.shape == without.shape == (small.WIDTH, 4) and with_bert.any() and not without.any()


def chinese():
    return standin.Frontend("v2").pieces("你好", "zh")[0]
