"""A sentence in every runtime: GPT-SoVITS in PyTorch, ONNX Runtime and OpenVINO, called alike.

A runtime has `parts`, the sub-models that are called once; `run(part, *inputs)`, arrays to an array; and `decoder`,
with `prefill` and `step` as `semantic.SemanticDecoder` has them. `say` puts them together. Tokens are the likeliest,
and none of them ends the sentence, so that all runtimes make the same, and as many.
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
from notebooks.gpt_sovits.network.checkpoint import find
from notebooks.gpt_sovits.network.t2s import Text2SemanticDecoder
from notebooks.gpt_sovits.pipeline import BERT, EXACT, HEARD, NOISE, SETTINGS, SILENCE
from notebooks.gpt_sovits.pipeline.token_decoder import PARTS as DECODER
from notebooks.gpt_sovits.pipeline.token_decoder import SemanticDecoder
from utils.models import tracing
from utils.models.parts import xml

REFERENCE = 4.5  # seconds of the recording: with the silence after it, 127 tokens
CHARACTERS, SAID, TOKENS = 40, 20, 100  # of both texts; of the sentence alone; 4 seconds that it lasts
TYPES = {"FP32": torch.float32, "BF16": torch.bfloat16}
VOCODER = "vocoder"  # a part of the synthesizer, measured alone beside it
FREE = {  # the axes of each input that depend on the sentence, in ONNX files
    "hubert": [[1]],
    "bert": [[1]],
    "semantic": [[1]],
    "synthesizer": [[], [], [], []],  # PyTorch exports its attention, which moves rows by their length, for one length
    VOCODER: [[2], []],
}  # not the style: its short-time Fourier transform is of complex numbers, which cannot be exported
Arrays = Sequence[np.ndarray]


class Sentence(NamedTuple):
    """What is said, and after which recording: noise, for the time does not depend on it."""

    heard: np.ndarray  # [1, S] float32 of 16 kHz, the silence after it included
    wav: np.ndarray  # [1, S] float32, the same at the synthesizer's rate
    ids: np.ndarray | None  # [1, CHARACTERS + 2] int64 for BERT; None: there is none
    phones: np.ndarray  # [2 CHARACTERS] int64, of recording and sentence
    features: np.ndarray  # [D, 2 CHARACTERS] float32, what stands for BERT's where there is none
    said: np.ndarray  # [1, 2 SAID] int64, of the sentence
    noise: np.ndarray  # [1, C, 2 TOKENS] float32


def sentence(folder: Path) -> Sentence:
    """A sentence for the model of an IR folder."""
    settings, rng = json.loads((folder / SETTINGS).read_text(encoding="utf-8")), np.random.default_rng(0)
    heard, wav = (
        0.1 * rng.standard_normal((1, int(REFERENCE * rate)), np.float32) for rate in (HEARD, settings["sample_rate"])
    )
    phones = rng.integers(0, settings["phones"], 2 * CHARACTERS)
    return Sentence(
        heard=np.pad(heard, ((0, 0), (0, SILENCE))),
        wav=wav,
        ids=np.ones((1, CHARACTERS + 2), np.int64) if (folder / xml(BERT)).is_file() else None,
        phones=phones,
        features=np.zeros((settings["bert"], len(phones)), np.float32),
        said=phones[None, -2 * SAID :],
        noise=NOISE * rng.standard_normal((1, settings["channels"], 2 * TOKENS), np.float32),
    )


def say(runtime: Runtime, sentence: Sentence) -> dict[str, Arrays]:
    """A sentence from the recording to the sound: what every part was given, and under "sound" [1, 1, S].

    Under "tokens" is what the decoder is given; the vocoder, which the synthesizer contains, gets noise for latents.
    """
    given: dict[str, Arrays] = {"hubert": (sentence.heard,), "style": (sentence.wav,)}
    given["semantic"] = (runtime.run("hubert", sentence.heard),)
    prompts, ge = runtime.run("semantic", *given["semantic"])[0], runtime.run("style", sentence.wav)
    features = sentence.features
    if sentence.ids is not None:
        given[BERT] = (sentence.ids,)
        features = runtime.run(BERT, sentence.ids)[0, 1:-1].repeat(2, 0).T
    given["tokens"] = sentence.phones, features, prompts
    tokens = greedy(runtime.decoder, *given["tokens"])
    given["synthesizer"] = tokens[None], sentence.said, ge, sentence.noise
    given[VOCODER] = sentence.noise, ge
    return given | {"sound": (runtime.run("synthesizer", *given["synthesizer"]),)}


def greedy(decoder: Decoder, phones: np.ndarray, bert: np.ndarray, prompts: np.ndarray) -> np.ndarray:
    """The likeliest tokens [TOKENS] int64, one by one, the end not among them; inputs: see `SemanticDecoder`."""
    logits, said = decoder.prefill(phones, bert, prompts), []
    while True:
        said.append(int(logits[:-1].argmax()))
        if len(said) == TOKENS:
            return np.array(said)
        logits = decoder.step(said[-1])


# --- PyTorch ----------------------------------------------------------------------------------------------------


def networks(checkpoint: Path) -> dict[str, nn.Module]:
    """The parts of a checkpoint folder, in FP32."""
    return {part: convert.LOAD[part](path) for part, path in find(checkpoint).items()}


def modules(found: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """The networks behind the converted sub-models that are called once, with the same inputs and output."""

    def states(network: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return network(x).last_hidden_state

    sovits = found["sovits"]
    made = {part: convert._Forward(found[part], states) for part in ("hubert", BERT) if part in found}
    return made | {
        "semantic": convert._Forward(sovits, lambda network, ssl: network.encode(ssl.transpose(1, 2))),
        "style": convert._Forward(sovits, lambda network, wav: network.style(network.spectrogram(wav))),
        "synthesizer": sovits,
        VOCODER: sovits.dec,
    }


class Eager:
    """PyTorch as it is, on all cores.

    precision: "FP32" or "BF16", of weights and arithmetic; the parts that the pipeline keeps exact are FP32 always.
    compiling: the synthesizer goes through torch.compile, for any length, and is the only part.
    """

    def __init__(self, checkpoint: Path, precision: str = "FP32", compiling: bool = False) -> None:
        found, self._type = networks(checkpoint), TYPES[precision]
        self._modules = modules(found)
        if precision != "FP32":
            self._modules |= {part: copy.deepcopy(self._modules[part]) for part in EXACT}  # before the rest is rounded
        for part, network in self._modules.items():
            if part not in EXACT:
                network.to(self._type)
        if compiling:
            self._modules = {"synthesizer": torch.compile(found["sovits"], dynamic=True)}
        self.decoder = InPyTorch(found["t2s"].to(self._type), self._type)
        self.parts = tuple(self._modules)

    @torch.inference_mode()
    def run(self, part: str, *inputs: np.ndarray) -> np.ndarray:
        dtype = torch.float32 if part in EXACT else self._type
        given = [torch.from_numpy(x) for x in inputs]
        found = self._modules[part](*(x.to(dtype) if x.is_floating_point() else x for x in given))
        return (found.float() if found.is_floating_point() else found).numpy()


class InPyTorch:
    """The decoder with the cache that the network has itself."""

    def __init__(self, network: Text2SemanticDecoder, dtype: torch.dtype) -> None:
        self.network, self._type = network, dtype

    @torch.inference_mode()
    def prefill(self, phones: np.ndarray, bert: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        self._position = len(prompts)
        words, features, tokens = (torch.from_numpy(x)[None] for x in (phones, bert, prompts))
        logits, self._cache = self.network.prefill(words, features.to(self._type), tokens)
        return logits[0].float().numpy()

    @torch.inference_mode()
    def step(self, token: int) -> np.ndarray:
        logits, self._cache = self.network.step(torch.tensor([[token]]), self._position, self._cache)
        self._position += 1
        return logits[0].float().numpy()


# --- ONNX Runtime -----------------------------------------------------------------------------------------------


def export(checkpoint: Path, given: Mapping[str, Arrays], folder: Path) -> None:
    """Write an ONNX file of every sub-model but the style; the decoder's cache goes in and out. given: of `say`."""
    found = networks(checkpoint)
    for part, network in modules(found).items():
        if part in FREE:
            inputs = tuple(torch.from_numpy(x) for x in given[part])
            free = {f"x{i}": axes for i, axes in enumerate(FREE[part])}
            _export(network, inputs, free, [], folder / f"{part}.onnx")
    t2s = found["t2s"]
    words, features, tokens = (torch.from_numpy(x)[None] for x in given["tokens"])
    embed = convert._Forward(t2s, Text2SemanticDecoder.embed_text)
    _export(embed, (words, features), {"phones": [1], "bert": [2]}, [], folder / "text_embeddings.onnx")
    embed = convert._Forward(t2s, Text2SemanticDecoder.embed_audio)
    free = {"tokens": [1], "position_ids": [1]}
    _export(embed, (tokens, torch.zeros_like(tokens)), free, [], folder / "audio_embeddings.onnx")
    step, example, shapes, outputs = convert.language_step(t2s)
    free = {name: [i for i, n in enumerate(shape) if n == -1] for name, shape in zip(example, shapes, strict=True)}
    free |= {name: [0, 2] for name in outputs[1:]}
    _export(step, tuple(example.values()), free, outputs, folder / "language.onnx")


def _export(network: nn.Module, inputs: tuple, free: dict[str, list[int]], outputs: list[str], path: Path) -> None:
    """free: the free axes of each input, by name, and of outputs."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv1d) and layer.padding == "same":  # ONNX Runtime knows it only without dilation
            layer.padding = (layer.dilation[0] * (layer.kernel_size[0] - 1) // 2,)
    axes = {name: {i: f"{name}.{i}" for i in of} for name, of in free.items() if of}
    names = {"input_names": [name for name in free if name not in outputs], "output_names": outputs or ["output"]}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what tracing fears is what the results are compared for
        torch.onnx.export(network, inputs, str(path), **names, dynamic_axes=axes, dynamo=False, opset_version=18)


class Exported:
    """ONNX Runtime on the files of `export`: all cores, all its optimizations (the default)."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        files, provider = sorted(folder.glob("*.onnx")), ["CPUExecutionProvider"]
        self._sessions = {file.stem: onnxruntime.InferenceSession(str(file), providers=provider) for file in files}
        self.parts = tuple(part for part in self._sessions if part not in DECODER)
        inputs = self._sessions["language"].get_inputs()
        empty = {x.name: (1, x.shape[1], 0, x.shape[3]) for x in inputs if x.name.startswith(convert.PAST)}
        self.decoder = CachePassed(lambda part, inputs: self._sessions[part].run(None, inputs), empty)

    def run(self, part: str, *inputs: np.ndarray) -> np.ndarray:
        return self._sessions[part].run(None, {f"x{i}": x for i, x in enumerate(inputs)})[0]


# --- OpenVINO ---------------------------------------------------------------------------------------------------


class Converted:
    """The models of an IR folder as `pipeline.VoiceCloner` runs them. vocoder: the file of `convert_vocoder`."""

    def __init__(self, folder: Path, vocoder: Path | None = None, **properties: str) -> None:
        core, files = ov.Core(), {part: folder / xml(part) for part in convert.CONVERT if part not in DECODER}
        if vocoder:
            files[VOCODER] = vocoder
        self._requests = {
            part: core.compile_model(file, "CPU", EXACT.get(part, properties)).create_infer_request()
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
    """Write the IR of a synthesizer's vocoder alone, weights in FP16; returns its path."""
    network = networks(checkpoint)["sovits"].dec
    channels, style = network.conv_pre.in_channels, network.cond.in_channels
    example = {"z": torch.zeros(1, channels, 7), "ge": torch.zeros(1, style, 1)}
    ov.save_model(tracing.trace(network, example, [[1, channels, -1], [1, style, 1]], ["wav"]), path)
    return path


def passed(checkpoint: Path, folder: Path, **properties: str) -> CachePassed:
    """OpenVINO's decoder with the cache going out to Python after every token and in again. folder: the IR."""
    network = networks(checkpoint)["t2s"]
    step, example, shapes, outputs = convert.language_step(network)
    models: dict = {part: folder / xml(part) for part in DECODER}
    models["language"] = tracing.trace(step, example, shapes, outputs)
    core = ov.Core()
    requests = {part: core.compile_model(x, "CPU", properties).create_infer_request() for part, x in models.items()}
    empty = {name: (1, x.shape[1], 0, x.shape[3]) for name, x in example.items() if name.startswith(convert.PAST)}
    return CachePassed(lambda part, inputs: [*requests[part].infer(inputs, share_inputs=True).values()], empty)


def fused(compiled: ov.CompiledModel) -> int:
    """How many layers of a language model, as the CPU runs it, have attention and KV cache in one node."""

    def kind(node: ov.Node) -> str:
        return node.get_rt_info()["layerType"].astype(str)

    nodes = (x for x in compiled.get_runtime_model().get_ops() if kind(x) == "ScaledDotProductAttention")
    read = ([kind(x.input_value(i).get_node()) for i in range(x.get_input_size())] for x in nodes)
    return sum(kinds.count("MemoryInput") == 2 for kinds in read)  # keys and values


# --- other decoders ---------------------------------------------------------------------------------------------


class CachePassed:
    """A decoder whose cache comes out of every call, and goes into the next one.

    run: name of one of semantic.PARTS and inputs by name, to its outputs. empty: shapes of the first caches by name.
    """

    def __init__(self, run: Callable[[str, Mapping[str, np.ndarray]], Arrays], empty: Mapping[str, tuple]) -> None:
        self._infer, self._empty = run, empty

    def prefill(self, phones: np.ndarray, bert: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        self._cache = {name: np.zeros(shape, np.float32) for name, shape in self._empty.items()}
        self._rows = self._position = 0
        (text,) = self._infer("text_embeddings", {"phones": phones[None], "bert": bert[None]})
        return self._read(np.concatenate([text, self._embed(prompts)], 1), len(phones))

    def step(self, token: int) -> np.ndarray:
        return self._read(self._embed(np.array([token])), 0)

    def _embed(self, tokens: np.ndarray) -> np.ndarray:
        places = np.arange(self._position, self._position + len(tokens))
        self._position += len(tokens)
        return self._infer("audio_embeddings", {"tokens": tokens[None], "position_ids": places[None]})[0]

    def _read(self, rows: np.ndarray, text: int) -> np.ndarray:
        self._rows += rows.shape[1]
        mask = np.ones((1, self._rows), np.int64)
        inputs = {"inputs_embeds": rows, "attention_mask": mask, "text_length": np.array(text)}
        logits, *caches = self._infer("language", inputs | self._cache)
        self._cache = dict(zip(self._cache, caches, strict=True))
        return logits[0]


class Recomputing:
    """A decoder that reads everything again for every token, as if there were no cache."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def prefill(self, phones: np.ndarray, bert: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        self._text, self._tokens = (phones, bert), prompts
        return self._decoder.prefill(phones, bert, prompts)

    def step(self, token: int) -> np.ndarray:
        self._tokens = np.append(self._tokens, token)
        return self._decoder.prefill(*self._text, self._tokens)


Decoder = InPyTorch | SemanticDecoder | CachePassed | Recomputing
Runtime = Eager | Exported | Converted
