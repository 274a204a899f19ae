"""The sub-models of SAMBERT-HiFiGAN in PyTorch, ONNX Runtime and OpenVINO, behind one interface.

A runtime has `run(part, *inputs)`, arrays to arrays, for each of `pipeline.parts_of`. Its methods `durations` and
`decode` run all steps of the two autoregressive models. `synthesize` runs all sub-models for a sentence.
T: symbols, F: frames, N: groups of r frames, M: mel channels, S: samples, C: channels of an embedding, D: width of the
decoder, L: blocks of the decoder, E: size of a speaker embedding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from torch import nn

from notebooks.sambert_hifigan import convert
from notebooks.sambert_hifigan.network.acoustic import KanTtsSAMBERT
from notebooks.sambert_hifigan.network.layers import Part
from notebooks.sambert_hifigan.network.vocoder import Generator
from notebooks.sambert_hifigan.pipeline import (
    FP32_PROPERTIES,
    Synthesizer,
    band_of,
    frames_of,
    parts_of,
    source_inputs,
    stretch,
)
from utils.models import onnx_runtime

Arrays = Sequence[np.ndarray]
Step = Callable[..., Arrays]  # a sub-model


def modules(acoustic: KanTtsSAMBERT, vocoder: Generator) -> dict[str, nn.Module]:
    """The sub-models by the names of `pipeline.parts_of`; the autoregressive ones are steps with explicit states."""
    networks = {
        "encoder": convert.Encoder(acoustic),
        "variance": acoustic.variance_adaptor,
        "duration": acoustic.variance_adaptor.duration_predictor,
        "memory": Part(acoustic, "build_memory"),
        "decoder": acoustic.decoder,
        "finish": Part(acoustic, "finish"),
        "vocoder": Part(vocoder, "filter"),
    }
    if vocoder.nsf:
        networks["source"] = copy.deepcopy(vocoder.source_module)  # stays FP32 where the vocoder is cast to BF16
    return networks


def eager(networks: Mapping[str, nn.Module], precision: str = "FP32") -> dict[str, Step]:
    """PyTorch eager on all cores. "BF16" casts the vocoder; the acoustic model and the source stay in FP32."""

    def step(part: str, network: nn.Module) -> Step:
        dtype = torch.bfloat16 if (part, precision) == ("vocoder", "BF16") else torch.float32
        network = network.to(dtype)

        @torch.inference_mode()
        def run(*inputs: np.ndarray) -> Arrays:
            tensors = [torch.from_numpy(x) for x in inputs]
            outputs = network(*(x.to(dtype) if x.is_floating_point() else x for x in tensors))
            if not isinstance(outputs, tuple):
                outputs = (outputs,)
            return [x.float().numpy() for x in outputs]

        return run

    return {part: step(part, network) for part, network in networks.items()}


def compiled(networks: Mapping[str, nn.Module]) -> dict[str, Step]:
    """torch.compile of every sub-model for any length. Compiling takes minutes, so only `bench.main` uses it."""
    return eager({part: torch.compile(network, dynamic=True) for part, network in networks.items()})


def onnx(networks: Mapping[str, nn.Module], inputs: Mapping[str, Arrays], folder: Path) -> dict[str, Step]:
    """ONNX Runtime with the exported networks. inputs: example inputs of every part, see `StepwiseRuntime.examples`."""
    steps = {}
    for part, network in networks.items():
        path = folder / f"{part}.onnx"
        example = tuple(torch.from_numpy(x) for x in inputs[part])
        names = [f"x{i}" for i in range(len(example))]
        axes = {name: _dynamic_axes(part, i) for i, name in enumerate(names)}
        settings = {"input_names": names, "dynamic_axes": axes, "dynamo": False, "opset_version": 18}
        with torch.no_grad():
            torch.onnx.export(network, example, str(path), **settings)
        session = onnx_runtime.session(path)

        def run(*arrays: np.ndarray, session=session) -> Arrays:
            return session.run(None, {f"x{i}": x for i, x in enumerate(arrays)})

        steps[part] = run
    return steps


def _dynamic_axes(part: str, number: int) -> dict[int, str]:
    """The dynamic axes of an input of a part: those whose size depends on the sentence."""
    if part == "duration":
        return {}
    if part == "decoder":
        return {2: f"n{number}"} if number in (2, 3) else {}  # `ahead` and the cache
    if part in ("source", "vocoder"):
        return {2: f"n{number}"} if (part, number) != ("source", 2) else {}  # all but the phase
    return {1: f"n{number}"}


class StepwiseRuntime:
    """Runs steps without states (PyTorch or ONNX Runtime). The loops over the steps, with their states, are here."""

    def __init__(self, steps: Mapping[str, Step], acoustic: KanTtsSAMBERT) -> None:
        self.steps = steps
        self._lstm_start = [x.numpy() for x in acoustic.variance_adaptor.duration_predictor.start(1)]  # [2, 1, C] each
        self._cache_start = acoustic.decoder.start(1).numpy()  # [L, 1, 0, 2D]
        self._mels = acoustic.decoder.mels

    def run(self, part: str, *inputs: np.ndarray) -> Arrays:
        return self.steps[part](*inputs)

    def durations(self, condition: np.ndarray) -> np.ndarray:
        """See `Synthesizer.durations`."""
        state, log_durations = self._lstm_start, [np.zeros((1, 1), np.float32)]
        for i in range(condition.shape[1]):
            log_duration, *state = self.run("duration", log_durations[-1], condition[:, i : i + 1], *state)  # [1, 1]
            log_durations.append(log_duration)
        return np.exp(np.concatenate(log_durations[1:])[:, 0]) - 1  # [T]

    def decode(self, memory: np.ndarray, ahead: np.ndarray, band: int) -> np.ndarray:
        """See `Synthesizer.decode`."""
        cache, groups = self._cache_start, [np.zeros((1, 1, self._mels), np.float32)]
        for i in range(memory.shape[1]):
            previous = groups[-1][..., -self._mels :]  # [1, 1, M]
            window = ahead[:, :, i : i + band + 1]  # [L, 1, band + 1, 2D]
            frames, cache = self.run("decoder", previous, memory[:, i : i + 1], window, cache, np.array(band))
            groups.append(frames)
        return np.concatenate(groups[1:], 1).reshape(1, -1, self._mels)  # [1, N * r, M]

    def examples(self, inputs: Mapping[str, Arrays]) -> dict[str, Arrays]:
        """Example inputs of every part. inputs: of `synthesize`."""
        (condition,) = inputs["durations"]
        memory, ahead, band = inputs["decoder"]
        previous, window = np.zeros((1, 1, self._mels), np.float32), ahead[:, :, : band + 1]
        steps = {
            "duration": (np.zeros((1, 1), np.float32), condition[:, :1], *self._lstm_start),
            "decoder": (previous, memory[:, :1], window, window[:, :, :band], np.array(band)),
        }
        return {part: steps.get(part) or inputs[part] for part in self.steps}


class OpenVINORuntime:
    """Runs the models of a `Synthesizer`, whose loops are inside the graphs."""

    def __init__(self, folder: Path, **properties: str) -> None:
        self.synthesizer = Synthesizer(folder, **properties)
        self.durations, self.decode = self.synthesizer.durations, self.synthesizer.decode
        parts = parts_of(self.synthesizer.config)
        self._input_names = {part: self.synthesizer.input_names(part) for part in parts}

    def run(self, part: str, *inputs: np.ndarray) -> Arrays:
        named = dict(zip(self._input_names[part], inputs, strict=True))
        return [*self.synthesizer.run(part, **named).values()]


class StatefulRuntime:
    """Runs the autoregressive models as OpenVINO models of one step with the state inside, one call per step.

    This is the alternative to the loops that `convert` builds.
    """

    def __init__(self, acoustic: KanTtsSAMBERT) -> None:
        steps = {"duration": convert.duration_step(acoustic), "decoder": convert.decoder_step(acoustic.decoder)}
        core, self._mels = ov.Core(), acoustic.decoder.mels
        self.requests = {
            part: core.compile_model(stateful(step), "CPU", FP32_PROPERTIES).create_infer_request()
            for part, step in steps.items()
        }

    def durations(self, condition: np.ndarray) -> np.ndarray:
        """See `Synthesizer.durations`."""
        request, log_durations = self.requests["duration"], [np.zeros((1, 1), np.float32)]
        request.reset_state()
        for i in range(condition.shape[1]):
            inputs = {"previous": log_durations[-1], "condition": condition[:, i : i + 1]}
            log_durations.append(request.infer(inputs, share_inputs=True)["log_duration"])
        return np.exp(np.concatenate(log_durations[1:])[:, 0]) - 1  # [T]

    def decode(self, memory: np.ndarray, ahead: np.ndarray, band: int) -> np.ndarray:
        """See `Synthesizer.decode`."""
        request, groups = self.requests["decoder"], [np.zeros((1, 1, self._mels), np.float32)]
        request.reset_state()
        for i in range(memory.shape[1]):
            inputs = {
                "previous": groups[-1][..., -self._mels :],  # [1, 1, M]
                "memory": memory[:, i : i + 1],  # [1, 1, C]
                "ahead": ahead[:, :, i : i + band + 1],  # [L, 1, band + 1, 2D]
                "band": np.array(band),
            }
            groups.append(request.infer(inputs)["frames"])
        return np.concatenate(groups[1:], 1).reshape(1, -1, self._mels)  # [1, N * r, M]


def stateful(step: ov.Model) -> ov.Model:
    """Turn each input NAME of a step into a state of the model, if the step has an output `next_NAME`.

    A state starts with zeros; where its size is dynamic, it starts empty.
    """
    from openvino._offline_transformations import apply_make_stateful_transformation

    outputs = [port.any_name for port in step.outputs if port.any_name.startswith("next_")]
    apply_make_stateful_transformation(step, {name.removeprefix("next_"): name for name in outputs})
    for operation in step.get_ops():
        if operation.get_type_name() == "ReadValue":
            shape = [0 if size.is_dynamic else size.get_length() for size in operation.get_output_partial_shape(0)]
            operation.set_arguments([ops.constant(np.zeros(shape, np.float32))])
    step.validate_nodes_and_infer_types()
    return step


Runtime = StepwiseRuntime | OpenVINORuntime


class SentenceInputs(NamedTuple):
    """A sentence as the encoder takes it."""

    encoder: Arrays  # ling [1, T, 4], emotion [1, T], and speaker [1, T] where speakers are in a table
    embedding: np.ndarray | None  # [1, T, E], where speakers are embeddings


def read_sentence(synthesizer: Synthesizer, speaker: str, sentence: str) -> SentenceInputs:
    """Run the front end for a sentence."""
    voice = synthesizer.resolve_speaker(speaker)
    symbols = synthesizer.symbols(sentence, voice)
    inputs = list(synthesizer.encoder_inputs(symbols, voice).values())
    embedding = None if isinstance(voice, str) else np.tile(voice, (1, len(symbols), 1))
    return SentenceInputs(inputs, embedding)


def synthesize(runtime: Runtime, sentence: SentenceInputs, config: Mapping) -> dict[str, Arrays]:
    """Run a sentence from the encoder to the vocoder. Returns the inputs of every part, and the "sound" [1, 1, S].

    "durations" and "decoder" have the inputs for all steps. config: the content of voice.json.
    """
    inputs: dict[str, Arrays] = {"encoder": sentence.encoder}

    # embeddings with pitch and energy
    text, emotion, *speaker = runtime.run("encoder", *inputs["encoder"])  # [1, T, C] each
    voice = (speaker[0] if speaker else sentence.embedding, emotion)
    inputs["variance"] = (text, *voice)
    adapted, condition, *_ = runtime.run("variance", *inputs["variance"])

    # durations
    inputs["durations"] = (condition,)
    durations = runtime.durations(condition)  # [T]
    frames, group = frames_of(durations), config["group"]
    token, place = stretch(frames, group)  # [N * r] each

    # mel spectrogram
    inputs["memory"] = (adapted, *voice, token[None], place[None])
    memory, ahead = runtime.run("memory", *inputs["memory"])  # [1, N, C], [L, 1, N, 2D]
    inputs["decoder"] = (memory, ahead, band_of(durations, group))
    decoded = runtime.decode(*inputs["decoder"])  # [1, N * r, M]
    inputs["finish"] = (decoded[:, : frames.sum()],)
    (mel,) = runtime.run("finish", *inputs["finish"])  # [1, M, F]

    # sound
    if config["sines"]:
        mel, f0, voiced = np.split(mel, [-2, -1], 1)
        random = source_inputs(config, mel.shape[2], np.random.default_rng(0))
        inputs["source"] = (f0, voiced, *random.values())
        inputs["vocoder"] = (mel, *runtime.run("source", *inputs["source"]))
    else:
        inputs["vocoder"] = (mel,)
    return inputs | {"sound": runtime.run("vocoder", *inputs["vocoder"])}
