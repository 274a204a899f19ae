"""The whole of GPT-SoVITS in PyTorch, unquantised: what the converted one is held against.

`Reference(checkpoint).stream(...)` takes what `pipeline.VoiceCloner.stream` does, and draws tokens and noise from a
seed as it does. P: phones, N: tokens, 25 in a second, T: frames, two of a token, D: features of BERT, S: samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from notebooks.gpt_sovits.convert import VOCABULARY
from notebooks.gpt_sovits.network.checkpoint import find, load_bert, load_hubert, load_sovits, load_t2s
from notebooks.gpt_sovits.network.sovits import NOISE
from notebooks.gpt_sovits.network.t2s import Text2SemanticDecoder
from notebooks.gpt_sovits.pipeline import HEARD, PAUSE, ROOM, SILENCE, SLOW, audio_io
from notebooks.gpt_sovits.pipeline.audio_io import Sound
from notebooks.gpt_sovits.pipeline.token_decoder import FIRST, LIMIT, generate

SAMPLING = {"top_k": 20, "top_p": 0.6, "temperature": 0.6}


class Decoder:
    """`semantic.SemanticDecoder` in PyTorch: tokens of one sentence at a time, its KV cache in tensors."""

    def __init__(self, network: Text2SemanticDecoder) -> None:
        self.network = network

    @torch.inference_mode()
    def prefill(self, phones: np.ndarray, bert: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        self.position = len(prompts)
        inputs = (torch.from_numpy(x)[None] for x in (phones, bert, prompts))
        logits, self.cache = self.network.prefill(*inputs)
        return logits[0].numpy()

    @torch.inference_mode()
    def step(self, token: int) -> np.ndarray:
        logits, self.cache = self.network.step(torch.tensor([[token]]), self.position, self.cache)
        self.position += 1
        return logits[0].numpy()


class Said(NamedTuple):
    """A piece of the text that was said."""

    text: str
    samples: np.ndarray  # [S] float32 in -1..1, and the pause after it if another piece follows
    sample_rate: int  # Hz
    tokens: np.ndarray  # [N] int64


class Voice(NamedTuple):
    """What a reference gives."""

    pieces: list  # frontend.Piece, of what it says
    prompts: np.ndarray  # [N] int64, its tokens
    ge: torch.Tensor  # [1, G, 1], its style


class Reference:
    """The networks of a checkpoint folder, `checkpoint.find`, in float32 on the CPU.

    Raises ValueError for a folder that lacks a part, or holds a damaged one.
    """

    def __init__(self, checkpoint: str | Path) -> None:
        from notebooks.gpt_sovits.pipeline.frontend import Frontend, split  # its dictionaries are large

        found = find(checkpoint)
        self.hubert, self.network = load_hubert(found["hubert"]), load_sovits(found["sovits"])
        self.decoder = Decoder(load_t2s(found["t2s"]))
        self.bert = load_bert(found["bert"]) if "bert" in found else None
        if self.bert is not None:
            table = (found["bert"] / VOCABULARY).read_text(encoding="utf-8")
            self.vocabulary = json.loads(table)["model"]["vocab"]
        self.sample_rate = self.network.config["data"]["sampling_rate"]
        self.frontend, self.split = Frontend(self.network.version), split

    def stream(
        self,
        text: str,
        reference: Sound,
        reference_text: str,
        language: str = "en",
        reference_language: str | None = None,
        *,
        seed: int = 0,
        speed: float = 1.0,
        split: str = "sentences",
        speaker: np.ndarray | None = None,
        tokens: Sequence[np.ndarray] | None = None,
        change: Callable[[list], list] = lambda pieces: pieces,
        **sampling: float,
    ) -> Iterator[Said]:
        """The text piece by piece; arguments as of `VoiceCloner.stream`.

        tokens: [N] int64 of every piece, to be said instead of drawn ones, with the noise that would follow them.
        change: what is made of the front end's pieces of the text before they are said. Raises ValueError for a
        recording that will not do and texts that cannot be said.
        """
        voice = self.hear(reference, reference_text, reference_language or language, speaker)
        texts = [piece for piece in self.split(text, split) if any(map(str.isalnum, piece))]
        for i, piece in enumerate(texts):
            rng, spelled = np.random.default_rng((seed, i)), change(self.frontend.pieces(piece, language))
            if tokens is None:
                drawn = self.tokens(voice, spelled, rng, **sampling)
            else:
                drawn = self._drawn(tokens[i], spelled, rng)
            samples = self.sound(voice, spelled, drawn, rng, speed)
            pause = int(PAUSE * self.sample_rate) if i + 1 < len(texts) else 0
            yield Said(piece, np.pad(samples, (0, pause)), self.sample_rate, drawn)

    @torch.inference_mode()
    def hear(self, reference: Sound, words: str, language: str, speaker: np.ndarray | None = None) -> Voice:
        """The voice of a recording in which the words are said; speaker: [20480], which v2Pro needs."""
        heard = audio_io.read(reference)
        spoken = torch.from_numpy(np.pad(heard.at(HEARD), (0, SILENCE)))[None]
        states = self.hubert(spoken).last_hidden_state
        prompts = self.network.encode(states.transpose(1, 2))[0].numpy()
        spectrogram = self.network.spectrogram(torch.from_numpy(heard.at(self.sample_rate))[None])
        given = [] if speaker is None else [torch.from_numpy(np.float32(speaker)).reshape(1, -1)]
        return Voice(self.frontend.pieces(words, language), prompts, self.network.style(spectrogram, *given))

    def tokens(self, voice: Voice, pieces: list, rng: np.random.Generator, **sampling: float) -> np.ndarray:
        """The tokens [N] int64 that say the pieces; sampling: of `semantic.probabilities`, SAMPLING by default."""
        known = [*voice.pieces, *pieces]
        phones = np.concatenate([piece.phones for piece in known])
        bert = np.concatenate([self.features(piece) for piece in known], 1)
        given = {**SAMPLING, **sampling, "limit": _limit(pieces)}
        return generate(self.decoder, phones, bert, voice.prompts, rng, **given)

    @torch.inference_mode()
    def sound(
        self, voice: Voice, pieces: list, tokens: np.ndarray, rng: np.random.Generator, speed: float = 1.0
    ) -> np.ndarray:
        """The samples [S] float32 in -1..1 of tokens [N] int64 of the pieces."""
        frames = 2 * len(tokens) if speed == 1 else int(2 * len(tokens) / speed) + 1
        noise = rng.standard_normal((1, self.network.dec.conv_pre.in_channels, frames), np.float32)
        phones = torch.from_numpy(np.concatenate([piece.phones for piece in pieces]))[None]
        codes = torch.from_numpy(tokens)[None]
        wav = self.network(codes, phones, voice.ge, NOISE * torch.from_numpy(noise))[0, 0]
        return (wav / wav.abs().max().clamp(min=1)).numpy()

    @torch.inference_mode()
    def features(self, piece) -> np.ndarray:
        """BERT's features [D, P] float32 of a piece's phones, zeros where it is not Chinese."""
        if piece.language != "zh" or self.bert is None:
            return np.zeros((self.decoder.network.bert_proj.in_features, len(piece.phones)), np.float32)
        ids = [self.vocabulary.get(x, self.vocabulary["[UNK]"]) for x in piece.text.lower()]
        ids = torch.tensor([[self.vocabulary["[CLS]"], *ids, self.vocabulary["[SEP]"]]])
        states = self.bert(ids).last_hidden_state[0, 1:-1]
        return states.repeat_interleave(torch.from_numpy(piece.word2ph), 0).T.numpy()

    def _drawn(self, tokens: np.ndarray, pieces: list, rng: np.random.Generator) -> np.ndarray:
        """The tokens, after taking of `rng` what `generate` takes to draw them."""
        end = self.decoder.network.eos
        for i in range(len(tokens) + (len(tokens) < _limit(pieces))):
            rng.standard_exponential(end + (i >= FIRST))
        return tokens


def _limit(pieces: list) -> int:
    """Tokens that the pieces may take."""
    return min(LIMIT, ROOM + SLOW * sum(len(piece.phones) for piece in pieces))
