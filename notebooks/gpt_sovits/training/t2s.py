"""How the tiny decoder of tokens is trained: to go on after one or two other sentences of the same voice.

It sees all phones at once; one head of some layers is taught which is due. From whole sentences alone it would learn
what follows what sooner than where it is: most batches are of excerpts. B: batch, T: rows, C: BERT's channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from notebooks.gpt_sovits.network.t2s import Layer, Text2SemanticDecoder, visible
from notebooks.gpt_sovits.training.bert import IGNORED, share
from notebooks.gpt_sovits.training.guided_attention import Gaze
from utils.training.loop import half, matrices, optimise

STEPS, RATE, SEED = 4000, 2e-3, 5
BATCH = 16  # pairs of whole sentences in a step; of excerpts as many as are as long together
WHOLE, SHORTEST = 0.25, 0.2  # of the batches have whole references, or sentences; shares of the others' phones
MISTOLD = 0.2  # of the tokens that the decoder is told are others: its own will not all be right
LONGER = 0.2  # of the references are two sentences
DROPOUT = 0.1  # of the embeddings
GUIDED = (1, 2, 3)  # layers whose first head is taught where to look
GUIDANCE = 2.0  # weight of that


class Score(NamedTuple):
    """A sentence of P phones and its N tokens."""

    voice: str
    phones: Tensor  # [P] int64
    bert: Tensor  # [C, P]
    tokens: Tensor  # [N] int64
    prompt: Tensor  # [M] int64, tokens of the sentence with the silence that a reference has behind it
    places: Tensor  # [M] int64, which of the phones is said there; the first N are of `tokens`, too


def joined(one: Score, other: Score) -> Score:
    """Two sentences of a voice as one."""
    phones, bert = torch.cat([one.phones, other.phones]), torch.cat([one.bert, other.bert], 1)
    tokens, prompt = (torch.cat([one.tokens, x]) for x in (other.tokens, other.prompt))
    places = torch.cat([one.places[: len(one.tokens)], other.places + len(one.phones)])
    return Score(one.voice, phones, bert, tokens, prompt, places)


def excerpt(one: Score, share: float, rng: np.random.Generator) -> Score:
    """What is said of consecutive phones, this share of all; the silence belongs to the last."""
    count = max(1, round(share * len(one.phones)))
    begin = int(rng.integers(len(one.phones) - count + 1))
    said = (one.places >= begin) & (one.places < begin + count)
    if not said[: len(one.tokens)].any():  # too short for a token
        return one
    phones = slice(begin, begin + count)
    tokens, prompt = one.tokens[said[: len(one.tokens)]], one.prompt[said]
    return Score(one.voice, one.phones[phones], one.bert[:, phones], tokens, prompt, one.places[said] - begin)


class Pairs:
    """A sentence after one or two others of the same voice; each draw is a function of the generator passed in."""

    def __init__(self, scores: Sequence[Score]) -> None:
        self.scores, self.voices = scores, {}
        for i, one in enumerate(scores):
            self.voices.setdefault(one.voice, []).append(i)

    def draw(self, count: int, rng: np.random.Generator) -> list[tuple[Score, Score]]:
        """Pairs of reference and sentence."""
        found = []
        for i in rng.integers(len(self.scores), size=count):
            others = [self.scores[j] for j in self.voices[self.scores[i].voice] if j != i] or [self.scores[i]]
            reference = others[rng.integers(len(others))]
            if rng.random() < LONGER:
                reference = joined(others[rng.integers(len(others))], reference)
            found.append((reference, self.scores[i]))
        return found

    def excerpts(self, rng: np.random.Generator) -> list[tuple[Score, Score]]:
        """Pairs for a step: the same share of all references, and of all sentences, so that there is little padding."""
        first, second = (1.0 if rng.random() < WHOLE else rng.uniform(SHORTEST, 1) for _ in range(2))
        drawn = self.draw(int(2 * BATCH / (first + second)), rng)
        return [(excerpt(reference, first, rng), excerpt(one, second, rng)) for reference, one in drawn]


class Continued(NamedTuple):
    """What a decoder makes of pairs, and what it should have."""

    logits: Tensor  # [B, T, tokens]
    labels: Tensor  # [B, T] int64: at the last phone the first token, at every token the next, at the last one the end
    places: Tensor  # [B, T] int64, which phone is said at the label; both are IGNORED elsewhere


def continued(
    network: Text2SemanticDecoder, pairs: Sequence[tuple[Score, Score]], rng: np.random.Generator, told: float = 0.0
) -> Continued:
    """Run the decoder over pairs: rows are the phones of both, the tokens of both, then padding, which no other sees.

    told: share of the tokens that the network is told are others, drawn at random; labels are always true. In training
    some of the embeddings are dropped.
    """
    rows, labels, places, lengths = [], [], [], []
    for reference, one in pairs:
        _, phones, bert, tokens, _, said = joined(reference._replace(tokens=reference.prompt), one)
        wrong = torch.from_numpy(rng.random(len(tokens)) < told)
        other = torch.from_numpy(rng.integers(network.eos, size=len(tokens)))
        text = network.embed_text(phones[None], bert[None])[0]
        audio = network.embed_audio(torch.where(wrong, other, tokens)[None], torch.arange(len(tokens))[None])[0]
        rows.append(torch.cat([text, audio]))
        before, last = len(phones) - 1, tokens.new_tensor([network.eos])
        labels.append(F.pad(torch.cat([tokens, last]), (before, 0), value=IGNORED))
        said = said[: len(tokens)]
        places.append(F.pad(torch.cat([said, said[-1:]]), (before, 0), value=IGNORED))
        lengths.append(len(phones))
    x = F.dropout(pad_sequence(rows, batch_first=True), DROPOUT, network.training)
    mask = visible(x.shape[1], x.shape[1], torch.tensor(lengths)[:, None, None])[0, 0][:, None]
    hidden, _ = network.run(x, mask, network.empty(len(x)))
    padded = (pad_sequence(values, batch_first=True, padding_value=IGNORED) for values in (labels, places))
    return Continued(network.ar_predict_layer(hidden), *padded)


def looks(layer: Layer, x: Tensor, mask: Tensor, *_: Tensor) -> Tensor:
    """Logits [B, 1, T, T] of where the first head of a layer looks; x: [B, T, D], mask: [B, 1, T, T]."""
    both, width = 2 * x.shape[-1], x.shape[-1] // layer.heads
    rows = F.linear(x, layer.self_attn.in_proj_weight[:both], layer.self_attn.in_proj_bias[:both])
    query, key = (y[:, None, :, :width] for y in rows.chunk(2, -1))
    return (query @ key.mT / width**0.5).masked_fill(~mask, -torch.inf)


def learn_to_continue(work: Path, network: Text2SemanticDecoder, pairs: Pairs) -> None:
    """Teach the decoder the tokens of both sentences, the end, and which phone is due."""
    guided = [layer for i, layer in enumerate(network.h["layers"]) if i in GUIDED]

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        drawn = pairs.excerpts(rng)
        torch.manual_seed(int(rng.integers(2**31)))
        with half(), Gaze(guided, looks) as gaze:
            logits, labels, places = continued(network, drawn, rng, MISTOLD)
        elsewhere, right = gaze.wrong(places)
        wrong = F.cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=IGNORED)
        parts = {"loss": wrong + GUIDANCE * elsewhere, "tokens": wrong, "gaze": elsewhere}
        return parts | {"tokens right": share(logits, labels), "gaze right": right}

    optimise(work / "t2s.pt", network, loss, steps=STEPS, rate=RATE, seed=SEED, muon=matrices(network.h))
