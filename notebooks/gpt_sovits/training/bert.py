"""How the tiny BERT is trained: characters by those around them, how each is read where it stands, where words end.

The readings are those of our front end, and are learned by what becomes the features of GPT-SoVITS, which are not the
last states: those only guess characters. B: batch, C: characters of a sentence, P: phones.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
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
from notebooks.gpt_sovits.network.checkpoint import CUT
from utils.training.loop import half, matrices, optimise

STEPS, RATE, SEED, BATCH = 1500, 1.5e-3, 4, 64
SYMBOLS = 732  # phones
CHARACTERS = 3000  # that it knows
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *",.!?…-，。！？、；："]
PAD, UNKNOWN, BEGIN, END, MASK = range(5)
TEXTS = 12000  # sentences that it reads
MASKED = 0.15  # of the characters
IGNORED = -100  # as a label: nothing is to be learned there


class Text(NamedTuple):
    """A Mandarin sentence of C characters, as BERT learns it."""

    ids: Tensor  # [C] int64
    readings: Tensor  # [C, 2] int64: its first and its last phone
    ends: Tensor  # [C] int64: 1 where a word ends


def vocabulary() -> dict[str, int]:
    """BERT's characters and their ids."""
    return {x: i for i, x in enumerate([*SPECIAL, *characters(CHARACTERS)])}


def save_tokenizer(folder: Path, known: dict[str, int]) -> None:
    """Write tokenizer.json, as the released folder has it, which cuts a text to its characters."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".partial-", dir=folder) as written:
        file = Path(written) / "tokenizer.json"
        BertWordPieceTokenizer(known, lowercase=True).save(str(file))
        os.replace(file, folder / file.name)


def text(normalised: str, phones: np.ndarray, word2ph: np.ndarray, known: dict[str, int]) -> Text:
    """What BERT learns of a sentence that the front end has read."""
    after = word2ph.cumsum()
    readings = np.stack([phones[after - word2ph], phones[after - 1]], 1)
    ends = np.zeros(len(normalised), np.int64)
    ends[np.cumsum([len(word) for word in jieba.cut(normalised)]) - 1] = 1
    ids = torch.tensor([known.get(x, UNKNOWN) for x in normalised])
    return Text(ids, torch.from_numpy(readings), torch.from_numpy(ends))


def texts(frontend, known: dict[str, int], count: int = TEXTS) -> list[Text]:
    """So many composed sentences at most; no other language and no character without a phone is in them."""
    found = []
    for composed in training_sentences("zh", count, seed=1):
        pieces = frontend.pieces(composed, "zh")
        if len(pieces) == 1 and pieces[0].word2ph is not None and min(pieces[0].word2ph) > 0:
            found.append(text(*pieces[0][1:], known))
    return found


def share(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of labels [...] that are the likeliest of logits [..., n], of those that are not IGNORED."""
    there = labels != IGNORED
    return (logits.argmax(-1)[there] == labels[there]).float().mean()


class Reader(nn.Module):
    """BERT, a line that guesses characters from its last states, and lines that read from those that are its features
    how a character is said and where words end."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        width, words = bert.config.hidden_size, bert.config.vocab_size
        self.bert, self.guess, self.ends = bert, nn.Linear(width, words), nn.Linear(width, 2)
        self.first, self.last = nn.Linear(width, SYMBOLS), nn.Linear(width, SYMBOLS)

    def forward(self, ids: Tensor, there: Tensor) -> dict[str, Tensor]:
        """Logits for characters ids [B, C], [CLS] and [SEP] among them; there: [B, C], 0 for padding."""
        found = self.bert(ids, attention_mask=there.long(), output_hidden_states=True)
        features = found.hidden_states[-1 - CUT]
        guessed = self.guess(found.last_hidden_state)
        return {
            "guess": guessed,
            "first": self.first(features),
            "last": self.last(features),
            "ends": self.ends(features),
        }


def reading_batch(drawn: Sequence[Text], rng: np.random.Generator) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Characters [B, C] with [CLS], [SEP] and some masked, where there are any [B, C], and labels [B, C] by name."""
    rows, guess = [], []
    for one in drawn:
        hidden = torch.from_numpy(rng.random(len(one.ids)) < MASKED)
        rows.append(torch.cat([torch.tensor([BEGIN]), one.ids.masked_fill(hidden, MASK), torch.tensor([END])]))
        guess.append(one.ids.masked_fill(~hidden, IGNORED))
    labels = {"guess": guess, "first": [x.readings[:, 0] for x in drawn], "last": [x.readings[:, 1] for x in drawn]}
    labels["ends"] = [x.ends for x in drawn]
    ids = pad_sequence(rows, batch_first=True, padding_value=PAD)
    padded = {
        name: pad_sequence([F.pad(x, (1, 1), value=IGNORED) for x in found], batch_first=True, padding_value=IGNORED)
        for name, found in labels.items()
    }
    return ids, ids != PAD, padded


def learn_to_read(work: Path, bert: BertModel, known: Sequence[Text]) -> None:
    """Teach BERT: a masked character is guessed and read from those around it."""
    torch.manual_seed(SEED)
    network = Reader(bert)

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        ids, there, labels = reading_batch([known[i] for i in rng.integers(len(known), size=BATCH)], rng)
        torch.manual_seed(int(rng.integers(2**31)))
        with half():
            logits = network(ids, there)
        errors = {
            name: F.cross_entropy(logits[name].float().transpose(1, 2), labels[name], ignore_index=IGNORED)
            for name in labels
        }
        right = {f"{name} right": share(logits[name], labels[name]) for name in ("last", "ends")}
        return {"loss": sum(errors.values())} | errors | right

    optimise(work / "bert.pt", network, loss, steps=STEPS, rate=RATE, seed=SEED, muon=matrices(bert.encoder))


@torch.no_grad()
def features(bert: BertModel, recording: Recording, known: dict[str, int]) -> Tensor:
    """The features [C, P] of the phones of a recording: of English 0."""
    if not len(recording.word2ph):
        return torch.zeros(bert.config.hidden_size, len(recording.phones))
    ids = torch.tensor([[BEGIN, *(known.get(x, UNKNOWN) for x in recording.text), END]])
    found = bert(ids, output_hidden_states=True).hidden_states[-1 - CUT][0, 1:-1]
    return found.repeat_interleave(torch.from_numpy(recording.word2ph), 0).T.clone()
