"""The whole of GPT-SoVITS in PyTorch, unquantised, with which the converted one is compared.

`PyTorchCloner(checkpoint).stream(...)` takes the arguments of `pipeline.VoiceCloner.stream`, and draws the same tokens
and noise from a seed. P: phonemes, N: tokens, 25 per second, T: frames, two per token, D: features of BERT, S: samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from notebooks.gpt_sovits.network.checkpoint import find, load_bert, load_hubert, load_sovits, load_t2s
from notebooks.gpt_sovits.network.t2s import Text2SemanticDecoder
from notebooks.gpt_sovits.pipeline import audio_io
from notebooks.gpt_sovits.pipeline.audio_io import Sound, within_full_scale
from notebooks.gpt_sovits.pipeline.cloner import (
    PAUSE_S,
    Conditioning,
    Timings,
    Utterance,
    bert_ids,
    frame_count,
    joined_phonemes,
    token_limit,
)
from notebooks.gpt_sovits.pipeline.constants import HUBERT_RATE_HZ, NOISE_SCALE, SILENCE_SAMPLES, VOCABULARY_FILE
from notebooks.gpt_sovits.pipeline.token_decoder import MIN_TOKENS, generate

SAMPLING = {"top_k": 20, "top_p": 0.6, "temperature": 0.6}  # the pipeline's defaults


class TorchDecoder:
    """`token_decoder.SemanticDecoder` in PyTorch: one sentence at a time, its KV cache in tensors.

    dtype: that of the network's weights.
    """

    def __init__(self, network: Text2SemanticDecoder, dtype: torch.dtype = torch.float32) -> None:
        self.network, self._dtype = network, dtype

    @torch.inference_mode()
    def prefill(self, phones: np.ndarray, bert: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        self._position = len(prompts)
        phones, bert, prompts = (torch.from_numpy(x)[None] for x in (phones, bert, prompts))
        logits, self._cache = self.network.prefill(phones, bert.to(self._dtype), prompts)  # [1, V]
        return logits[0].float().numpy()

    @torch.inference_mode()
    def step(self, token: int) -> np.ndarray:
        logits, self._cache = self.network.step(torch.tensor([[token]]), self._position, self._cache)  # [1, V]
        self._position += 1
        return logits[0].float().numpy()


class PyTorchCloner:
    """The networks of a checkpoint folder, `checkpoint.find`, in float32 on the CPU.

    Raises ValueError for a folder that lacks a part, or holds a damaged one.
    """

    def __init__(self, checkpoint: str | Path) -> None:
        from notebooks.gpt_sovits.pipeline.frontend import Frontend, split  # its dictionaries are large

        paths = find(checkpoint)
        self.hubert, self.network = load_hubert(paths["hubert"]), load_sovits(paths["sovits"])
        self.decoder = TorchDecoder(load_t2s(paths["t2s"]))
        self.bert = load_bert(paths["bert"]) if "bert" in paths else None
        if self.bert is not None:
            table = (paths["bert"] / VOCABULARY_FILE).read_text(encoding="utf-8")
            self.vocabulary = json.loads(table)["model"]["vocab"]
        self.sample_rate = self.network.config["data"]["sampling_rate"]
        self.frontend, self.split = Frontend(self.network.version), split

    def stream(
        self,
        text: str,
        recording: Sound,
        words: str,
        language: str = "en",
        recording_language: str | None = None,
        *,
        seed: int = 0,
        speed: float = 1.0,
        split: str = "sentences",
        speaker: np.ndarray | None = None,
        tokens: Sequence[np.ndarray] | None = None,
        change: Callable[[list], list] = lambda pieces: pieces,
        **sampling: float,
    ) -> Iterator[Utterance]:
        """The text piece by piece; arguments as of `VoiceCloner.stream`. The timings of the pieces are empty.

        tokens: [N] int64 for every piece, to use instead of sampled ones, with the noise that would follow these.
        change: a function of the front end's pieces of the text, whose result is synthesized in their place. Raises
        ValueError for an unusable recording and for texts with characters that the language lacks.
        """
        conditioning = self.condition(recording, words, recording_language or language, speaker)
        texts = [piece for piece in self.split(text, split) if any(map(str.isalnum, piece))]
        for i, piece in enumerate(texts):
            rng, pieces = np.random.default_rng((seed, i)), change(self.frontend.pieces(piece, language))
            if tokens is None:
                piece_tokens = self.tokens(conditioning, pieces, rng, **sampling)
            else:
                piece_tokens = tokens[i]
                self._skip_draws(rng, len(piece_tokens), token_limit(pieces))
            samples = self.sound(conditioning, pieces, piece_tokens, rng, speed)
            pause = int(PAUSE_S * self.sample_rate) if i + 1 < len(texts) else 0
            yield Utterance(piece, np.pad(samples, (0, pause)), self.sample_rate, piece_tokens, Timings())

    @torch.inference_mode()
    def condition(self, recording: Sound, words: str, language: str, speaker: np.ndarray | None = None) -> Conditioning:
        """What the models take from a recording with these words; speaker: [20480], which v2Pro needs."""
        sound = audio_io.read(recording)
        hubert_wav = torch.from_numpy(np.pad(sound.at(HUBERT_RATE_HZ), (0, SILENCE_SAMPLES)))[None]  # [1, S]
        states = self.hubert(hubert_wav).last_hidden_state  # [1, T, width]
        prompts = self.network.encode(states.transpose(1, 2))[0].numpy()  # [N]
        spectrogram = self.network.spectrogram(torch.from_numpy(sound.at(self.sample_rate))[None])  # [1, F, T]
        embeddings = [] if speaker is None else [torch.from_numpy(np.float32(speaker)).reshape(1, -1)]
        ge = self.network.style(spectrogram, *embeddings)  # [1, G, 1]
        return Conditioning(self.frontend.pieces(words, language), prompts, ge.numpy())

    def tokens(
        self, conditioning: Conditioning, pieces: list, rng: np.random.Generator, **sampling: float
    ) -> np.ndarray:
        """The tokens [N] int64 of the pieces; sampling: of `token_decoder.probabilities`, by default SAMPLING."""
        context = [*conditioning.pieces, *pieces]
        bert = np.concatenate([self.features(piece) for piece in context], 1)  # [D, P]
        options = SAMPLING | sampling | {"limit": token_limit(pieces)}
        return generate(self.decoder, joined_phonemes(context), bert, conditioning.prompts, rng, **options)

    @torch.inference_mode()
    def sound(
        self,
        conditioning: Conditioning,
        pieces: list,
        tokens: np.ndarray,
        rng: np.random.Generator,
        speed: float = 1.0,
    ) -> np.ndarray:
        """The samples [S] float32 in -1..1 of tokens [N] int64 of the pieces."""
        shape = 1, self.network.dec.conv_pre.in_channels, frame_count(tokens, speed)
        noise = NOISE_SCALE * torch.from_numpy(rng.standard_normal(shape, np.float32))  # [1, C, T]
        phones, codes = (torch.from_numpy(x)[None] for x in (joined_phonemes(pieces), tokens))  # [1, P], [1, N]
        wav = self.network(codes, phones, torch.from_numpy(conditioning.ge), noise)  # [1, 1, S]
        return within_full_scale(wav[0, 0].numpy())

    @torch.inference_mode()
    def features(self, piece) -> np.ndarray:
        """BERT's features [D, P] float32 of a piece's phonemes, zeros where it is not Chinese."""
        if piece.language != "zh" or self.bert is None:
            return np.zeros((self.decoder.network.bert_proj.in_features, len(piece.phones)), np.float32)
        ids = torch.from_numpy(bert_ids(piece.text, self.vocabulary))[None]
        states = self.bert(ids).last_hidden_state[0, 1:-1]  # [characters, D]
        return states.repeat_interleave(torch.from_numpy(piece.word2ph), 0).T.numpy()

    def _skip_draws(self, rng: np.random.Generator, count: int, limit: int) -> None:
        """Draw from `rng` what `generate` draws for `count` tokens and, if they are fewer than `limit`, the end."""
        end = self.decoder.network.eos
        for i in range(count + (count < limit)):
            rng.standard_exponential(end + (i >= MIN_TOKENS))
