"""Tokens drawn step by step: the decoder with its cache against PyTorch, and the odds."""

import numpy as np
import pytest

from notebooks.gpt_sovits.network import checkpoint as files
from notebooks.gpt_sovits.network.pytorch_cloner import TorchDecoder
from notebooks.gpt_sovits.pipeline.token_decoder import MIN_TOKENS, SemanticDecoder, generate, penalised, probabilities
from tests.gpt_sovits.small import CODES, PHONES, WIDTH, drawn, ids
from utils.models import llm


@pytest.fixture(scope="module")
def decoder(ir) -> SemanticDecoder:
    return SemanticDecoder(ir, **llm.FP32_PROPERTIES)


@pytest.fixture
def in_pytorch(checkpoint) -> TorchDecoder:
    return TorchDecoder(files.load_t2s(checkpoint / "t2s"))


def sentence(phones: int, prompts: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """phones, bert, prompts."""
    return ids(phones, PHONES, seed)[0].numpy(), drawn(WIDTH, phones).numpy(), ids(prompts, CODES, seed + 1)[0].numpy()


@pytest.mark.parametrize(("phones", "prompts"), [(9, 5), (4, 1), (6, 0)])
def test_logits_are_those_of_pytorch(decoder, in_pytorch, phones, prompts):
    inputs = sentence(phones, prompts)
    assert np.abs(decoder.prefill(*inputs) - in_pytorch.prefill(*inputs)).max() < 2e-5
    for token in (3, 31, 3):
        assert np.abs(decoder.step(token) - in_pytorch.step(token)).max() < 2e-5


def test_a_sentence_is_forgotten_before_the_next(decoder):
    first = decoder.prefill(*sentence(7, 4))
    decoder.step(1)
    other = decoder.prefill(*sentence(5, 6, seed=3))
    assert np.abs(first - other).max() > 1e-2
    again = decoder.prefill(*sentence(7, 4))
    assert np.abs(first - again).max() < 1e-6


@pytest.mark.parametrize("top_k", [1, 15])
def test_what_is_said_is_what_pytorch_says(decoder, in_pytorch, top_k):
    inputs = sentence(8, 5)
    said = [generate(x, *inputs, np.random.default_rng(3), top_k=top_k, limit=30) for x in (decoder, in_pytorch)]
    assert said[0].tolist() == said[1].tolist() and MIN_TOKENS <= len(said[0]) <= 30
    assert said[0].dtype == np.int64 and (said[0] < CODES).all()


class Scripted:
    """Says what is written, then the end; the logits of what is not to be said are far below."""

    def __init__(self, script: list[int]) -> None:
        self.script = script

    def prefill(self, phones, bert, prompts) -> np.ndarray:
        self.place, self.heard = 0, []
        return self.logits()

    def step(self, token: int) -> np.ndarray:
        self.heard.append(token)
        self.place += 1
        return self.logits()

    def logits(self) -> np.ndarray:
        wanted = self.script[self.place] if self.place < len(self.script) else 9
        return np.where(np.arange(10) == wanted, 50.0, 0.0).astype(np.float32)


def inputs(prompts: int) -> tuple[np.ndarray, ...]:
    """For `Scripted`, which does not look at them."""
    return np.zeros(2, np.int64), np.zeros((1, 2), np.float32), np.arange(prompts)


def test_it_ends_where_the_end_is_said_but_not_at_once():
    script = [1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4]
    decoder = Scripted(script)
    assert generate(decoder, *inputs(2), np.random.default_rng(0)).tolist() == script == decoder.heard
    early = generate(Scripted([1, 9, 2]), *inputs(0), np.random.default_rng(0))
    assert len(early) == MIN_TOKENS and early[0] == 1 and early[2] == 2 and (early < 9).all()
    assert len(generate(Scripted([1] * 90), *inputs(2), np.random.default_rng(0), limit=20)) == 20


def test_what_was_said_is_less_likely():
    scores = penalised(np.float32([2, -2, 1, -1]), [0, 1, 1], 2.0)
    assert scores.tolist() == [1, -4, 1, -1]


def test_odds_of_three():
    scores = np.log([0.5, 0.3, 0.15, 0.05])
    assert np.allclose(probabilities(scores, 9, 1.0, 1.0), [0.5, 0.3, 0.15, 0.05])
    assert np.allclose(probabilities(scores, 2, 1.0, 1.0), [0.625, 0.375, 0, 0])
    assert np.allclose(probabilities(scores, 9, 0.85, 1.0), [0.625, 0.375, 0, 0])
    assert np.allclose(probabilities(scores, 9, 0.2, 1.0), [1, 0, 0, 0])
    assert np.allclose(probabilities(scores, 9, 0.85, 0.5), [0.25 / 0.34, 0.09 / 0.34, 0, 0])


def test_tokens_are_drawn_by_their_odds():
    class Even(Scripted):
        def logits(self) -> np.ndarray:
            return np.log(np.float32([0.6, 0.3, 0.1, 1e-9]))

    said = generate(Even([]), *inputs(0), np.random.default_rng(0), penalty=1.0, limit=1500)
    assert np.abs(np.bincount(said, minlength=3) / len(said) - [0.6, 0.3, 0.1]).max() < 0.04
