"""Trains the tiny checkpoint: `python -m notebooks.gpt_sovits.training`.

The state of each stage is saved in models/gpt_sovits-training, so that a stopped run can be continued:
  speech     Kokoro's voices and mixtures of them synthesize composed sentences, English and Mandarin
  hubert     HuBERT learns to classify the phoneme at every frame, whatever the voice
  codebook   tokens are clusters of HuBERT's states
  bert       BERT learns masked characters, their readings in context, and the ends of words
  t2s        the token decoder learns to continue after a reference of the same voice
  sovits     the synthesizer learns the latents of tokens in the voice of a reference
  sound      the synthesizer's generator learns to turn latents into sound
Seeded. Writes the four parts, FP16 safetensors, to tiny/ and prints metrics of voices that are in no training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, HubertConfig, HubertModel

from notebooks.gpt_sovits.data.speech import SAMPLE_RATE_HZ, Recording, make_speech
from notebooks.gpt_sovits.network import checkpoint
from notebooks.gpt_sovits.network.sovits import SynthesizerTrn
from notebooks.gpt_sovits.network.t2s import Text2SemanticDecoder
from notebooks.gpt_sovits.pipeline.constants import NOISE_SCALE, SILENCE_SAMPLES
from notebooks.gpt_sovits.training import bert as train_bert
from notebooks.gpt_sovits.training import hubert as train_hubert
from notebooks.gpt_sovits.training import sovits as train_sovits
from notebooks.gpt_sovits.training import t2s as train_t2s
from notebooks.gpt_sovits.training.hubert import (
    PhonemeClassifier,
    frame_times,
    labelled_states,
    phoneme_at,
    states,
)
from notebooks.gpt_sovits.training.labels import PHONEMES, accuracy
from notebooks.gpt_sovits.training.sovits import Sentence, Sentences, mel
from notebooks.gpt_sovits.training.t2s import Pairs, TokenizedSentence, teacher_forced
from utils import paths
from utils.training import provenance

TINY = paths.notebook_dir(__package__) / "tiny"
WORK = paths.training_dir(__package__)

CODEBOOK_STEP = 6  # every so many recordings are enough to find the tokens
GUESSING_SEED = 7  # of the decoder's guesses and the references before them
CODES = 128  # tokens; more are not learned from two hours
HUBERT_WIDTH, BERT_WIDTH = 128, 64
HOP = SAMPLE_RATE_HZ // 50  # samples of a frame: HuBERT's states have the same rate
# fmt: off
HUBERT = {
    "hidden_size": HUBERT_WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256,
    "conv_dim": [64, 64, 64, 64, 96, 96, 96], "conv_kernel": train_hubert.KERNELS,
    "num_conv_pos_embeddings": 64, "num_conv_pos_embedding_groups": 16,
    "layerdrop": 0.0, "mask_time_prob": 0.0, "apply_spec_augment": False,
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
}
BERT = {
    "hidden_size": BERT_WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 160,
    "vocab_size": len(train_bert.SPECIAL) + train_bert.CHARACTERS, "max_position_embeddings": 256,
    "pad_token_id": train_bert.PAD,
}
T2S = {
    "model": {
        "vocab_size": CODES + 1, "EOS": CODES, "phoneme_vocab_size": PHONEMES, "bert_dim": BERT_WIDTH, "n_layer": 4,
        "embedding_dim": 128, "hidden_dim": 128, "head": 4, "linear_units": 320,
    }
}
SOVITS = {
    "data": {"sampling_rate": SAMPLE_RATE_HZ, "filter_length": 2048, "win_length": 2048, "hop_length": HOP},
    "model": {
        "version": "v2", "ssl_channels": HUBERT_WIDTH, "codes": CODES, "inter_channels": 64, "hidden_channels": 128,
        "filter_channels": 256, "n_heads": 2, "n_layers": 4, "kernel_size": 3, "gin_channels": 128,
        "mrte_channels": 128, "mrte_heads": 4, "style_channels": 64, "flow_layers": 2,
        "upsample_rates": [10, 8, 2, 2, 2], "upsample_kernel_sizes": [16, 16, 8, 2, 2],
        "upsample_initial_channel": 128, "resblock_kernel_sizes": [3, 7],
        "resblock_dilation_sizes": [[1, 3, 5]] * 2,
    },
}
# fmt: on


def networks() -> dict[str, nn.Module]:
    """All parts, untrained."""
    torch.manual_seed(0)
    return {
        "hubert": HubertModel(HubertConfig(**HUBERT)),
        "sovits": SynthesizerTrn(SOVITS),
        "bert": BertModel(BertConfig(**BERT), add_pooling_layer=False),
        "t2s": Text2SemanticDecoder(T2S),
    }


# --- the inputs of the stages ------------------------------------------------------------------------------------


@torch.no_grad()
def sentence(parts: dict[str, nn.Module], recording: Recording, guesses: Tensor | None = None) -> Sentence:
    """A recording as the synthesizer learns it: an even number of frames, all with tokens.

    guesses: those of the decoder for its tokens, [N, any number] int64; there may be one less than tokens.
    """
    frames = len(recording.samples) // (2 * HOP) * 2
    hidden = states(parts["hubert"], recording.hubert_sound)[:frames]
    hidden = torch.cat([hidden, hidden[-1:].expand(frames - len(hidden), -1)])  # [frames, C]
    alignment = phoneme_at(recording.frames, (np.arange(frames) + 0.5) * HOP / SAMPLE_RATE_HZ)
    tokens = parts["sovits"].encode(hidden.T[None])[0].clone()  # [N]
    guesses = tokens[:, None] if guesses is None else torch.cat([guesses, guesses[-1:]])[: len(tokens)]
    return Sentence(
        recording.voice,
        torch.from_numpy(recording.phones),
        tokens,
        guesses,
        torch.from_numpy(alignment),
        torch.from_numpy(recording.sound[: frames * HOP]),
    )


@torch.no_grad()
def tokenized(parts: dict[str, nn.Module], recording: Recording, known: dict[str, int]) -> TokenizedSentence:
    """A recording as the token decoder learns it, with the tokens of the trained parts."""
    hubert, encode = parts["hubert"], parts["sovits"].encode
    sounds = recording.hubert_sound, np.pad(recording.hubert_sound, (0, SILENCE_SAMPLES))
    tokens, prompt = (encode(states(hubert, sound).T[None])[0].clone() for sound in sounds)
    bert = train_bert.features(parts["bert"], recording, known)
    times = frame_times(len(sounds[1]))[: 2 * len(prompt)].reshape(-1, 2).mean(1)  # of tokens, which are two frames
    alignment = torch.from_numpy(phoneme_at(recording.frames, times))
    return TokenizedSentence(recording.voice, torch.from_numpy(recording.phones), bert, tokens, prompt, alignment)


def guessing(parts: dict[str, nn.Module], recordings: Sequence[Recording], pairs: Pairs) -> Sentences:
    """The recordings as the synthesizer learns them, with guesses of the trained decoder after another sentence of the
    same voice; pairs: the recordings as the decoder learned them."""
    rng, made = np.random.default_rng(GUESSING_SEED), []
    for recording, one in zip(recordings, pairs.sentences, strict=True):
        guesses = train_t2s.guesses(parts["t2s"], pairs.reference(one, rng), one, rng)
        made.append(sentence(parts, recording, guesses))
    return Sentences(made, HOP)


# --- the checkpoint -----------------------------------------------------------------------------------------------


def save(folder: Path, parts: dict[str, nn.Module], known: dict[str, int]) -> None:
    """Write all parts, and BERT's tokenizer."""
    for name, network in parts.items():
        checkpoint.save(folder / name, network)
    provenance.stamp(folder)
    train_bert.save_tokenizer(folder / "bert", known)


@torch.no_grad()
def evaluate(
    classifier: PhonemeClassifier, parts: dict[str, nn.Module], trials: Sequence[Recording], known: dict
) -> dict[str, float]:
    """Metrics on recordings of voices that are in no training: the accuracy of phonemes by frame and of tokens, and the
    mean difference of logarithms of mel amplitudes, in a voice's own style and in another's."""
    rng = np.random.default_rng(0)
    sovits, accuracies, distances = parts["sovits"], [], {"own style": [], "another's style": []}
    for i, recording in enumerate(trials):
        # HuBERT
        sound = recording.hubert_sound
        phones = recording.phones[phoneme_at(recording.frames, frame_times(len(sound)))]
        accuracies.append(accuracy(classifier(torch.from_numpy(sound)[None])[0], torch.from_numpy(phones)))

        # the synthesizer
        true = sentence(parts, recording)
        shape = 1, sovits.dec.conv_pre.in_channels, len(true.alignment)
        noise = NOISE_SCALE * torch.from_numpy(rng.standard_normal(shape))
        others = [*trials[i + 1 :], *trials[:i]]
        own = next(x for x in others if x.voice == recording.voice)
        another = next(x for x in others if x.voice[1] != recording.voice[1])  # of the other sex
        for name, other in zip(distances, (own, another), strict=True):
            ge = sovits.style(sovits.spectrogram(torch.from_numpy(other.sound)[None]))
            wav = sovits(true.tokens[None], true.phones[None], ge, noise.float())
            difference = mel(sovits, wav[:, 0]) - mel(sovits, true.sound[None])
            distances[name].append(float(difference.abs().mean()))

    # the token decoder
    sentences = [tokenized(parts, recording, known) for recording in trials]
    pairs = Pairs(sentences).draw(len(sentences), rng)
    predictions = [teacher_forced(parts["t2s"], [pair], rng) for pair in pairs]
    token_accuracies = [accuracy(x.logits, x.labels) for x in predictions]
    return {
        "frame accuracy": float(torch.stack(accuracies).mean()),
        "token accuracy": float(torch.stack(token_accuracies).mean()),
        **{f"mel distance, {name}": float(np.mean(x)) for name, x in distances.items()},
    }


def main() -> None:
    """Train, save, and print the metrics."""
    from notebooks.gpt_sovits.pipeline.frontend import Frontend

    recordings, trials = make_speech(WORK, Frontend)
    parts, known = networks(), train_bert.vocabulary()

    # HuBERT and the tokens
    classifier = train_hubert.train(WORK, parts["hubert"], train_hubert.Excerpts(recordings))
    labelled = (labelled_states(parts["hubert"], x) for x in recordings[::CODEBOOK_STEP])
    train_sovits.learn_codebook(WORK, parts["sovits"], labelled)

    # BERT and the token decoder
    train_bert.train(WORK, parts["bert"], train_bert.texts(Frontend(), known))
    pairs = Pairs([tokenized(parts, x, known) for x in recordings])
    train_t2s.train(WORK, parts["t2s"], pairs)

    # the synthesizer
    sentences = guessing(parts, recordings, pairs)
    train_sovits.train_latents(WORK, parts["sovits"], sentences)
    train_sovits.train_generator(WORK, parts["sovits"], sentences)

    save(TINY, parts, known)
    for metric, value in evaluate(classifier, parts, trials, known).items():
        print(f"{metric}: {value:.3f}")


if __name__ == "__main__":
    main()
