"""Trains the tiny checkpoint: `python -m notebooks.gpt_sovits.training`.

Stages, each kept in models/gpt_sovits-training, so that a run that was stopped goes on where it was:
  speech     Kokoro's voices and mixtures of them say composed sentences, English and Mandarin
  hubert     HuBERT learns to tell the phone at every frame, whoever says it
  sovits     tokens are clusters of HuBERT's states; the synthesizer learns their latents in the voice of a reference
  bert       BERT learns characters, how each is read where it stands, and where words end
  t2s        the decoder of tokens learns to go on after a reference of the same voice
  sound      the synthesizer's generator learns to make latents sound
Seeded. Writes the four parts, FP16 safetensors, to tiny/ and prints what was reached on voices that no stage has heard.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertModel, HubertConfig, HubertModel

from notebooks.gpt_sovits.data.speech import RATE, Recording, make_speech
from notebooks.gpt_sovits.network import checkpoint
from notebooks.gpt_sovits.network.sovits import NOISE, SynthesizerTrn
from notebooks.gpt_sovits.network.t2s import Text2SemanticDecoder
from notebooks.gpt_sovits.training import bert as train_bert
from notebooks.gpt_sovits.training import hubert as train_hubert
from notebooks.gpt_sovits.training import sovits as train_sovits
from notebooks.gpt_sovits.training import t2s as train_t2s
from notebooks.gpt_sovits.training.bert import SYMBOLS, share
from notebooks.gpt_sovits.training.hubert import AFTER, Listener, heard_frames, said_at, states, told
from notebooks.gpt_sovits.training.sovits import Sentence, Sentences, mel
from notebooks.gpt_sovits.training.t2s import Pairs, Score, continued
from utils import paths

TINY = paths.notebook_dir(__package__) / "tiny"
WORK = paths.training_dir(__package__)

SPARSE = 6  # one recording of so many is enough to find the tokens
CODES, HEARS, READS = 128, 128, 64  # tokens, of which more are not learned from two hours; channels of HuBERT and BERT
HUBERT = {
    **{"hidden_size": HEARS, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256},
    **{"conv_dim": [64, 64, 64, 64, 96, 96, 96], "conv_kernel": train_hubert.KERNELS},
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
        **{"vocab_size": CODES + 1, "EOS": CODES, "phoneme_vocab_size": SYMBOLS, "bert_dim": READS, "n_layer": 4},
        **{"embedding_dim": 128, "hidden_dim": 128, "head": 4, "linear_units": 320},
    }
}
HOP = RATE // 50  # samples of a frame, as many as HuBERT's states stand for
SOVITS = {
    "data": {"sampling_rate": RATE, "filter_length": 2048, "win_length": 2048, "hop_length": HOP},
    "model": {
        **{"version": "v2", "ssl_channels": HEARS, "codes": CODES, "inter_channels": 64, "hidden_channels": 64},
        **{"filter_channels": 160, "n_heads": 2, "n_layers": 4, "kernel_size": 3, "gin_channels": 96},
        **{"mrte_channels": 96, "mrte_heads": 4, "style_channels": 64, "flow_layers": 3},
        **{"upsample_rates": [10, 8, 2, 2, 2], "upsample_kernel_sizes": [16, 16, 8, 2, 2]},
        **{"upsample_initial_channel": 128, "resblock_kernel_sizes": [3, 7]},
        "resblock_dilation_sizes": [[1, 3, 5]] * 2,
    },
}


def networks() -> dict[str, nn.Module]:
    """All parts, untrained."""
    torch.manual_seed(0)
    return {
        "hubert": HubertModel(HubertConfig(**HUBERT)),
        "sovits": SynthesizerTrn(SOVITS),
        "bert": BertModel(BertConfig(**BERT), add_pooling_layer=False),
        "t2s": Text2SemanticDecoder(T2S),
    }


# --- what the stages learn from ----------------------------------------------------------------------------------


@torch.no_grad()
def sentence(parts: dict[str, nn.Module], recording: Recording) -> Sentence:
    """What the synthesizer learns of a recording: an even number of frames, and tokens for all."""
    frames = len(recording.samples) // (2 * HOP) * 2
    found = states(parts["hubert"], recording.heard)[:frames]
    found = torch.cat([found, found[-1:].expand(frames - len(found), -1)])
    places = said_at(recording.frames, (np.arange(frames) + 0.5) * HOP / RATE)
    sound = torch.from_numpy(recording.sound[: frames * HOP])
    tokens = parts["sovits"].encode(found.T[None])[0]
    return Sentence(recording.voice, torch.from_numpy(recording.phones), tokens, torch.from_numpy(places), sound)


@torch.no_grad()
def score(parts: dict[str, nn.Module], recording: Recording, known: dict[str, int]) -> Score:
    """The tokens that the trained parts make of a recording."""
    hubert, encode = parts["hubert"], parts["sovits"].encode
    sounds = recording.heard, np.pad(recording.heard, (0, AFTER))
    tokens, prompt = (encode(states(hubert, sound).T[None])[0].clone() for sound in sounds)
    bert = train_bert.features(parts["bert"], recording, known)
    middles = heard_frames(len(sounds[1]))[: 2 * len(prompt)].reshape(-1, 2).mean(1)  # of tokens, which are two frames
    places = torch.from_numpy(said_at(recording.frames, middles))
    return Score(recording.voice, torch.from_numpy(recording.phones), bert, tokens, prompt, places)


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
        true = sentence(parts, recording)
        noise = NOISE * torch.from_numpy(rng.standard_normal((1, sovits.dec.conv_pre.in_channels, len(true.places))))
        others = [*trials[i + 1 :], *trials[:i]]
        own = next(x for x in others if x.voice == recording.voice)
        stranger = next(x for x in others if x.voice[1] != recording.voice[1])  # of the other sex
        for name, other in zip(far, (own, stranger), strict=True):
            ge = sovits.style(sovits.spectrogram(torch.from_numpy(other.sound)[None]))
            made = sovits(true.tokens[None], true.phones[None], ge, noise.float())
            far[name].append(float((mel(sovits, made[:, 0]) - mel(sovits, true.sound[None])).abs().mean()))
    scores = [score(parts, recording, known) for recording in trials]
    drawn = Pairs(scores).draw(len(scores), rng)
    guessed = [continued(parts["t2s"], [pair], rng) for pair in drawn]
    tokens = [share(x.logits, x.labels) for x in guessed]
    found = {"frames right": float(torch.stack(right).mean()), "tokens right": float(torch.stack(tokens).mean())}
    return found | {f"mel distance, {name}": float(np.mean(x)) for name, x in far.items()}


def main() -> None:
    """Train, save, and print what was reached."""
    from notebooks.gpt_sovits.pipeline.frontend import Frontend

    recordings, trials = make_speech(WORK, Frontend)
    parts, known = networks(), train_bert.vocabulary()
    listener = train_hubert.learn_to_listen(WORK, parts["hubert"], train_hubert.Excerpts(recordings))
    train_sovits.learn_tokens(WORK, parts["sovits"], (told(parts["hubert"], x) for x in recordings[::SPARSE]))
    sentences = Sentences([sentence(parts, x) for x in recordings], HOP)
    train_sovits.learn_to_imagine(WORK, parts["sovits"], sentences)
    train_bert.learn_to_read(WORK, parts["bert"], train_bert.texts(Frontend(), known))
    train_t2s.learn_to_continue(WORK, parts["t2s"], Pairs([score(parts, x, known) for x in recordings]))
    train_sovits.learn_to_speak(WORK, parts["sovits"], sentences)
    save(TINY, parts, known)
    for what, value in reached(listener, parts, trials, known).items():
        print(f"{what}: {value:.3f}")


if __name__ == "__main__":
    main()
