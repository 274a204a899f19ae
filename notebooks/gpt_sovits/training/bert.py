"""Trains the tiny BERT on masked characters, the reading of every character in its context, and the ends of words.

The readings are those of our front end. They are predicted from the layer that gives the features of GPT-SoVITS, which
is not the last one: the last states only predict characters. B: batch, C: characters of a sentence, P: phonemes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jieba
import numpy as np
import torch
from tokenizers import BertWordPieceTokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import BertModel

from notebooks.gpt_sovits.data.sentences import characters, training_sentences
from notebooks.gpt_sovits.data.speech import Recording
from notebooks.gpt_sovits.network.checkpoint import UNUSED_LAYERS
from notebooks.gpt_sovits.training.labels import IGNORED, PHONEMES, accuracy
from utils import files
from utils.training.loop import autocast, matrices, optimise

STEPS, LEARNING_RATE, SEED, BATCH = 1500, 1.5e-3, 4, 64
CHARACTERS = 3000  # of the vocabulary
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *",.!?…-，。！？、；："]
PAD, UNKNOWN, BEGIN, END, MASK = range(5)
TEXTS = 12000  # sentences of the corpus
MASKED_SHARE = 0.15  # of the characters


class Text(NamedTuple):
    """A Mandarin sentence of C characters with its labels."""

    ids: Tensor  # [C] int64
    readings: Tensor  # [C, 2] int64: first and last phoneme of each
    ends: Tensor  # [C] int64: 1 where a word ends


def vocabulary() -> dict[str, int]:
    """BERT's characters and their ids."""
    return {x: i for i, x in enumerate([*SPECIAL, *characters(CHARACTERS)])}


def save_tokenizer(folder: Path, known: dict[str, int]) -> None:
    """Write tokenizer.json, as the released folder has it, which cuts a text into characters."""
    with files.replaced(folder / "tokenizer.json") as written:
        BertWordPieceTokenizer(known, lowercase=True).save(str(written))


def text(normalised: str, phones: np.ndarray, word2ph: np.ndarray, known: dict[str, int]) -> Text:
    """The ids and labels of a sentence that the front end has read."""
    stops = word2ph.cumsum()
    readings = np.stack([phones[stops - word2ph], phones[stops - 1]], 1)  # [C, 2]
    ends = np.zeros(len(normalised), np.int64)
    ends[np.cumsum([len(word) for word in jieba.cut(normalised)]) - 1] = 1
    ids = torch.tensor([known.get(x, UNKNOWN) for x in normalised])
    return Text(ids, torch.from_numpy(readings), torch.from_numpy(ends))


def texts(frontend, known: dict[str, int], count: int = TEXTS) -> list[Text]:
    """`count` composed sentences at most, without those with another language or a character without a phoneme."""
    corpus = []
    for composed in training_sentences("zh", count, seed=1):
        pieces = frontend.pieces(composed, "zh")
        if len(pieces) == 1 and pieces[0].word2ph is not None and min(pieces[0].word2ph) > 0:
            corpus.append(text(*pieces[0][1:], known))
    return corpus


class BertWithHeads(nn.Module):
    """BERT with linear classifiers: of masked characters on its last states, of readings and ends of words on the
    states that are its features."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        width, words = bert.config.hidden_size, bert.config.vocab_size
        self.bert, self.guess, self.ends = bert, nn.Linear(width, words), nn.Linear(width, 2)
        self.first, self.last = nn.Linear(width, PHONEMES), nn.Linear(width, PHONEMES)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Logits [B, C, classes] by label, for ids [B, C] with [CLS] and [SEP]; mask: [B, C], False for padding."""
        output = self.bert(ids, attention_mask=mask.long(), output_hidden_states=True)
        features = output.hidden_states[-1 - UNUSED_LAYERS]  # [B, C, width]
        return {
            "guess": self.guess(output.last_hidden_state),
            "first": self.first(features),
            "last": self.last(features),
            "ends": self.ends(features),
        }


def masked_batch(texts: Sequence[Text], rng: np.random.Generator) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Ids [B, C] with [CLS], [SEP] and some [MASK], their mask [B, C] without padding, and labels [B, C] by name."""
    rows, guess = [], []
    for text in texts:
        hidden = torch.from_numpy(rng.random(len(text.ids)) < MASKED_SHARE)
        rows.append(torch.cat([torch.tensor([BEGIN]), text.ids.masked_fill(hidden, MASK), torch.tensor([END])]))
        guess.append(text.ids.masked_fill(~hidden, IGNORED))
    labels = {
        "guess": guess,
        "first": [x.readings[:, 0] for x in texts],
        "last": [x.readings[:, 1] for x in texts],
        "ends": [x.ends for x in texts],
    }
    ids = pad_sequence(rows, batch_first=True, padding_value=PAD)
    padded = {
        name: pad_sequence([F.pad(x, (1, 1), value=IGNORED) for x in rows], batch_first=True, padding_value=IGNORED)
        for name, rows in labels.items()
    }
    return ids, ids != PAD, padded


def train(work: Path, bert: BertModel, corpus: Sequence[Text]) -> None:
    """Train BERT; a masked character's reading is predicted from the characters around it, too."""
    torch.manual_seed(SEED)
    network = BertWithHeads(bert)

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        # a batch
        ids, mask, labels = masked_batch([corpus[i] for i in rng.integers(len(corpus), size=BATCH)], rng)
        torch.manual_seed(int(rng.integers(2**31)))  # of dropout

        # the forward pass
        with autocast():
            logits = network(ids, mask)  # [B, C, classes] by name

        # the losses
        errors = {
            name: F.cross_entropy(logits[name].float().transpose(1, 2), labels[name], ignore_index=IGNORED)
            for name in labels
        }
        accuracies = {f"{name} accuracy": accuracy(logits[name], labels[name]) for name in ("last", "ends")}
        return {"loss": sum(errors.values())} | errors | accuracies

    optimise(work / "bert.pt", network, loss, steps=STEPS, rate=LEARNING_RATE, seed=SEED, muon=matrices(bert.encoder))


@torch.no_grad()
def features(bert: BertModel, recording: Recording, known: dict[str, int]) -> Tensor:
    """The features [C, P] of the phonemes of a recording; zeros for English."""
    if not len(recording.word2ph):
        return torch.zeros(bert.config.hidden_size, len(recording.phones))
    ids = torch.tensor([[BEGIN, *(known.get(x, UNKNOWN) for x in recording.text), END]])
    states = bert(ids, output_hidden_states=True).hidden_states[-1 - UNUSED_LAYERS][0, 1:-1]  # [characters, C]
    return states.repeat_interleave(torch.from_numpy(recording.word2ph), 0).T.clone()
