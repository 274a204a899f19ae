"""Trains the tiny token decoder to continue after one or two other sentences of the same voice.

It attends to all phonemes at once; one head in some layers is taught which phoneme is next. From whole sentences alone
it learns a language model of tokens sooner than the alignment, so most batches are of excerpts. B: batch, T: rows, P:
phonemes, N: tokens, C: BERT's channels, D: width of the decoder, H: its heads, V: its vocabulary.
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

from notebooks.gpt_sovits.network.t2s import Layer, Text2SemanticDecoder, prefix_mask
from notebooks.gpt_sovits.training.guided_attention import GuidedAttention
from notebooks.gpt_sovits.training.labels import IGNORED, accuracy
from utils.training.loop import autocast, matrices, optimise

STEPS, LEARNING_RATE, SEED = 4000, 2e-3, 5
BATCH = 16  # pairs of whole sentences in a batch; of excerpts as many as are as long together
WHOLE_SHARE = 0.25  # of the batches have whole references, or sentences
MIN_EXCERPT_SHARE = 0.2  # of the phonemes of a sentence in the other batches
CORRUPTED_SHARE = 0.2  # of the input tokens are random in training, for generated ones are not all right
DOUBLE_SHARE = 0.2  # of the references are two sentences
DROPOUT = 0.1  # of the embeddings
GUIDED_LAYERS = (1, 2, 3)  # their first head has guided attention
GUIDANCE_WEIGHT = 2.0  # of that loss
TOP_K, GUESSES = 15, 4  # tokens that are drawn from, as in inference, and drawn, for the synthesizer's training


class TokenizedSentence(NamedTuple):
    """A sentence of P phonemes and its N tokens."""

    voice: str
    phones: Tensor  # [P] int64
    bert: Tensor  # [C, P]
    tokens: Tensor  # [N] int64
    prompt: Tensor  # [M] int64, tokens of the sentence with the silence that follows a reference
    alignment: Tensor  # [M] int64, the index of the phoneme at each token; the first N are of `tokens`, too


def joined(one: TokenizedSentence, other: TokenizedSentence) -> TokenizedSentence:
    """Two sentences of a voice as one."""
    phones, bert = torch.cat([one.phones, other.phones]), torch.cat([one.bert, other.bert], 1)
    tokens, prompt = (torch.cat([one.tokens, x]) for x in (other.tokens, other.prompt))
    alignment = torch.cat([one.alignment[: len(one.tokens)], other.alignment + len(one.phones)])
    return TokenizedSentence(one.voice, phones, bert, tokens, prompt, alignment)


def excerpt(one: TokenizedSentence, share: float, rng: np.random.Generator) -> TokenizedSentence:
    """A share of the phonemes, consecutive ones, with their tokens; the silence belongs to the last phoneme."""
    count = max(1, round(share * len(one.phones)))
    begin = int(rng.integers(len(one.phones) - count + 1))
    inside = (one.alignment >= begin) & (one.alignment < begin + count)  # [M]
    if not inside[: len(one.tokens)].any():  # too short for a token
        return one
    phones = slice(begin, begin + count)
    tokens, prompt = one.tokens[inside[: len(one.tokens)]], one.prompt[inside]
    return TokenizedSentence(
        one.voice, one.phones[phones], one.bert[:, phones], tokens, prompt, one.alignment[inside] - begin
    )


class Pairs:
    """A sentence after one or two others of the same voice; each draw is a function of the generator passed in."""

    def __init__(self, sentences: Sequence[TokenizedSentence]) -> None:
        self.sentences = sentences
        self.voices: dict[str, list[int]] = {}  # indices of their sentences
        for i, sentence in enumerate(sentences):
            self.voices.setdefault(sentence.voice, []).append(i)

    def draw(self, count: int, rng: np.random.Generator) -> list[tuple[TokenizedSentence, TokenizedSentence]]:
        """Pairs of reference and sentence."""
        pairs = []
        for i in rng.integers(len(self.sentences), size=count):
            sentence = self.sentences[i]
            reference = self.reference(sentence, rng)
            if rng.random() < DOUBLE_SHARE:
                reference = joined(self.reference(sentence, rng), reference)
            pairs.append((reference, sentence))
        return pairs

    def reference(self, one: TokenizedSentence, rng: np.random.Generator) -> TokenizedSentence:
        """Another sentence of the same voice, itself where there is no other."""
        others = [self.sentences[j] for j in self.voices[one.voice] if self.sentences[j] is not one] or [one]
        return others[rng.integers(len(others))]

    def excerpts(self, rng: np.random.Generator) -> list[tuple[TokenizedSentence, TokenizedSentence]]:
        """Pairs for a batch: the same share of all references, and of all sentences, which avoids padding."""
        first, second = (1.0 if rng.random() < WHOLE_SHARE else rng.uniform(MIN_EXCERPT_SHARE, 1) for _ in range(2))
        drawn = self.draw(int(2 * BATCH / (first + second)), rng)
        return [(excerpt(reference, first, rng), excerpt(one, second, rng)) for reference, one in drawn]


class Predictions(NamedTuple):
    """The outputs of the decoder for a batch, and their labels."""

    logits: Tensor  # [B, T, V]
    labels: Tensor  # [B, T] int64: at the last phoneme the first token, at a token the next, at the last one the end
    alignment: Tensor  # [B, T] int64, the index of the phoneme at the label; both are IGNORED elsewhere


def teacher_forced(
    network: Text2SemanticDecoder,
    pairs: Sequence[tuple[TokenizedSentence, TokenizedSentence]],
    rng: np.random.Generator,
    corrupted: float = 0.0,
) -> Predictions:
    """Run the decoder over pairs with the true tokens as inputs.

    Rows are the phonemes of both sentences, the tokens of both, then padding, to which no other row attends. corrupted:
    the share of input tokens that are replaced by random ones; labels are always true. In training there is dropout on
    the embeddings.
    """
    rows, labels, alignments, lengths = [], [], [], []
    for reference, one in pairs:
        both = joined(reference._replace(tokens=reference.prompt), one)
        phones, tokens = both.phones, both.tokens  # [P], [N]

        # the embeddings of phonemes and of partly corrupted tokens
        wrong = torch.from_numpy(rng.random(len(tokens)) < corrupted)
        other = torch.from_numpy(rng.integers(network.eos, size=len(tokens)))
        text = network.embed_text(phones[None], both.bert[None])[0]  # [P, D]
        positions = torch.arange(len(tokens))[None]
        audio = network.embed_audio(torch.where(wrong, other, tokens)[None], positions)[0]  # [N, D]
        rows.append(torch.cat([text, audio]))
        lengths.append(len(phones))

        # the labels, from the last phoneme to the last token
        before, end = len(phones) - 1, tokens.new_tensor([network.eos])
        labels.append(F.pad(torch.cat([tokens, end]), (before, 0), value=IGNORED))  # [P + N]
        alignment = both.alignment[: len(tokens)]
        alignments.append(F.pad(torch.cat([alignment, alignment[-1:]]), (before, 0), value=IGNORED))  # [P + N]
    x = F.dropout(pad_sequence(rows, batch_first=True), DROPOUT, network.training)  # [B, T, D]
    text_lengths = torch.tensor(lengths)[:, None, None]  # [B, 1, 1]
    mask = prefix_mask(x.shape[1], x.shape[1], text_lengths)[0, 0][:, None]  # [B, 1, T, T]
    hidden, _ = network.run(x, mask, network.empty_cache(len(x)))  # [B, T, D]
    padded = (pad_sequence(values, batch_first=True, padding_value=IGNORED) for values in (labels, alignments))
    return Predictions(network.ar_predict_layer(hidden), *padded)


@torch.no_grad()
def guesses(
    network: Text2SemanticDecoder, reference: TokenizedSentence, one: TokenizedSentence, rng: np.random.Generator
) -> Tensor:
    """For each token of a sentence after a reference, GUESSES tokens that may come after the true ones before it.

    [N, GUESSES] int64, drawn from the decoder's first TOP_K.
    """
    logits = teacher_forced(network, [(reference, one)], rng).logits[0, -len(one.tokens) - 1 : -1]  # [N, V]
    best = logits[:, : network.eos].float().topk(TOP_K)  # [N, TOP_K]
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    drawn = best.values.softmax(1).multinomial(GUESSES, replacement=True, generator=generator)  # [N, GUESSES]
    return best.indices.gather(1, drawn)


def attention_logits(layer: Layer, x: Tensor, mask: Tensor, *_: Tensor) -> Tensor:
    """Attention logits [B, 1, T, T] of the first head of a layer; x: [B, T, D], mask: [B, 1, T, T]."""
    width, head_width = x.shape[-1], x.shape[-1] // layer.heads
    weights, bias = layer.self_attn.in_proj_weight[: 2 * width], layer.self_attn.in_proj_bias[: 2 * width]
    query, key = (y[:, None, :, :head_width] for y in F.linear(x, weights, bias).chunk(2, -1))  # [B, 1, T, D / H] each
    return (query @ key.mT / head_width**0.5).masked_fill(~mask, -torch.inf)


def train(work: Path, network: Text2SemanticDecoder, pairs: Pairs) -> None:
    """Train the decoder on the tokens of both sentences, the end, and the alignment."""
    guided = [layer for i, layer in enumerate(network.h["layers"]) if i in GUIDED_LAYERS]

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        # a batch
        batch = pairs.excerpts(rng)
        torch.manual_seed(int(rng.integers(2**31)))  # of dropout

        # the forward pass
        with autocast(), GuidedAttention(guided, attention_logits) as attention:
            logits, labels, alignment = teacher_forced(network, batch, rng, CORRUPTED_SHARE)

        # the losses
        attention_loss, attention_accuracy = attention.loss_and_accuracy(alignment)
        token_loss = F.cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=IGNORED)
        return {
            "loss": token_loss + GUIDANCE_WEIGHT * attention_loss,
            "tokens": token_loss,
            "attention": attention_loss,
            "token accuracy": accuracy(logits, labels),
            "attention accuracy": attention_accuracy,
        }

    optimise(work / "t2s.pt", network, loss, steps=STEPS, rate=LEARNING_RATE, seed=SEED, muon=matrices(network.h))
