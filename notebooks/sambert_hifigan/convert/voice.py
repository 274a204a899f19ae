"""Converts a KAN-TTS voice to OpenVINO IR, one function per sub-model, and quantizes its vocoder to INT8.

`to_ir` writes the folder that `pipeline.synthesizer` describes and reads; `prepare` converts and caches the checkpoints
of this collection. The two autoregressive models, durations and decoder, have their loops inside the graph.

T: phonemes, F: frames, N: groups of r frames, M: mel channels, C: channels of an embedding, D: width of the decoder, L:
blocks of the decoder, P: groups in the cache, K: groups of the memory, H: sines, S: samples.
"""

from __future__ import annotations

import copy
import json
import logging
import shutil
from collections.abc import Callable, Iterable
from itertools import cycle
from pathlib import Path

import numpy as np
import openvino as ov
import torch
import yaml
from openvino import opset13 as ops
from torch import Tensor, nn

from notebooks.sambert_hifigan.convert.loops import loop_model, step_ports
from notebooks.sambert_hifigan.data import training_sentences
from notebooks.sambert_hifigan.network.acoustic import KanTtsSAMBERT, load_acoustic
from notebooks.sambert_hifigan.network.checkpoint import parameters
from notebooks.sambert_hifigan.network.decoder import MelDecoder
from notebooks.sambert_hifigan.network.layers import Part
from notebooks.sambert_hifigan.network.vocoder import Generator, load_vocoder
from notebooks.sambert_hifigan.pipeline import CONFIG, SPEAKERS, Synthesizer, parts_of, read_embedding
from notebooks.sambert_hifigan.pipeline.frontend import standard_tables
from utils import weights
from utils.convert import cached
from utils.models import portable, tracing

PRECISIONS = ("FP32", "FP16", "INT8")  # of the weights; INT8: weights and activations of the vocoder, FP16 elsewhere
MODELS = {  # checkpoint: its name in checkpoints.toml; ram_gb: memory that the notebook needs
    "tiny": {"checkpoint": "sambert_hifigan_tiny", "ram_gb": 3},
    "released": {"checkpoint": "sambert_hifigan", "ram_gb": 4},
}
CALIBRATION_SENTENCES = 12
SEED = 0  # of phases and noise in the calibration data


def convert_encoder(network: KanTtsSAMBERT) -> ov.Model:
    """`KanTtsSAMBERT.encode`: `ling` [1, T, 4], `emotion` and `speaker` [1, T] int64 to `text`, `emotion_embedding` and
    `speaker_embedding`, [1, T, C] each. With SE, the model has neither `speaker` nor `speaker_embedding`."""
    example = {"ling": _zeros(5, 4).long(), "emotion": _zeros(5).long()}
    outputs = ["text", "emotion_embedding"]
    if hasattr(network, "spk_tokenizer"):
        example["speaker"] = _zeros(5).long()
        outputs.append("speaker_embedding")
    return traced(Encoder(network), example, outputs)


def convert_variance(network: KanTtsSAMBERT) -> ov.Model:
    """`VarianceAdaptor`: `text`, `speaker_embedding` and `emotion_embedding` to `adapted` and `condition` [1, T, C],
    `pitch` and `energy` [1, T]."""
    example = dict(zip(("text", "speaker_embedding", "emotion_embedding"), _embeddings(network), strict=True))
    return traced(network.variance_adaptor, example, ["adapted", "condition", "pitch", "energy"])


def convert_duration(network: KanTtsSAMBERT) -> ov.Model:
    """`DurationPredictor.infer`: `condition` [1, T, C] to `log_durations` [1, T].

    A loop over the phonemes, which passes on the state of the LSTM and the duration of the phoneme before.
    """
    body_inputs, (log_duration, h, c) = step_ports(duration_step(network))
    condition = ops.parameter([1, -1, body_inputs["condition"].shape[2]], name="condition")
    states = {"previous": log_duration, "h": h, "c": c}
    return loop_model(body_inputs, "log_durations", log_duration, {"condition": condition}, {}, states)


def convert_memory(network: KanTtsSAMBERT) -> ov.Model:
    """`KanTtsSAMBERT.build_memory`: `adapted`, `speaker_embedding` and `emotion_embedding` [1, T, C] each, and `token`
    and `place` [1, N * r] int64 to `memory` [1, N, C] and its keys and values `ahead` [L, 1, N, 2D]."""
    frames = torch.ones(1, 2 * network.r, dtype=torch.int64)
    names = "adapted", "speaker_embedding", "emotion_embedding", "token", "place"
    example = dict(zip(names, (*_embeddings(network), frames, frames), strict=True))
    return traced(Part(network, "build_memory"), example, ["memory", "ahead"])


def convert_decoder(network: KanTtsSAMBERT) -> ov.Model:
    """`MelDecoder.infer`: `memory` [1, N, C], `ahead` [L, 1, N, 2D] and `band` (int64, no dimensions) to `frames`
    [1, N, r * M].

    A loop over the groups, which passes on the cache and the last frame of the group before.
    """
    body_inputs, (frames, cache) = step_ports(decoder_step(network.decoder))
    mels, (blocks, _, _, width) = network.decoder.mels, network.decoder.start(1).shape

    # inputs of the model
    memory = ops.parameter([1, -1, body_inputs["memory"].shape[2]], name="memory")
    ahead = ops.parameter([blocks, 1, -1, width], name="ahead")
    band = ops.parameter([], np.int64, name="band")

    # a step gets `ahead` as a whole and reads the window that begins at its own number
    step_number, whole_ahead = ops.parameter([], np.int64), ops.parameter([blocks, 1, -1, width])
    one, axis = ops.constant([1]), ops.constant([2])
    begin = ops.unsqueeze(step_number, ops.constant(0))
    end = ops.add(ops.add(begin, one), ops.unsqueeze(body_inputs["band"], ops.constant(0)))
    window = ops.slice(whole_ahead, begin, end, one, axis)
    for port in body_inputs.pop("ahead").output(0).get_target_inputs():
        port.replace_source_output(window.output(0))
    body_inputs["whole_ahead"] = whole_ahead

    # the next step gets the last frame of this group
    last = ops.slice(frames, ops.constant([-mels]), ops.constant([np.iinfo(np.int64).max]), one, axis)
    states = {"previous": last.output(0), "cache": cache}
    invariant = {"whole_ahead": ahead, "band": band}
    return loop_model(body_inputs, "frames", frames, {"memory": memory}, invariant, states, step_number)


def convert_finish(network: KanTtsSAMBERT) -> ov.Model:
    """`KanTtsSAMBERT.finish`, which has the postnet: `decoded` [1, F, M] to `mel` [1, M, F]."""
    return traced(Part(network, "finish"), {"decoded": _zeros(7, network.decoder.mels)}, ["mel"])


def convert_source(network: Generator) -> ov.Model:
    """`Source` of a vocoder with NSF: `f0` and `voiced` [1, 1, F], `phase` [1, H, 1] and `noise` [1, H, S] to `source`
    [1, 1, S]. It is a model of its own, so that it computes in FP32 where the vocoder computes in BF16."""
    example = {"f0": _zeros(1, 6), "voiced": _zeros(1, 6), "phase": _zeros(network.sines, 1)}
    example["noise"] = _zeros(network.sines, 6 * network.hop)
    return traced(network.source_module, example, ["source"], {"f0": 2, "voiced": 2, "noise": 2})


def convert_vocoder(network: Generator) -> ov.Model:
    """`Generator.filter`: `mel` [1, M, F], and with NSF `source` [1, 1, S], to `sound` [1, 1, S]."""
    network, frames = copy.deepcopy(network), 6
    for upsample in network.repeat_upsamples:
        upsample[0] = _Repeat(int(upsample[0].scale_factor))
    example = {"mel": _zeros(network.mels, frames)}
    if network.nsf:
        example["source"] = _zeros(1, frames * network.hop)
    model = traced(Part(network, "filter"), example, ["sound"], dict.fromkeys(example, 2))
    return portable.lift_transposed_convolutions(model)


ACOUSTIC: dict[str, Callable[[KanTtsSAMBERT], ov.Model]] = {
    "encoder": convert_encoder,
    "variance": convert_variance,
    "duration": convert_duration,
    "memory": convert_memory,
    "decoder": convert_decoder,
    "finish": convert_finish,
}
VOCODER: dict[str, Callable[[Generator], ov.Model]] = {"source": convert_source, "vocoder": convert_vocoder}


def to_ir(voice: str | Path, folder: str | Path, half: bool = True) -> Path:
    """Write the IR folder of a voice, weights in FP16 with `half`; returns it.

    voice: a folder with `am` and `voc`, as `load_acoustic` and `load_vocoder` read them. The speakers are those in the
    table of the acoustic model. An SE voice has embeddings instead, in am/speakers/NAME.npy or in am/se.npy, which gets
    the name of the voice. Raises ValueError for missing or damaged files, and for parts that do not fit together.
    """
    voice, folder = Path(voice), Path(folder)
    acoustic, vocoder = load_acoustic(voice / "am"), load_vocoder(voice / "voc")
    config = voice_config(voice, acoustic, vocoder)
    embeddings = speaker_embeddings(voice, config["embedding"]) if config["embedding"] else {}
    folder.mkdir(parents=True, exist_ok=True)
    for part, convert in ACOUSTIC.items():
        ov.save_model(convert(acoustic), folder / f"{part}.xml", compress_to_fp16=half)
    for part, convert in VOCODER.items():
        if part in parts_of(config):
            ov.save_model(convert(vocoder), folder / f"{part}.xml", compress_to_fp16=half)
    for name, embedding in embeddings.items():
        (folder / SPEAKERS).mkdir(exist_ok=True)
        np.save(folder / SPEAKERS / f"{name}.npy", embedding, allow_pickle=False)
    (folder / CONFIG).write_text(json.dumps(config, ensure_ascii=False, indent=1), encoding="utf-8")
    return folder


def voice_config(voice: Path, acoustic: KanTtsSAMBERT, vocoder: Generator) -> dict:
    """The content of voice.json, see `pipeline.synthesizer`.

    Raises ValueError if the vocoder, the tables of symbols or the sample rate do not fit the acoustic model.
    """
    mels = acoustic.decoder.mels
    vocoder_mels = vocoder.mels + (2 if vocoder.nsf else 0)
    if mels != vocoder_mels:
        raise ValueError(f"The acoustic model of {voice} makes {mels} channels, but its vocoder takes {vocoder_mels}.")
    text, named = acoustic.text_encoder, hasattr(acoustic, "spk_tokenizer")
    embeddings = {
        "sy": text.sy_emb,
        "tone": text.tone_emb,
        "syllable_flag": text.syllable_flag_emb,
        "word_segment": text.ws_emb,
        "emotion": acoustic.emo_tokenizer,
    }
    if named:
        embeddings["speaker"] = acoustic.spk_tokenizer
    speakers = (acoustic.config.get("linguistic_unit") or {}).get("speaker_list") or "F7"
    names = [name.strip() for name in speakers.split(",")] if isinstance(speakers, str) else list(map(str, speakers))
    tables = standard_tables(names)
    if text.sy_emb.num_embeddings < len(tables["sy"]):
        tables = standard_tables(names, mask=False)
    sizes = {table: (x.num_embeddings, len(tables[table])) for table, x in embeddings.items()}
    if wrong := [f"{table} {rows} and {entries}" for table, (rows, entries) in sizes.items() if rows != entries]:
        raise ValueError(
            f"{voice} has embeddings and tables of symbols of different lengths: {', '.join(wrong)}. Take a Mandarin "
            "voice, and name all its speakers in am/config.yaml under linguistic_unit / speaker_list."
        )
    return {
        "sample_rate": _sample_rate(voice, vocoder),
        "hop": vocoder.hop,
        "group": acoustic.r,
        "positions": text.ling_enc["position_enc"].position_enc.shape[1],
        "embedding": 0 if named else _speaker_units(acoustic),
        "sines": vocoder.sines if vocoder.nsf else 0,
        "tables": tables,
    }


def speaker_embeddings(voice: Path, size: int) -> dict[str, np.ndarray]:
    """The embeddings [size] float32 of an SE voice by name. Raises ValueError for a file without an embedding."""
    files = {file.stem: file for file in sorted((voice / "am" / SPEAKERS).glob("*.npy"))}
    if (own := voice / "am" / "se.npy").is_file():
        files[voice.resolve().name] = own
    return {name: read_embedding(file, size) for name, file in files.items()}


def quantize(ir: str | Path, mels: Iterable[np.ndarray], folder: str | Path) -> Path:
    """Copy the IR folder `ir` with the vocoder quantized to INT8; returns the new folder.

    mels: calibration data, spectrograms [M, F] of sentences as in `Spoken.mel`. Raises ValueError without any.
    """
    import nncf

    ir, folder, mels = Path(ir), Path(folder), list(mels)
    if not mels:
        raise ValueError("Quantization needs mel spectrograms to calibrate on, and there are none. Pass some.")
    nncf.set_log_level(logging.ERROR)
    synthesizer, rng = Synthesizer(ir), np.random.default_rng(SEED)
    items = [synthesizer.vocoder_inputs(mel, rng) for mel in mels]
    model = nncf.quantize(
        ov.Core().read_model(ir / "vocoder.xml"),
        nncf.Dataset(items),
        preset=nncf.QuantizationPreset.PERFORMANCE,  # zero points make convolutions on a CPU five times slower
        subset_size=len(items),
        # without VNNI, sums of two products are kept in 16 bits, and weights of 8 bits overflow them
        advanced_parameters=nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.ENABLE),
    )
    shutil.copytree(ir, folder, ignore=shutil.ignore_patterns("vocoder.*", "manifest.json"), dirs_exist_ok=True)
    ov.save_model(model, folder / "vocoder.xml", compress_to_fp16=True)
    return folder


def calibration(ir: str | Path) -> list[np.ndarray]:
    """Mel spectrograms [M, F] of training sentences, synthesized with all speakers of the IR in turn."""
    synthesizer = Synthesizer(ir)
    texts = training_sentences(synthesizer.frontend, CALIBRATION_SENTENCES)
    pairs = zip(texts, cycle(synthesizer.speakers), strict=False)
    return [spoken.mel for text, name in pairs for spoken in synthesizer.stream(text, name)]


def source(model: str) -> Path:
    """The checkpoint folder of a voice, with `am` and `voc`. CHECKPOINT names another one.

    Raises ValueError for an unknown name, and for a folder of several voices.
    """
    if model not in MODELS:
        raise ValueError(f"There is no {model!r}. Choose from {', '.join(MODELS)}.")
    return voice_folder(weights.resolve(MODELS[model]["checkpoint"]))


def prepare(model: str = "tiny", precision: str = "FP16") -> Path:
    """The IR folder of a voice at one of PRECISIONS, converted once and then cached. CHECKPOINT names another one.

    Raises ValueError for unknown names.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"There is no {model!r} at {precision!r}. Choose from {', '.join(PRECISIONS)}.")
    voice = source(model)

    arguments = {"name": voice.name}
    if precision == "INT8":
        arguments["sentences"] = CALIBRATION_SENTENCES

    @cached(
        f"sambert_hifigan-{model}-{precision.lower()}",
        checkpoint=voice,
        arguments=arguments,
        versions=("openvino", "nncf", "torch"),
    )
    def build(folder: Path) -> None:
        if precision == "INT8":
            half = prepare(model, "FP16")
            quantize(half, calibration(half), folder)
        else:
            to_ir(voice, folder, half=precision == "FP16")

    return build()


def voice_folder(checkpoint: str | Path) -> Path:
    """The folder of a voice: the checkpoint itself if it has `am`, otherwise the one that its voices.json names.

    Raises a ValueError that lists the voices if there are several.
    """
    checkpoint = Path(checkpoint)
    if (checkpoint / "am").is_dir():
        return checkpoint
    for home in (checkpoint / "voices", checkpoint):
        if (listed := home / "voices.json").is_file():
            try:
                names = list(map(str, json.loads(listed.read_text(encoding="utf-8"))["voices"]))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f'{listed} cannot be read. It has the form {{"voices": [names]}}.') from error
            if len(names) == 1:
                return home / names[0]
            raise ValueError(f"{checkpoint} has several voices. Let CHECKPOINT name one in {home}: {', '.join(names)}.")
    raise ValueError(f"{checkpoint} has neither am nor voices.json. Let CHECKPOINT name the folder of a KAN-TTS voice.")


# --- details ----------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """`KanTtsSAMBERT.encode` with the speaker as the last output, or without it."""

    def __init__(self, network: KanTtsSAMBERT) -> None:
        super().__init__()
        self.network = network

    def forward(self, ling: Tensor, emotion: Tensor, speaker: Tensor | None = None) -> tuple[Tensor, ...]:
        text, speaker, emotion = self.network.encode(ling, emotion, speaker)
        return (text, emotion) if speaker is None else (text, emotion, speaker)


class _Repeat(nn.Module):
    """Repeats every place. The interpolation of the network does not run in BF16 on a CPU (OpenVINO 2026.4)."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        return x[..., None].expand(-1, -1, -1, self.times).flatten(2)  # [B, C, times * T]


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(1, *shape)


def _speaker_units(network: KanTtsSAMBERT) -> int:
    return parameters(network.config, "KanTtsSAMBERT")["speaker_units"]


def _embeddings(network: KanTtsSAMBERT, phonemes: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Example outputs of `encode`, [1, phonemes, C] each."""
    text = network.text_encoder.ling_proj.out_features
    widths = text, _speaker_units(network), network.emo_tokenizer.embedding_dim
    return tuple(_zeros(phonemes, width) for width in widths)


def traced(
    network: nn.Module, example: dict[str, Tensor], outputs: list[str], dynamic: dict[str, int] | None = None
) -> ov.Model:
    """Trace to an OpenVINO model with named inputs and outputs.

    dynamic: the dynamic axis of every input that has one. None: axis 1 of all inputs.
    """
    axes = dict.fromkeys(example, 1) if dynamic is None else dynamic
    shapes = [[-1 if i == axes.get(name) else size for i, size in enumerate(x.shape)] for name, x in example.items()]
    return tracing.trace(network, example, shapes, outputs)


def duration_step(network: KanTtsSAMBERT) -> ov.Model:
    """A step of `DurationPredictor`: `previous` [1, 1], `condition` [1, 1, C] and the LSTM's state, `h` and `c`, to
    `log_duration` [1, 1], `next_h` and `next_c`."""
    predictor = network.variance_adaptor.duration_predictor
    h, c = predictor.start(1)
    width = sum(x.shape[-1] for x in _embeddings(network))
    example = {"previous": _zeros(1), "condition": _zeros(1, width), "h": h, "c": c}
    return traced(predictor, example, ["log_duration", "next_h", "next_c"], {})


def decoder_step(decoder: MelDecoder) -> ov.Model:
    """A step of `MelDecoder`: `previous` [1, 1, M], `memory` [1, 1, C], `ahead` [L, 1, K, 2D], `cache` [L, 1, P, 2D]
    and `band` (int64, no dimensions) to `frames` [1, 1, r * M] and `next_cache`."""
    memory = decoder.dec_in_proj.in_features - decoder.width
    ahead = _zeros(3, 2 * decoder.width).expand(len(decoder.pnca), -1, -1, -1).contiguous()
    example = {"previous": _zeros(1, decoder.mels), "memory": _zeros(1, memory), "ahead": ahead}
    example |= {"cache": ahead[:, :, :2], "band": torch.tensor(2)}
    return traced(decoder, example, ["frames", "next_cache"], {"ahead": 2, "cache": 2})


def _sample_rate(voice: Path, vocoder: Generator) -> int:
    """The sample rate in Hz. audio_config.yaml, the config.yaml of the vocoder and its source must agree."""
    path = voice / "audio_config.yaml"
    try:
        audio = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
        rates = [x["audio_config"]["sampling_rate"] for x in (audio, vocoder.config) if "audio_config" in x]
    except (ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read ({error!r}). It has audio_config / sampling_rate.") from error
    if vocoder.nsf:
        rates.append(vocoder.rate)
    if len(set(rates)) != 1:
        raise ValueError(
            f"{voice} must tell one sample rate, not {rates}: audio_config / sampling_rate in audio_config.yaml or "
            "voc/config.yaml."
        )
    return int(rates[0])
