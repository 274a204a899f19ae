"""What an emulated ARM processor computes: `python -m notebooks.arm.measuring` stores it in notebooks/arm/emulated and
in results/examination/arm.json. The notebook runs the emulator where it is, and shows what is stored elsewhere.

Emulation shows whether results are right. It says nothing about time, so nothing here is timed.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import torch

from notebooks.arm import convert, data, pipeline
from notebooks.arm.network import NoiseGate
from notebooks.arm.pipeline import Run
from utils import compare, paths, report
from utils.arm import sweep
from utils.models.llm import FP32_PROPERTIES, MODEL_XML, Session, model_inputs, perplexity, tokenize
from utils.setup import emulator

STORED = paths.notebook_dir(__package__) / "emulated"
SAME_INPUTS = 1e-4  # of numbers that the libraries of two machines may compute with other last digits
TIMEOUT_S = 1800
TOLERANCE = 1e-4  # of samples between -1 and 1
HERE = "signal-to-noise ratio on this processor, dB"
ON_ARM = "signal-to-noise ratio on emulated ARM, dB"
SHARE = 0.95  # of PyTorch's signal-to-noise ratio that is needed
TOKENS = 64
PERPLEXITY = f"perplexity of {TOKENS} tokens on emulated ARM"
PRECISIONS = {"FP32": "f32", "FP16": "f16"}  # name in the tables -> OpenVINO's


def on_arm(name: str, model: ov.Model, here: Run, precision: str | None = "f32") -> Run:
    """The run of a model on an emulated ARM processor with the inputs of a run here: now if the emulator is here, else
    as it was stored under a name. The processor's name says which.

    precision: of the arithmetic, or None for the processor's own choice. Raises ValueError where there is neither, and
    where what is stored is of another model or other inputs.
    """
    home = paths.models_dir() / "arm"
    if program := emulator.found(home):
        return emulated(program, emulator.version(home), model, here, precision)
    file = stored(name, precision)
    if not file.is_file():
        raise ValueError(
            f"There is no emulator here, and no {file.name} is stored. Run `make bench CASE=arm` on Debian."
        )
    run = pipeline.load(file)
    same = len(run.inputs) == len(here.inputs) and all(
        one.shape == other.shape and np.abs(one - other).max() < SAME_INPUTS
        for one, other in zip(run.inputs, here.inputs, strict=True)
    )
    if run.model != here.model or not same:
        raise ValueError(f"{file.name} is of another model or other inputs. Run `make bench CASE=arm` on Debian.")
    return replace(run, processor=f"{run.processor}, stored on {run.date}")


def emulated(program: list[str], version: str, model: ov.Model, here: Run, precision: str | None) -> Run:
    """The run of a model on the emulated processor that `program` starts. Raises ValueError where it does not run."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        ov.save_model(model, folder / "model.xml", compress_to_fp16=False)
        pipeline.save(here, folder / "here.npz")
        command = [*program, pipeline.__file__, folder / "model.xml", folder / "here.npz", "--save", folder / "arm.npz"]
        command += ["--precision", precision] if precision else []
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, encoding="utf-8", timeout=TIMEOUT_S
        )
        if not (folder / "arm.npz").is_file():
            raise ValueError(f"The emulated processor did not run the model: {sweep.last_line(done.stderr)}")
        return replace(pipeline.load(folder / "arm.npz"), processor=f"ARM, emulated ({version})")


def stored(name: str, precision: str | None) -> Path:
    """The file of a stored run."""
    return STORED / f"{name.replace(' ', '-')}-{precision or 'default'}.npz"


# --- The noise gate ---------------------------------------------------------------------------------------------


def parity(runs: dict[str, Run]) -> list[dict]:
    """Runs of the noise gate in f32, by what they are of, compared with PyTorch."""
    expected = reference()
    return [compare.parity(name, run.outputs[0], expected, TOLERANCE) for name, run in runs.items()]


@torch.inference_mode()
def reference(level: float = data.NOISE) -> np.ndarray:
    """What PyTorch computes of the noisy melody, float32 [1, samples]."""
    return NoiseGate().eval()(torch.from_numpy(data.noisy(level))).numpy()


def quality(here: dict[str, Run], arm: dict[str, Run], as_written: Run) -> list[dict]:
    """Signal-to-noise ratios of the cleaned sound: runs by their precision's name, here and on the emulated processor.

    as_written: of the network as PyTorch has it, on the emulated processor. It is a control, and so is the noisy sound.
    """
    clean = data.melody()
    expected = data.snr_db(reference(), clean)
    rows = []
    controls = {"the noisy sound itself": data.noisy()}
    for metric, runs in {HERE: here, ON_ARM: arm}.items():
        for precision, run in runs.items():
            value = data.snr_db(run.outputs[0], clean)
            rows.append(compare.quality(metric, precision, value, expected, SHARE * expected, "higher"))
        if metric == ON_ARM:
            controls["the network as it was written"] = as_written.outputs[0]
        for name, sound in controls.items():
            rows.append(compare.control(metric, name, data.snr_db(sound, clean), SHARE * expected, "higher"))
    return rows


# --- Stored runs ------------------------------------------------------------------------------------------------


def examples(folder: Path) -> Iterator[tuple[str, ov.Model, list[np.ndarray], list[str | None]]]:
    """What is stored: name, model, inputs, and the precisions. folder: for files of models."""
    noisy = [data.noisy()]
    yield "gate as written", convert.gate(), noisy, ["f32"]
    yield "gate right on ARM", convert.gate(right_on_arm=True), noisy, ["f32", None]
    yield "gate in 8 bits", convert.gate_int8(), noisy, ["f32"]
    for name, path in sweep.smallest(folder).items():
        yield name, ov.Core().read_model(path), inputs(name), ["f32"]


def inputs(name: str) -> list[np.ndarray]:
    """Inputs of a smallest model: [4, 6] for those with a boolean, [1, 6, 9] for transposed convolutions; for attention
    queries, keys and values [2, 2, 5, 16], a causal mask, and the rows of the cache."""
    random = np.random.default_rng(0)
    if "attention" not in name:
        return [random.standard_normal((4, 6) if "boolean" in name else (1, 6, 9), np.float32)]
    hidden = np.triu(np.full((1, 1, 5, 5), -10_000, np.float32), 1)  # 0 where a token may see another one
    mask = hidden if "share" in name else np.repeat(hidden, 2, axis=0)
    return [*random.standard_normal((3, 2, 2, 5, 16), np.float32), mask, np.arange(2, dtype=np.int32)]


def language_model(program: list[str], version: str) -> list[dict]:
    """Perplexity of SmolLM2 in f32 and f16 on the emulated processor; stores the kernels. It takes some minutes."""
    from transformers import AutoModelForCausalLM

    folder = convert.prepare()
    text = tokenize(folder, "evaluation")[:, :TOKENS]
    reader = AutoModelForCausalLM.from_pretrained(convert.checkpoint_folder(), dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = perplexity(lambda ids: reader(torch.from_numpy(ids)).logits.numpy(), text)
    limit, rows = 1.05 * expected, []
    model = ov.Core().read_model(folder / MODEL_XML)
    given = model_inputs(text)
    here = pipeline.run(model, [given[port.any_name] for port in model.inputs], "f32")
    for name, precision in PRECISIONS.items():
        run = emulated(program, version, model, here, precision)
        value = perplexity(lambda ids, run=run: run.outputs[0], text)
        rows.append(compare.quality(PERPLEXITY, name, value, expected, limit, "lower"))
        pipeline.save(replace(run, inputs=[], outputs=[]), stored("SmolLM2", precision))
        print(f"{PERPLEXITY}, {name}: {value:.2f}, PyTorch {expected:.2f}", flush=True)
    shuffled = np.random.default_rng(0).permutation(text[0])[None]
    value = perplexity(Session(folder / MODEL_XML, **FP32_PROPERTIES).prefill, shuffled)
    return [*rows, compare.control(PERPLEXITY, "the same tokens in another order", value, limit, "lower")]


def main() -> None:
    home = paths.models_dir() / "arm"
    print("Preparing the emulator ...", flush=True)
    program = emulator.prepare(home)
    version = emulator.version(home)
    STORED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, model, inputs, precisions in examples(Path(scratch)):
            here = pipeline.run(model, inputs, "f32")
            for precision in precisions:
                run = emulated(program, version, model, here, precision)
                pipeline.save(run, stored(name, precision))
                print(f"{name}, {precision or 'default'}: difference {pipeline.difference(run, here):.3g}", flush=True)
    report.save_examination("arm", "tiny", language_model(program, version))


if __name__ == "__main__":
    main()
