"""GPT-SoVITS checkpoints to OpenVINO IR, one function per sub-model, and the weights to INT8 or INT4.

The token decoder is three graphs: the embeddings of phonemes, those of tokens, and the language model. The language
model reads both embeddings, first of the whole context and then token by token, with its KV cache inside. `prepare`
builds and caches the folder. S: samples, N: tokens, P: phonemes, T: frames, G: channels of the style embedding, C:
channels of the latents, D: width of the decoder, H: its heads.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import openvino as ov
import torch
from torch import Tensor, nn
from transformers import BertModel, HubertModel

from notebooks.gpt_sovits.network.checkpoint import find, load_bert, load_hubert, load_sovits, load_t2s
from notebooks.gpt_sovits.network.sovits import SynthesizerTrn
from notebooks.gpt_sovits.network.t2s import MAX_POSITIONS, Text2SemanticDecoder, prefix_mask
from notebooks.gpt_sovits.pipeline.constants import SETTINGS_FILE, SPEAKER_SIZE, VOCABULARY_FILE
from utils.models import parts, portable, tracing
from utils.models.parts import xml

MODELS = {  # MODEL: checkpoint (checkpoints.toml), group size of its INT4, memory that its conversion takes
    "tiny": {"checkpoint": "gpt_sovits_tiny", "group_size": 64, "ram_gb": 2},
    "released": {"checkpoint": "gpt_sovits", "group_size": 128, "ram_gb": 6},
}
PAST = "past_key_values"
MIN_GROUP_CHANNELS = 16  # of HuBERT's positional convolution
COMPRESSED = ("hubert", "bert", "text_embeddings", "audio_embeddings", "language")  # the others are convolutions


class ForwardWrapper(nn.Module):
    """A network whose forward pass is `call(network, *inputs)`."""

    def __init__(self, network: nn.Module, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.network, self.call = network, call

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.call(self.network, *inputs)


def convert_hubert(network: HubertModel) -> ov.Model:
    """HuBERT: `wav` [1, S] in -1..1 at 16 kHz, not normalised, to `last_hidden_state` [1, T, 768], at 50 Hz."""
    widen_groups(network)
    forward = ForwardWrapper(network, lambda network, wav: network(wav).last_hidden_state)
    return tracing.trace(forward, {"wav": torch.zeros(1, 4000)}, [[1, -1]], ["last_hidden_state"])


def widen_groups(network: HubertModel) -> None:
    """Merge the groups of HuBERT's positional convolution to MIN_GROUP_CHANNELS or more; weights between them are zero.

    With narrower groups, OpenVINO and PyTorch compute wrong numbers in BF16 on processors with AMX.
    """
    conv = network.encoder.pos_conv_embed.conv
    width = conv.weight.shape[1]  # channels of a group
    divisors = (n for n in range(1, conv.groups + 1) if conv.groups % n == 0)
    count = next((n for n in divisors if n * width >= MIN_GROUP_CHANNELS), conv.groups)
    groups = conv.groups // count
    wide = nn.Conv1d(conv.in_channels, conv.out_channels, conv.kernel_size, padding=conv.padding, groups=groups)
    weight = torch.zeros_like(wide.weight).unflatten(0, (groups, count, -1)).unflatten(3, (count, -1))
    for place, rows in enumerate(conv.weight.detach().unflatten(0, (groups, count, -1)).unbind(1)):
        weight[:, place, :, place] = rows  # [groups, output channels, width, kernel]
    wide.weight, wide.bias = nn.Parameter(weight.reshape(wide.weight.shape)), conv.bias
    network.encoder.pos_conv_embed.conv = wide


def convert_bert(network: BertModel) -> ov.Model:
    """BERT: `input_ids` [1, T] int64, with [CLS] and [SEP], to `features` [1, T, 1024]."""
    forward = ForwardWrapper(network, lambda network, ids: network(ids).last_hidden_state)
    return tracing.trace(forward, {"input_ids": torch.ones(1, 5, dtype=torch.int64)}, [[1, -1]], ["features"])


def convert_semantic(network: SynthesizerTrn) -> ov.Model:
    """`SynthesizerTrn.encode`: HuBERT's `last_hidden_state` [1, T, 768] to `codes` [1, T // 2] int64."""
    width = network.ssl_proj.in_channels
    forward = ForwardWrapper(network, lambda network, ssl: network.encode(ssl.transpose(1, 2)))
    return tracing.trace(forward, {"last_hidden_state": torch.zeros(1, 7, width)}, [[1, -1, width]], ["codes"])


def convert_style(network: SynthesizerTrn) -> ov.Model:
    """Spectrogram and `SynthesizerTrn.style`: `wav` [1, S] at the synthesizer's rate to the style embedding `ge`
    [1, G, 1]; for v2Pro `speaker` [1, 20480] is an input, too."""
    example, shapes = {"wav": torch.zeros(1, 4 * network.spectrogram.size)}, [[1, -1]]
    if network.version == "v2Pro":
        example["speaker"] = torch.zeros(1, SPEAKER_SIZE)
        shapes.append([1, SPEAKER_SIZE])
    style = ForwardWrapper(network, lambda network, wav, *speaker: network.style(network.spectrogram(wav), *speaker))
    return tracing.trace(style, example, shapes, ["ge"])


def convert_synthesizer(network: SynthesizerTrn) -> ov.Model:
    """`SynthesizerTrn`: `codes` [1, N] and `phones` [1, P] int64, `ge` [1, G, 1] and `noise` [1, C, T], normal times
    `constants.NOISE_SCALE`, to `wav` [1, 1, S]. T is 2 N, or another number, which changes the speed."""
    style, channels = network.dec.cond.in_channels, network.dec.conv_pre.in_channels
    example = {
        "codes": torch.zeros(1, 3, dtype=torch.int64),
        "phones": torch.zeros(1, 5, dtype=torch.int64),
        "ge": torch.zeros(1, style, 1),
        "noise": torch.zeros(1, channels, 7),
    }
    shapes = [[1, -1], [1, -1], [1, style, 1], [1, channels, -1]]
    return portable.lift_transposed_convolutions(tracing.trace(network, example, shapes, ["wav"]))


def convert_text_embeddings(network: Text2SemanticDecoder) -> ov.Model:
    """`Text2SemanticDecoder.embed_text`: `phones` [B, P] int64 and `bert` [B, 1024, P] to `inputs_embeds` [B, P, D]."""
    width = network.bert_proj.in_features
    example = {"phones": torch.zeros(2, 3, dtype=torch.int64), "bert": torch.zeros(2, width, 3)}
    forward = ForwardWrapper(network, Text2SemanticDecoder.embed_text)
    return tracing.trace(forward, example, [[-1, -1], [-1, width, -1]], ["inputs_embeds"])


def convert_audio_embeddings(network: Text2SemanticDecoder) -> ov.Model:
    """`Text2SemanticDecoder.embed_audio`: `tokens` and `position_ids` [B, Y] int64 to `inputs_embeds` [B, Y, D]."""
    example = {name: torch.zeros(2, 3, dtype=torch.int64) for name in ("tokens", "position_ids")}
    forward = ForwardWrapper(network, Text2SemanticDecoder.embed_audio)
    return tracing.trace(forward, example, [[-1, -1]] * 2, ["inputs_embeds"])


def convert_language(network: Text2SemanticDecoder) -> ov.Model:
    """The layers and the head of the decoder, the KV cache inside it as state.

    Inputs `inputs_embeds` [B, T, D], `attention_mask` [B, cached + T] int64 (0 hides a row from all), `text_length`
    (int64, no dimensions: how many of the rows are phonemes, which attend to one another; 0 after the prefill),
    `beam_idx` [B] int32 (the row of the cache that each row continues). Output `logits` [B, V] of the next token.
    """
    step, example, shapes, outputs = language_step(network)
    traced = tracing.trace(step, example, shapes, outputs)
    past, present = (name for name in example if name.startswith(PAST)), outputs[1:]
    return tracing.stateful(traced, dict(zip(past, present, strict=True)))


def language_step(network: Text2SemanticDecoder) -> tuple[nn.Module, dict[str, Tensor], list, list[str]]:
    """The arguments of `tracing.trace` for the language model with its KV cache as inputs and outputs: the network, its
    inputs by name, their shapes, and the names of its outputs. A tensor of the cache is [B, H, cached, D / H]."""
    heads, width = network.heads, network.ar_predict_layer.in_features
    states = [f"{layer}.{kind}" for layer in range(len(network.h["layers"])) for kind in ("key", "value")]
    example = {
        "inputs_embeds": torch.zeros(2, 3, width),
        "attention_mask": torch.ones(2, 5, dtype=torch.int64),
        "text_length": torch.tensor(0),
    } | {f"{PAST}.{state}": torch.zeros(2, heads, 2, width // heads) for state in states}
    shapes = [[-1, -1, width], [-1, -1], []] + [[-1, heads, -1, width // heads]] * len(states)
    return _Language(network), example, shapes, ["logits", *(f"present.{state}" for state in states)]


CONVERT = {  # sub-model: the part of the checkpoint that it needs, its function
    "hubert": ("hubert", convert_hubert),
    "bert": ("bert", convert_bert),
    "semantic": ("sovits", convert_semantic),
    "style": ("sovits", convert_style),
    "synthesizer": ("sovits", convert_synthesizer),
    "text_embeddings": ("t2s", convert_text_embeddings),
    "audio_embeddings": ("t2s", convert_audio_embeddings),
    "language": ("t2s", convert_language),
}
LOAD: dict[str, Callable[[Path], nn.Module]] = {
    "hubert": load_hubert,
    "bert": load_bert,
    "sovits": load_sovits,
    "t2s": load_t2s,
}


def to_ir(checkpoint: Path, folder: Path) -> None:
    """Write the IR folder of a checkpoint, its 16-bit weights as FP16, and its settings; BERT only if it is there.

    Raises ValueError when a part is missing or damaged, or the parts do not fit together.
    """
    paths, settings = find(checkpoint), {}
    folder.mkdir(parents=True, exist_ok=True)
    for source in ("sovits", "t2s", "hubert", "bert"):
        if source not in paths:
            continue
        network = LOAD[source](paths[source])
        settings |= _settings(network, settings)
        for part, (origin, convert) in CONVERT.items():
            if origin == source:
                print(f"Converting {part} ...", flush=True)
                tracing.save(convert(network), folder / xml(part))
        del network  # before the next is read
    if "bert" in paths:
        if not (vocabulary := paths["bert"] / VOCABULARY_FILE).is_file():
            raise ValueError(
                f"{vocabulary} is missing: BERT's tokens are in it. Copy it there from where BERT is from."
            )
        shutil.copyfile(vocabulary, folder / VOCABULARY_FILE)
    (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=1), encoding="utf-8")


def compress(ir: Path, precision: str, group_size: int, folder: Path) -> None:
    """Write the IR folder `ir` with INT8 weights, or with INT4 weights in groups for the language model and INT8 else.

    The synthesizer is not compressed. Raises ValueError for another precision.
    """
    compressed = [part for part in COMPRESSED if (ir / xml(part)).is_file()]
    parts.compress(ir, precision, folder, compressed, {"group_size": group_size})


def prepare(model: str = "tiny", precision: str = "FP16") -> Path:
    """The IR folder of a model at one of PRECISIONS, built once and then cached. CHECKPOINT names another checkpoint.

    Raises ValueError for unknown names, preflight.NotEnough where memory or disk is too small.
    """
    return parts.prepare("gpt-sovits", MODELS, model, precision, to_ir, compress)


# --- the details ------------------------------------------------------------------------------------------------


class _Language(nn.Module):
    """The decoder with its KV cache as inputs and outputs [B, H, cached, D / H]."""

    def __init__(self, network: Text2SemanticDecoder) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor, text_length: Tensor, *past: Tensor) -> tuple:
        visible = prefix_mask(inputs_embeds.shape[1], attention_mask.shape[1], text_length)  # [1, 1, T, cached + T]
        mask = tracing.additive(visible & attention_mask[:, None, None].bool())  # [B, 1, T, cached + T]
        cache = list(zip(past[::2], past[1::2], strict=True))  # keys and values of each layer
        x, cache = self.network.run(inputs_embeds, mask, cache)  # [B, T, D]
        return self.network.ar_predict_layer(x[:, -1]), *(rows for pair in cache for rows in pair)


def _settings(network: nn.Module, known: dict) -> dict:
    """The settings that the pipeline needs of a part; known: those of the parts before it."""
    if isinstance(network, SynthesizerTrn):
        return {
            "version": network.version,
            "sample_rate": network.config["data"]["sampling_rate"],
            "samples_per_frame": network.dec.hop,
            "channels": network.dec.conv_pre.in_channels,
            "style": network.dec.cond.in_channels,
            "codes": len(network.codebook.embed),
            "phones": network.enc_p.text_embedding.num_embeddings,
        }
    if isinstance(network, Text2SemanticDecoder):
        phones = network.ar_text_embedding.word_embeddings.num_embeddings
        if network.eos != known["codes"] or phones < known["phones"]:
            raise ValueError(
                f"The decoder of tokens knows {phones} phones and {network.eos} tokens, but the synthesizer "
                f"{known['phones']} and {known['codes']}. Take both of one version."
            )
        return {"positions": MAX_POSITIONS, "bert": network.bert_proj.in_features}
    if isinstance(network, BertModel):
        return {"characters": network.config.max_position_embeddings - 2}  # [CLS] and [SEP] are two more
    return {}
