"""Trains the tiny checkpoint: `python -m notebooks.gpt_sovits.train_tiny`.

Stages, each kept in models/gpt_sovits-training, so that a run that was stopped goes on where it was:
  speech     Kokoro's voices and mixtures of them say composed sentences, English and Mandarin
  hubert     HuBERT learns to tell the phone at every frame, whoever says it
  sovits     the synthesizer learns tokens of HuBERT's states, and to say them in the voice of a reference
  bert       BERT learns characters, how each is read where it stands, and where words end
  t2s        the decoder of tokens learns to go on after a reference of the same voice
  finish     the synthesizer goes on against critics
Seeded. Writes the four parts, FP16 safetensors, to tiny/ and prints what was reached on voices that no stage has heard.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig, BertModel, HubertConfig, HubertModel

from notebooks.gpt_sovits import checkpoint, train_bert, train_sovits
from notebooks.gpt_sovits.sovits import NOISE, SynthesizerTrn
from notebooks.gpt_sovits.speech import FRAME, HEARD, RATE, Recording, make_speech
from notebooks.gpt_sovits.t2s import Text2SemanticDecoder, visible
from notebooks.gpt_sovits.train_bert import IGNORED, SYMBOLS, share
from notebooks.gpt_sovits.train_sovits import Sentence, Sentences, mel
from utils.training import half, matrices, optimise

TINY = Path(__file__).parent / "tiny"
WORK = Path(__file__).parents[2] / "models" / "gpt_sovits-training"
STEPS = {"hubert": 2000, "t2s": 2000}
RATES = {"hubert": 4e-3, "t2s": 2e-3}
SEEDS = {"hubert": 1, "t2s": 5}
BATCH = 16  # sentences of a step of the decoder
SOUND = 48  # seconds that HuBERT hears in a step, and
SECONDS = (0.4, 4.5)  # of one excerpt: mostly short ones, for who hears whole sentences learns words instead of sounds
SPEEDS = (0.88, 1.14)  # of speech in training: pitch and timbre change with it
GAINS, NOISES = (-0.9, 0.3), (-4.0, -1.7)  # powers of ten: loudness, noise's amplitude
AFTER = 9600  # samples of silence that a reference has behind it when its tokens are made
FILTER = 160  # samples of the filters that HuBERT begins with, 10 ms
LOWEST, HIGHEST = 80, 7600  # Hz of these
HOP_50, WINDOW_50 = 320, FILTER + 390  # samples of 16 kHz from a frame of HuBERT to the next, and that it hears
MISTOLD = 0.06  # of the tokens that the decoder is told are others: its own will not all be right
LONGER = 0.2  # of the references are two sentences
DROPOUT = 0.1  # of the decoder's embeddings

CODES, HEARS, READS = 512, 128, 64  # tokens, channels of HuBERT and BERT
HUBERT = {
    **{"hidden_size": HEARS, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256},
    **{"conv_dim": [64, 64, 64, 64, 96, 96, 96], "conv_kernel": [FILTER, 3, 3, 3, 3, 2, 2]},
    **{"num_conv_pos_embeddings": 64, "num_conv_pos_embedding_groups": 16},
    **{"layerdrop": 0.0, "mask_time_prob": 0.0, "apply_spec_augment": False},
    **dict.fromkeys(("hidden_dropout", "attention_dropout", "activation_dropout"), 0.0),
}
BERT = {
    **{"hidden_size": READS, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 160},
    **{
        "vocab_size": len(train_bert.SPECIAL) + train_bert.CHARACTERS,
        "max_position_embeddings": 256,
        "pad_token_id": train_bert.PAD,
    },
}
T2S = {
    "model": {
        **{"vocab_size": CODES + 1, "EOS": CODES, "phoneme_vocab_size": SYMBOLS, "bert_dim": READS, "n_layer": 6},
        **{"embedding_dim": 160, "hidden_dim": 160, "head": 5, "linear_units": 384},
    }
}
SOVITS = {
    "data": {"sampling_rate": RATE, "filter_length": 2048, "win_length": 2048, "hop_length": 640},
    "model": {
        **{"version": "v2", "ssl_channels": HEARS, "codes": CODES, "inter_channels": 64, "hidden_channels": 64},
        **{"filter_channels": 160, "n_heads": 2, "n_layers": 2, "kernel_size": 3, "gin_channels": 96},
        **{"mrte_channels": 96, "mrte_heads": 4, "style_channels": 64, "flow_layers": 3, "posterior_layers": 6},
        **{"upsample_rates": [10, 8, 2, 2, 2], "upsample_kernel_sizes": [16, 16, 8, 2, 2]},
        **{"upsample_initial_channel": 128, "resblock_kernel_sizes": [3, 7]},
        "resblock_dilation_sizes": [[1, 3, 5]] * 2,
    },
}


def networks() -> dict[str, nn.Module]:
    """All parts, untrained; the synthesizer with its posterior encoder."""
    torch.manual_seed(0)
    return {
        "hubert": HubertModel(HubertConfig(**HUBERT)),
        "sovits": SynthesizerTrn(SOVITS, posterior=True),
        "bert": BertModel(BertConfig(**BERT), add_pooling_layer=False),
        "t2s": Text2SemanticDecoder(T2S),
    }


def settings(stage: str) -> dict[str, float]:
    """Of a stage, for `optimise`."""
    return {"steps": STEPS[stage], "rate": RATES[stage], "seed": SEEDS[stage]}


# --- what is said -------------------------------------------------------------------------------------------------


def said_at(frames: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Which phone is said at `times` (s, [n]), [n] int64; after the end the last one, which is a pause.

    frames: [P] int64, how long every phone lasts, in units of FRAME.
    """
    return np.searchsorted(frames.cumsum() * FRAME, times, side="right").clip(max=len(frames) - 1)


def heard_frames(samples: int) -> np.ndarray:
    """The times (s) of the frames that HuBERT makes of so many samples: the middle of what each hears."""
    return (np.arange((samples - WINDOW_50) // HOP_50 + 1) * HOP_50 + WINDOW_50 / 2) / HEARD


class Excerpts:
    """Excerpts of recordings with the phone at every frame; each draw is a function of the generator passed in."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self.recordings = recordings
        self.sounds = [np.pad(x.heard, (0, AFTER)) for x in recordings]

    def draw(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Sounds [B, S] at 16 kHz and phones [B, T] int64, of recordings at other speeds, louder or not, with noise."""
        seconds = np.exp(rng.uniform(*np.log(SECONDS)))
        count, length = round(SOUND / seconds), int(HEARD * seconds)
        drawn = [self.excerpt(int(i), length, rng) for i in rng.integers(len(self.recordings), size=count)]
        sounds, phones = (np.stack(x) for x in zip(*drawn, strict=True))
        return torch.from_numpy(sounds), torch.from_numpy(phones)

    def excerpt(self, i: int, length: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        sound, recording, speed = self.sounds[i], self.recordings[i], rng.uniform(*SPEEDS)
        start = rng.uniform(0, max(0.0, len(sound) - speed * length))
        cut = np.interp(start + speed * np.arange(length), np.arange(len(sound)), sound, right=0)
        cut = cut * 10 ** rng.uniform(*GAINS) + 10 ** rng.uniform(*NOISES) * rng.standard_normal(length)
        times = start / HEARD + speed * heard_frames(length)
        return cut.astype(np.float32), recording.phones[said_at(recording.frames, times)]


class Listener(nn.Module):
    """HuBERT, and a line that reads the phone from its states."""

    def __init__(self, hubert: HubertModel) -> None:
        super().__init__()
        self.hubert, self.phones = hubert, nn.Linear(hubert.config.hidden_size, SYMBOLS)

    def forward(self, sounds: Tensor) -> Tensor:
        """Logits [B, T, SYMBOLS] of sounds [B, S]."""
        return self.phones(self.hubert(sounds).last_hidden_state)


def filters(count: int) -> Tensor:
    """So many filters [count, 1, FILTER] of one norm, pairs of a cosine and a sine under a bell (Gabor, 1946).

    Their frequencies are as far apart as the ear tells them, and each is as wide as that.
    """
    mel = torch.linspace(*(2595 * np.log10(1 + hz / 700) for hz in (LOWEST, HIGHEST)), count // 2 + 2)
    hz = 700 * (10 ** (mel / 2595) - 1)
    times = (torch.arange(FILTER) - (FILTER - 1) / 2) / HEARD
    wide = (1 / (0.6 * np.pi * (hz[2:] - hz[:-2]))).clamp(max=FILTER / 5 / HEARD)  # s, the deviation of the bell
    bell = (-0.5 * (times / wide[:, None]).square()).exp()
    waves = 2 * np.pi * hz[1:-1, None] * times
    return F.normalize(torch.cat([bell * waves.cos(), bell * waves.sin()]))[:, None]


def learn_to_listen(hubert: HubertModel, excerpts: Excerpts) -> Listener:
    """Teach HuBERT the phones."""
    torch.manual_seed(SEEDS["hubert"])
    network, ears = Listener(hubert), hubert.feature_extractor.conv_layers[0].conv.weight
    ears.data.copy_(filters(len(ears)))
    ears.requires_grad_(False)

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        sounds, phones = excerpts.draw(rng)
        with half():
            logits = network(sounds)
        wrong = F.cross_entropy(logits.float().flatten(0, 1), phones.flatten())
        return {"loss": wrong, "phones right": share(logits, phones)}

    hidden = matrices(hubert.feature_extractor, hubert.encoder.layers)
    optimise(WORK / "hubert.pt", network, loss, **settings("hubert"), muon=hidden)
    return network


@torch.no_grad()
def states(hubert: HubertModel, sound: np.ndarray) -> Tensor:
    """HuBERT's states [T, C] of a sound [S] at 16 kHz."""
    return hubert(torch.from_numpy(sound)[None]).last_hidden_state[0].clone()


def sentence(hubert: HubertModel, recording: Recording, hop: int) -> Sentence:
    """What the synthesizer learns of a recording: an even number of frames of `hop` samples, and states for all."""
    frames = len(recording.samples) // (2 * hop) * 2
    found = states(hubert, recording.heard)[:frames]
    found = torch.cat([found, found[-1:].expand(frames - len(found), -1)])
    sound = torch.from_numpy(recording.sound[: frames * hop])
    return Sentence(recording.voice, torch.from_numpy(recording.phones), found, sound)


# --- the decoder of tokens ----------------------------------------------------------------------------------------


class Score(NamedTuple):
    """A sentence of P phones and its N tokens."""

    voice: str
    phones: Tensor  # [P] int64
    bert: Tensor  # [C, P]
    tokens: Tensor  # [N] int64, and
    prompt: Tensor  # int64, those of the sentence with the silence that a reference has behind it


@torch.no_grad()
def score(parts: dict[str, nn.Module], recording: Recording, known: dict[str, int]) -> Score:
    """The tokens that the trained parts make of a recording."""
    hubert, encode = parts["hubert"], parts["sovits"].encode
    sounds = recording.heard, np.pad(recording.heard, (0, AFTER))
    tokens, prompt = (encode(states(hubert, sound).T[None])[0].clone() for sound in sounds)
    bert = train_bert.features(parts["bert"], recording, known)
    return Score(recording.voice, torch.from_numpy(recording.phones), bert, tokens, prompt)


def joined(one: Score, other: Score) -> Score:
    """Two sentences of a voice as one."""
    phones, bert = torch.cat([one.phones, other.phones]), torch.cat([one.bert, other.bert], 1)
    return Score(one.voice, phones, bert, *(torch.cat([one.tokens, x]) for x in (other.tokens, other.prompt)))


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


def continued(
    network: Text2SemanticDecoder, pairs: Sequence[tuple[Score, Score]], rng: np.random.Generator, told: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Logits [B, T, tokens] of pairs, and labels [B, T] int64: at the last phone the first token, at every token the
    next, at the last one the end, elsewhere IGNORED.

    The rows are the phones of both, the tokens of both, then padding, which no other row sees. told: share of the
    tokens that the network is told are others, drawn at random; labels are always true. In training some of the
    embeddings are dropped.
    """
    rows, labels, lengths = [], [], []
    for reference, one in pairs:
        phones, bert = torch.cat([reference.phones, one.phones]), torch.cat([reference.bert, one.bert], 1)
        tokens = torch.cat([reference.prompt, one.tokens])
        wrong = torch.from_numpy(rng.random(len(tokens)) < told)
        other = torch.from_numpy(rng.integers(network.eos, size=len(tokens)))
        text = network.embed_text(phones[None], bert[None])[0]
        audio = network.embed_audio(torch.where(wrong, other, tokens)[None], torch.arange(len(tokens))[None])[0]
        rows.append(torch.cat([text, audio]))
        following = torch.cat([tokens, tokens.new_tensor([network.eos])])
        labels.append(F.pad(following, (len(phones) - 1, 0), value=IGNORED))
        lengths.append(len(phones))
    x = F.dropout(pad_sequence(rows, batch_first=True), DROPOUT, network.training)
    mask = visible(x.shape[1], x.shape[1], torch.tensor(lengths)[:, None, None])[0, 0][:, None]
    hidden, _ = network.run(x, mask, network.empty(len(x)))
    return network.ar_predict_layer(hidden), pad_sequence(labels, batch_first=True, padding_value=IGNORED)


def learn_to_continue(network: Text2SemanticDecoder, pairs: Pairs) -> None:
    """Teach the decoder the tokens of both sentences and the end."""

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        drawn = pairs.draw(BATCH, rng)
        torch.manual_seed(int(rng.integers(2**31)))
        with half():
            logits, labels = continued(network, drawn, rng, MISTOLD)
        wrong = F.cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=IGNORED)
        return {"loss": wrong, "tokens right": share(logits, labels)}

    optimise(WORK / "t2s.pt", network, loss, **settings("t2s"), muon=matrices(network.h))


# --- the checkpoint -----------------------------------------------------------------------------------------------


def save(folder: Path, parts: dict[str, nn.Module], known: dict[str, int]) -> None:
    """Write all parts, and BERT's tokenizer."""
    for name, network in parts.items():
        checkpoint.save(folder / name, network)
    train_bert.save_tokenizer(folder / "bert", known)


@torch.no_grad()
def reached(listener: Listener, parts: dict[str, nn.Module], trials: Sequence[Recording], known: dict) -> dict:
    """On recordings of voices that training has not heard: shares of frames whose phone and of tokens that are right,
    and how far logarithms of mel amplitudes are from the truth, in a voice's own style and in a stranger's."""
    sovits, right, far = parts["sovits"], [], {"own style": [], "another's style": []}
    rng = np.random.default_rng(0)
    for i, recording in enumerate(trials):
        sound = recording.heard
        phones = recording.phones[said_at(recording.frames, heard_frames(len(sound)))]
        right.append(share(listener(torch.from_numpy(sound)[None])[0], torch.from_numpy(phones)))
        true = sentence(parts["hubert"], recording, sovits.dec.hop)
        codes = sovits.encode(true.states.T[None])
        noise = NOISE * torch.from_numpy(rng.standard_normal((1, sovits.dec.conv_pre.in_channels, len(true.states))))
        others = [*trials[i + 1 :], *trials[:i]]
        own = next(x for x in others if x.voice == recording.voice)
        stranger = next(x for x in others if x.voice[1] != recording.voice[1])  # of the other sex
        for name, other in zip(far, (own, stranger), strict=True):
            ge = sovits.style(sovits.spectrogram(torch.from_numpy(other.sound)[None]))
            made = sovits(codes, true.phones[None], ge, noise.float())
            far[name].append(float((mel(sovits, made[:, 0]) - mel(sovits, true.sound[None])).abs().mean()))
    scores = [score(parts, recording, known) for recording in trials]
    drawn = Pairs(scores).draw(len(scores), rng)
    tokens = [share(*continued(parts["t2s"], [pair], rng)) for pair in drawn]
    found = {"frames right": float(torch.stack(right).mean()), "tokens right": float(torch.stack(tokens).mean())}
    return found | {f"mel distance, {name}": float(np.mean(x)) for name, x in far.items()}


def main() -> None:
    """Train, save, and print what was reached."""
    from notebooks.gpt_sovits.frontend import Frontend

    recordings, trials = make_speech(WORK, Frontend)
    parts, known = networks(), train_bert.vocabulary()
    hop = parts["sovits"].dec.hop
    listener = learn_to_listen(parts["hubert"], Excerpts(recordings))
    sentences = Sentences([sentence(parts["hubert"], x, hop) for x in recordings], hop)
    train_sovits.learn_to_speak(WORK, parts["sovits"], sentences)
    train_bert.learn_to_read(WORK, parts["bert"], train_bert.texts(Frontend(), known))
    learn_to_continue(parts["t2s"], Pairs([score(parts, x, known) for x in recordings]))
    train_sovits.finish(WORK, parts["sovits"], sentences)
    save(TINY, parts, known)
    for what, value in reached(listener, parts, trials, known).items():
        print(f"{what}: {value:.3f}")


if __name__ == "__main__":
    main()
