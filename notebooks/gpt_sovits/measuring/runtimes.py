"""One sentence in every runtime: GPT-SoVITS in PyTorch, ONNX Runtime and OpenVINO, with the same interface.

A runtime has `parts`, the sub-models that are called once; `run(part, *inputs)`, from arrays to an array; and
`decoder`, with `prefill` and `step` as of `token_decoder.SemanticDecoder`. `synthesize` calls them all. Decoding is
greedy and never ends early, so that all runtimes generate the same tokens, and as many.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import openvino as ov
import torch
from torch import nn

from notebooks.gpt_sovits import convert
from notebooks.gpt_sovits.convert import ForwardWrapper
from notebooks.gpt_sovits.network.checkpoint import find
from notebooks.gpt_sovits.network.pytorch_cloner import TorchDecoder
from notebooks.gpt_sovits.network.t2s import Text2SemanticDecoder
from notebooks.gpt_sovits.pipeline import (
    BERT,
    FP32_SUBMODELS,
    HUBERT_RATE_HZ,
    NOISE_SCALE,
    SETTINGS_FILE,
    SILENCE_SAMPLES,
)
from notebooks.gpt_sovits.pipeline.token_decoder import SUBMODELS as DECODER_SUBMODELS
from notebooks.gpt_sovits.pipeline.token_decoder import SemanticDecoder
from utils.models import onnx_runtime, portable, tracing
from utils.models.parts import xml

RECORDING_S = 4.5  # of the recording: with the silence after it, 127 tokens
CHARACTERS, SENTENCE_CHARACTERS = 40, 20  # of both texts; of the sentence alone
TOKENS = 100  # of the sentence, which lasts 4 seconds
TYPES = {"FP32": torch.float32, "BF16": torch.bfloat16}
VOCODER = "vocoder"  # a part of the synthesizer, which is measured on its own, too
DYNAMIC_AXES = {  # of each input in ONNX files: those that depend on the sentence
    "hubert": [[1]],
    "bert": [[1]],
    "semantic": [[1]],
    "synthesizer": [[], [], [], []],  # PyTorch exports its attention, which moves rows by their length, for one length
    VOCODER: [[2], []],
}  # not the style: its short-time Fourier transform is of complex numbers, which cannot be exported
Arrays = Sequence[np.ndarray]


class Sentence(NamedTuple):
    """Inputs for one sentence and its recording: noise, for the time does not depend on their values."""

    hubert_wav: np.ndarray  # [1, S] float32 at 16 kHz, with the silence after it
    wav: np.ndarray  # [1, S] float32, the same at the synthesizer's rate
    bert_ids: np.ndarray | None  # [1, CHARACTERS + 2] int64; None: there is no BERT
    phones: np.ndarray  # [2 CHARACTERS] int64, of recording and sentence
    features: np.ndarray  # [D, 2 CHARACTERS] float32, in place of BERT's where there is none
    sentence_phones: np.ndarray  # [1, 2 SENTENCE_CHARACTERS] int64, of the sentence alone
    noise: np.ndarray  # [1, C, 2 TOKENS] float32


def sentence(folder: Path) -> Sentence:
    """A sentence for the model of an IR folder."""
    settings = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    rng = np.random.default_rng(0)
    hubert_wav, wav = (
        0.1 * rng.standard_normal((1, int(RECORDING_S * rate)), np.float32)
        for rate in (HUBERT_RATE_HZ, settings["sample_rate"])
    )
    phones = rng.integers(0, settings["phones"], 2 * CHARACTERS)
    return Sentence(
        hubert_wav=np.pad(hubert_wav, ((0, 0), (0, SILENCE_SAMPLES))),
        wav=wav,
        bert_ids=np.ones((1, CHARACTERS + 2), np.int64) if (folder / xml(BERT)).is_file() else None,
        phones=phones,
        features=np.zeros((settings["bert"], len(phones)), np.float32),
        sentence_phones=phones[None, -2 * SENTENCE_CHARACTERS :],
        noise=NOISE_SCALE * rng.standard_normal((1, settings["channels"], 2 * TOKENS), np.float32),
    )


def synthesize(runtime: Runtime, sentence: Sentence) -> dict[str, Arrays]:
    """A sentence from the recording to the sound: the inputs of every part by its name, and under "sound" [1, 1, S].

    Under "tokens" are the inputs of the decoder. The vocoder, which the synthesizer contains, gets noise for latents.
    """
    inputs: dict[str, Arrays] = {"hubert": (sentence.hubert_wav,), "style": (sentence.wav,)}
    inputs["semantic"] = (runtime.run("hubert", sentence.hubert_wav),)
    prompts, ge = runtime.run("semantic", *inputs["semantic"])[0], runtime.run("style", sentence.wav)
    features = sentence.features
    if sentence.bert_ids is not None:
        inputs[BERT] = (sentence.bert_ids,)
        features = runtime.run(BERT, sentence.bert_ids)[0, 1:-1].repeat(2, 0).T
    inputs["tokens"] = sentence.phones, features, prompts
    tokens = greedy(runtime.decoder, *inputs["tokens"])
    inputs["synthesizer"] = tokens[None], sentence.sentence_phones, ge, sentence.noise
    inputs[VOCODER] = sentence.noise, ge
    return inputs | {"sound": (runtime.run("synthesizer", *inputs["synthesizer"]),)}


def save_inputs(inputs: Mapping[str, Arrays], path: Path) -> Path:
    """Write what `synthesize` returns to an .npz file, for processes that do not compute it; returns its path."""
    np.savez(path, **{f"{part} {i}": x for part, arrays in inputs.items() for i, x in enumerate(arrays)})
    return path


def load_inputs(path: Path) -> dict[str, Arrays]:
    """What `save_inputs` wrote."""
    inputs: dict[str, list[np.ndarray]] = {}
    with np.load(path, allow_pickle=False) as file:
        for name in file.files:
            inputs.setdefault(name.split()[0], []).append(file[name])
    return inputs


def greedy(decoder: Decoder, phones: np.ndarray, bert: np.ndarray, prompts: np.ndarray) -> np.ndarray:
    """The likeliest tokens [TOKENS] int64, one by one, never the end token; inputs: see `SemanticDecoder.prefill`."""
    logits, tokens = decoder.prefill(phones, bert, prompts), []
    while True:
        tokens.append(int(logits[:-1].argmax()))
        if len(tokens) == TOKENS:
            return np.array(tokens)
        logits = decoder.step(tokens[-1])


# --- PyTorch ----------------------------------------------------------------------------------------------------


def networks(checkpoint: Path) -> dict[str, nn.Module]:
    """The parts of a checkpoint folder, in FP32."""
    return {part: load_network(checkpoint, part) for part in find(checkpoint)}


def load_network(checkpoint: Path, part: str) -> nn.Module:
    """A part of a checkpoint folder, in FP32."""
    return convert.LOAD[part](find(checkpoint)[part])


def modules(networks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """The PyTorch modules of the converted sub-models that are called once, with the same inputs and output."""

    def states(network: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return network(x).last_hidden_state

    sovits = networks["sovits"]
    encoders = {part: ForwardWrapper(networks[part], states) for part in ("hubert", BERT) if part in networks}
    return encoders | {
        "semantic": ForwardWrapper(sovits, lambda network, ssl: network.encode(ssl.transpose(1, 2))),
        "style": ForwardWrapper(sovits, lambda network, wav: network.style(network.spectrogram(wav))),
        "synthesizer": sovits,
        VOCODER: sovits.dec,
    }


class Eager:
    """PyTorch in eager mode, on all cores.

    precision: "FP32" or "BF16", of weights and arithmetic; FP32_SUBMODELS are FP32 always. compiling: the synthesizer
    goes through torch.compile, for any length, and is the only part.
    """

    def __init__(self, checkpoint: Path, precision: str = "FP32", compiling: bool = False) -> None:
        loaded, self._dtype = networks(checkpoint), TYPES[precision]
        convert.widen_groups(loaded["hubert"])
        self._modules = modules(loaded)
        if precision != "FP32":  # these share weights with others, which are rounded
            self._modules |= {part: copy.deepcopy(self._modules[part]) for part in FP32_SUBMODELS}
        for part, network in self._modules.items():
            if part not in FP32_SUBMODELS:
                network.to(self._dtype)
        if compiling:
            self._modules = {"synthesizer": torch.compile(loaded["sovits"], dynamic=True)}
        self.decoder = TorchDecoder(loaded["t2s"].to(self._dtype), self._dtype)
        self.parts = tuple(self._modules)

    @torch.inference_mode()
    def run(self, part: str, *inputs: np.ndarray) -> np.ndarray:
        dtype = torch.float32 if part in FP32_SUBMODELS else self._dtype
        tensors = [torch.from_numpy(x) for x in inputs]
        output = self._modules[part](*(x.to(dtype) if x.is_floating_point() else x for x in tensors))
        return (output.float() if output.is_floating_point() else output).numpy()


# --- ONNX Runtime -----------------------------------------------------------------------------------------------


def export(checkpoint: Path, inputs: Mapping[str, Arrays], folder: Path) -> None:
    """Write an ONNX file of every sub-model but the style, the decoder's cache as inputs and outputs.

    inputs: of `synthesize`.
    """
    loaded = networks(checkpoint)
    for part, network in modules(loaded).items():
        if part in DYNAMIC_AXES:
            tensors = tuple(torch.from_numpy(x) for x in inputs[part])
            axes = {f"x{i}": of for i, of in enumerate(DYNAMIC_AXES[part])}
            _export(network, tensors, axes, [], folder / f"{part}.onnx")
    t2s = loaded["t2s"]
    phones, bert, tokens = (torch.from_numpy(x)[None] for x in inputs["tokens"])
    embed_text = ForwardWrapper(t2s, Text2SemanticDecoder.embed_text)
    _export(embed_text, (phones, bert), {"phones": [1], "bert": [2]}, [], folder / "text_embeddings.onnx")
    embed_audio = ForwardWrapper(t2s, Text2SemanticDecoder.embed_audio)
    axes = {"tokens": [1], "position_ids": [1]}
    _export(embed_audio, (tokens, torch.zeros_like(tokens)), axes, [], folder / "audio_embeddings.onnx")
    step, example, shapes, outputs = convert.language_step(t2s)
    axes = {name: [i for i, n in enumerate(shape) if n == -1] for name, shape in zip(example, shapes, strict=True)}
    axes |= {name: [0, 2] for name in outputs[1:]}
    _export(step, tuple(example.values()), axes, outputs, folder / "language.onnx")


def _export(network: nn.Module, inputs: tuple, axes: dict[str, list[int]], outputs: list[str], path: Path) -> None:
    """axes: the dynamic axes of each input, by name, and of outputs."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv1d) and layer.padding == "same":  # ONNX Runtime knows it only without dilation
            layer.padding = (layer.dilation[0] * (layer.kernel_size[0] - 1) // 2,)
    dynamic = {name: {i: f"{name}.{i}" for i in of} for name, of in axes.items() if of}
    names = {"input_names": [name for name in axes if name not in outputs], "output_names": outputs or ["output"]}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tracing: the results are compared with PyTorch's instead
        torch.onnx.export(network, inputs, str(path), **names, dynamic_axes=dynamic, dynamo=False, opset_version=18)


class Exported:
    """ONNX Runtime on the files of `export`."""

    def __init__(self, folder: Path) -> None:
        self._sessions = {file.stem: onnx_runtime.session(file) for file in sorted(folder.glob("*.onnx"))}
        self.parts = tuple(part for part in self._sessions if part not in DECODER_SUBMODELS)
        inputs = self._sessions["language"].get_inputs()
        empty = {x.name: (1, x.shape[1], 0, x.shape[3]) for x in inputs if x.name.startswith(convert.PAST)}
        self.decoder = ExternalCacheDecoder(lambda part, inputs: self._sessions[part].run(None, inputs), empty)

    def run(self, part: str, *inputs: np.ndarray) -> np.ndarray:
        return self._sessions[part].run(None, {f"x{i}": x for i, x in enumerate(inputs)})[0]


# --- OpenVINO ---------------------------------------------------------------------------------------------------


class Converted:
    """The models of an IR folder as `pipeline.VoiceCloner` runs them. vocoder: the file of `convert_vocoder`."""

    def __init__(self, folder: Path, vocoder: Path | None = None, **properties: str) -> None:
        core = ov.Core()
        files = {part: folder / xml(part) for part in convert.CONVERT if part not in DECODER_SUBMODELS}
        if vocoder:
            files[VOCODER] = vocoder
        self._requests = {
            part: core.compile_model(file, "CPU", FP32_SUBMODELS.get(part, properties)).create_infer_request()
            for part, file in files.items()
            if file.is_file()
        }
        self.parts = tuple(self._requests)
        self.decoder = SemanticDecoder(folder, **properties)

    def run(self, part: str, *inputs: np.ndarray) -> np.ndarray:
        request = self._requests[part]
        request.infer(list(inputs))
        return request.get_output_tensor(0).data.copy()


def convert_vocoder(checkpoint: Path, path: Path) -> Path:
    """Write the IR of a synthesizer's vocoder alone; returns its path."""
    network = load_network(checkpoint, "sovits").dec
    channels, style = network.conv_pre.in_channels, network.cond.in_channels
    example = {"z": torch.zeros(1, channels, 7), "ge": torch.zeros(1, style, 1)}
    model = tracing.trace(network, example, [[1, channels, -1], [1, style, 1]], ["wav"])
    tracing.save(portable.lift_transposed_convolutions(model), path)
    return path


def openvino_external_cache(checkpoint: Path, folder: Path, **properties: str) -> ExternalCacheDecoder:
    """OpenVINO's decoder with its cache in Python, as outputs and inputs of every step. folder: the IR."""
    step, example, shapes, outputs = convert.language_step(load_network(checkpoint, "t2s"))
    models: dict = {part: folder / xml(part) for part in DECODER_SUBMODELS}
    models["language"] = tracing.trace(step, example, shapes, outputs)
    core = ov.Core()
    requests = {part: core.compile_model(x, "CPU", properties).create_infer_request() for part, x in models.items()}
    empty = {name: (1, x.shape[1], 0, x.shape[3]) for name, x in example.items() if name.startswith(convert.PAST)}
    return ExternalCacheDecoder(lambda part, inputs: [*requests[part].infer(inputs, share_inputs=True).values()], empty)


def fused_layers(compiled: ov.CompiledModel) -> int:
    """How many layers of a language model, as the CPU runs it, have attention and KV cache in one node."""

    def kind(node: ov.Node) -> str:
        return node.get_rt_info()["layerType"].astype(str)

    nodes = (x for x in compiled.get_runtime_model().get_ops() if kind(x) == "ScaledDotProductAttention")
    inputs = ([kind(x.input_value(i).get_node()) for i in range(x.get_input_size())] for x in nodes)
    return sum(kinds.count("MemoryInput") == 2 for kinds in inputs)  # keys and values


# --- other decoders ---------------------------------------------------------------------------------------------


class ExternalCacheDecoder:
    """A decoder whose KV cache is an output of every step, and an input of the next one.

    run: from the name of one of `token_decoder.SUBMODELS` and inputs by name to its outputs. empty: shapes of the first
    caches by name.
    """

    def __init__(self, run: Callable[[str, Mapping[str, np.ndarray]], Arrays], empty: Mapping[str, tuple]) -> None:
        self._infer, self._empty = run, empty

    def prefill(self, phones: np.ndarray, bert: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        self._cache = {name: np.zeros(shape, np.float32) for name, shape in self._empty.items()}
        self._cached = self._position = 0
        (text,) = self._infer("text_embeddings", {"phones": phones[None], "bert": bert[None]})
        return self._logits(np.concatenate([text, self._embed(prompts)], 1), len(phones))

    def step(self, token: int) -> np.ndarray:
        return self._logits(self._embed(np.array([token])), 0)

    def _embed(self, tokens: np.ndarray) -> np.ndarray:
        positions = np.arange(self._position, self._position + len(tokens))
        self._position += len(tokens)
        return self._infer("audio_embeddings", {"tokens": tokens[None], "position_ids": positions[None]})[0]

    def _logits(self, embeddings: np.ndarray, text: int) -> np.ndarray:
        self._cached += embeddings.shape[1]
        mask = np.ones((1, self._cached), np.int64)
        inputs = {"inputs_embeds": embeddings, "attention_mask": mask, "text_length": np.array(text)}
        logits, *caches = self._infer("language", inputs | self._cache)
        self._cache = dict(zip(self._cache, caches, strict=True))
        return logits[0]


class NoCacheDecoder:
    """A decoder that computes the whole context again for every token."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def prefill(self, phones: np.ndarray, bert: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        self._text, self._tokens = (phones, bert), prompts
        return self._decoder.prefill(phones, bert, prompts)

    def step(self, token: int) -> np.ndarray:
        self._tokens = np.append(self._tokens, token)
        return self._decoder.prefill(*self._text, self._tokens)


Decoder = TorchDecoder | SemanticDecoder | ExternalCacheDecoder | NoCacheDecoder
Runtime = Eager | Exported | Converted
