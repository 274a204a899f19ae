"""A sentence in every runtime: SAMBERT-HiFiGAN's sub-models in PyTorch, ONNX Runtime and OpenVINO, called alike.

A runtime has `run(part, *inputs)` for each of pipeline.parts_of, arrays to arrays, and `durations` and `decode` for all
steps of what runs step by step. `say` puts them together.
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
from notebooks.sambert_hifigan.pipeline import EXACT, Synthesizer, band_of, frames_of, source_inputs, stretch

Arrays = Sequence[np.ndarray]
Step = Callable[..., Arrays]  # a sub-model: arrays to arrays


def modules(acoustic: KanTtsSAMBERT, vocoder: Generator) -> dict[str, nn.Module]:
    """The networks behind pipeline.parts_of, with the same inputs and outputs, and the states where there are some."""
    found = {
        "encoder": convert.Encoder(acoustic),
        "variance": acoustic.variance_adaptor,
        "duration": acoustic.variance_adaptor.duration_predictor,
        "memory": Part(acoustic, "remember"),
        "decoder": acoustic.decoder,
        "finish": Part(acoustic, "finish"),
        "vocoder": Part(vocoder, "filter"),
    }
    return found | ({"source": copy.deepcopy(vocoder.source_module)} if vocoder.nsf else {})  # exact in BF16, too


def eager(networks: Mapping[str, nn.Module], precision: str = "FP32") -> dict[str, Step]:
    """PyTorch as it is, on all cores. BF16: of the vocoder's arithmetic and weights; the acoustic model stays exact."""

    def step(part: str, network: nn.Module) -> Step:
        dtype = torch.bfloat16 if (part, precision) == ("vocoder", "BF16") else torch.float32
        network = network.to(dtype)

        @torch.inference_mode()
        def run(*inputs: np.ndarray) -> Arrays:
            given = [torch.from_numpy(x) for x in inputs]
            found = network(*(x.to(dtype) if x.is_floating_point() else x for x in given))
            return [x.float().numpy() for x in (found if isinstance(found, tuple) else (found,))]

        return run

    return {part: step(part, network) for part, network in networks.items()}


def compiled(networks: Mapping[str, nn.Module]) -> dict[str, Step]:
    """torch.compile of every sub-model for any length; compiling takes minutes, so that only `main` does it."""
    return eager({part: torch.compile(network, dynamic=True) for part, network in networks.items()})


def onnx(networks: Mapping[str, nn.Module], inputs: Mapping[str, Arrays], folder: Path) -> dict[str, Step]:
    """ONNX Runtime on the exported networks: all cores, all its optimizations (the default).

    inputs: of every part, see `Stepwise.examples`.
    """
    import onnxruntime

    steps = {}
    for part, network in networks.items():
        path, given = folder / f"{part}.onnx", tuple(torch.from_numpy(x) for x in inputs[part])
        names = [f"x{i}" for i in range(len(given))]
        free = {name: _free_axes(part, i) for i, name in enumerate(names)}
        settings = {"input_names": names, "dynamic_axes": free, "dynamo": False, "opset_version": 18}
        with torch.no_grad():
            torch.onnx.export(network, given, str(path), **settings)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

        def run(*arrays: np.ndarray, session=session) -> Arrays:
            return session.run(None, {f"x{i}": x for i, x in enumerate(arrays)})

        steps[part] = run
    return steps


def _free_axes(part: str, number: int) -> dict[int, str]:
    """Axes of a part's input whose size depends on the sentence."""
    if part == "duration":
        return {}
    if part == "decoder":
        return {2: f"n{number}"} if number in (2, 3) else {}  # what it reads ahead, and its cache
    if part in ("source", "vocoder"):
        return {2: f"n{number}"} if (part, number) != ("source", 2) else {}  # the phase
    return {1: f"n{number}"}


class Stepwise:
    """Functions without states, PyTorch's or ONNX Runtime's, in a sentence: the states are kept here."""

    def __init__(self, steps: Mapping[str, Step], acoustic: KanTtsSAMBERT) -> None:
        self.steps = steps
        self._start = [x.numpy() for x in acoustic.variance_adaptor.duration_predictor.start(1)]
        self._empty, self._mels = acoustic.decoder.start(1).numpy(), acoustic.decoder.mels

    def run(self, part: str, *inputs: np.ndarray) -> Arrays:
        return self.steps[part](*inputs)

    def durations(self, condition: np.ndarray) -> np.ndarray:
        """As `Synthesizer._durations`."""
        state, logs = self._start, [np.zeros((1, 1), np.float32)]
        for i in range(condition.shape[1]):
            last, *state = self.run("duration", logs[-1], condition[:, i : i + 1], *state)
            logs.append(last)
        return np.exp(np.concatenate(logs[1:])[:, 0]) - 1

    def decode(self, memory: np.ndarray, ahead: np.ndarray, band: int) -> np.ndarray:
        """As `Synthesizer._decode`."""
        cache, made = self._empty, [np.zeros((1, 1, self._mels), np.float32)]
        for i in range(memory.shape[1]):
            window = memory[:, i : i + 1], ahead[:, :, i : i + band + 1]
            frames, cache = self.run("decoder", made[-1][..., -self._mels :], *window, cache, np.array(band))
            made.append(frames)
        return np.concatenate(made[1:], 1).reshape(1, -1, self._mels)

    def examples(self, given: Mapping[str, Arrays]) -> dict[str, Arrays]:
        """Inputs of every part. given: of `say`."""
        (condition,), (memory, ahead, band) = given["durations"], given["decoder"]
        window = ahead[:, :, : band + 1]
        state = np.zeros((1, 1, self._mels), np.float32), memory[:, :1], window, window[:, :, :band], np.array(band)
        steps = {"duration": (np.zeros((1, 1), np.float32), condition[:, :1], *self._start), "decoder": state}
        return {part: steps.get(part) or given[part] for part in self.steps}


class Converted:
    """The same by the models of a `Synthesizer`, whose loops are inside."""

    def __init__(self, folder: Path, **properties: str) -> None:
        self.synthesizer = Synthesizer(folder, **properties)
        self.durations, self.decode = self.synthesizer._durations, self.synthesizer._decode
        requests = self.synthesizer._requests.items()
        self._names = {part: [x.any_name for x in request.get_compiled_model().inputs] for part, request in requests}

    def run(self, part: str, *inputs: np.ndarray) -> Arrays:
        return [*self.synthesizer._run(part, **dict(zip(self._names[part], inputs, strict=True))).values()]


class Stateful:
    """What runs step by step as OpenVINO models of a step with the state inside, called from Python for each: the other
    way than the loops of `convert`."""

    def __init__(self, acoustic: KanTtsSAMBERT) -> None:
        steps = {"duration": convert.duration_step(acoustic), "decoder": convert.decoder_step(acoustic.decoder)}
        core, self._mels = ov.Core(), acoustic.decoder.mels
        self.requests = {
            part: core.compile_model(stateful(step), "CPU", EXACT).create_infer_request()
            for part, step in steps.items()
        }

    def durations(self, condition: np.ndarray) -> np.ndarray:
        """As `Synthesizer._durations`."""
        request, logs = self.requests["duration"], [np.zeros((1, 1), np.float32)]
        request.reset_state()
        for i in range(condition.shape[1]):
            given = {"previous": logs[-1], "condition": condition[:, i : i + 1]}
            logs.append(request.infer(given, share_inputs=True)["log_duration"])
        return np.exp(np.concatenate(logs[1:])[:, 0]) - 1

    def decode(self, memory: np.ndarray, ahead: np.ndarray, band: int) -> np.ndarray:
        """As `Synthesizer._decode`."""
        request, made = self.requests["decoder"], [np.zeros((1, 1, self._mels), np.float32)]
        request.reset_state()
        for i in range(memory.shape[1]):
            given = {"previous": made[-1][..., -self._mels :], "memory": memory[:, i : i + 1], "band": np.array(band)}
            given["ahead"] = ahead[:, :, i : i + band + 1]
            made.append(request.infer(given)["frames"])
        return np.concatenate(made[1:], 1).reshape(1, -1, self._mels)


def stateful(step: ov.Model) -> ov.Model:
    """Keep inside the model of a step each input that an output `next_NAME` follows; at first it is zeros, and empty
    where its size is free."""
    from openvino._offline_transformations import apply_make_stateful_transformation

    outputs = [port.any_name for port in step.outputs if port.any_name.startswith("next_")]
    apply_make_stateful_transformation(step, {name.removeprefix("next_"): name for name in outputs})
    for operation in step.get_ops():
        if operation.get_type_name() == "ReadValue":
            shape = [0 if size.is_dynamic else size.get_length() for size in operation.get_output_partial_shape(0)]
            operation.set_arguments([ops.constant(np.zeros(shape, np.float32))])
    step.validate_nodes_and_infer_types()
    return step


Runtime = Stepwise | Converted


class Reading(NamedTuple):
    """A sentence as the encoder takes it, and the speaker where that is an embedding [1, T, E]."""

    inputs: Arrays
    embedding: np.ndarray | None


def read(synthesizer: Synthesizer, speaker: str, sentence: str) -> Reading:
    """What the front end makes of a sentence."""
    who, frontend = synthesizer._speaker(speaker), synthesizer.frontend
    named = isinstance(who, str)
    ids = frontend.ids(frontend.symbols(sentence, who if named else frontend.speakers[0]))
    ling = np.stack([ids[stream] for stream in ("sy", "tone", "syllable_flag", "word_segment")], -1)[None]
    inputs = [ling, np.array([ids["emotion"]]), *([np.array([ids["speaker"]])] if named else [])]
    return Reading(inputs, None if named else np.tile(who, (1, ling.shape[1], 1)))


def say(runtime: Runtime, reading: Reading, config: Mapping) -> dict[str, Arrays]:
    """A sentence from the encoder to the sound: what every part was given, and under "sound" [1, 1, S].

    Under "durations" and "decoder" is what all steps are given. config: of voice.json.
    """
    given: dict[str, Arrays] = {"encoder": reading.inputs}
    text, emotion, *speaker = runtime.run("encoder", *reading.inputs)
    voice = speaker[0] if speaker else reading.embedding, emotion
    given["variance"] = text, *voice
    adapted, condition, *_ = runtime.run("variance", *given["variance"])
    given["durations"] = (condition,)
    durations, r = runtime.durations(condition), config["group"]
    frames = frames_of(durations)
    token, place = stretch(frames, r)
    given["memory"] = adapted, *voice, token[None], place[None]
    given["decoder"] = *runtime.run("memory", *given["memory"]), band_of(durations, r)
    given["finish"] = (runtime.decode(*given["decoder"])[:, : frames.sum()],)
    (mel,) = runtime.run("finish", *given["finish"])
    given["vocoder"] = (mel,)
    if config["sines"]:
        mel, f0, voiced = np.split(mel, [-2, -1], 1)
        given["source"] = f0, voiced, *source_inputs(config, mel.shape[2], np.random.default_rng(0)).values()
        given["vocoder"] = mel, *runtime.run("source", *given["source"])
    return given | {"sound": runtime.run("vocoder", *given["vocoder"])}
