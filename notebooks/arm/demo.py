"""The demo: clean a sound here and on an emulated ARM processor, hear both, and see which kernels ran."""

from __future__ import annotations

import gradio as gr
import numpy as np
from matplotlib.figure import Figure

from notebooks.arm import convert, data, measuring, pipeline
from notebooks.arm.figures import graphs
from utils.demo import shown_errors
from utils.speech.sound import to_int16

FORMS = {"as written": False, "right on ARM": True}
COLUMNS = ["Processor", "Arithmetic", "Signal-to-noise ratio, dB", "Difference from this processor"]
LOUDEST = 0.2  # of the noise
Sound = tuple[int, np.ndarray]


def clean(form: str, noise: float | None) -> tuple[list[list], Sound, Sound, Sound, Figure]:
    """Rows of COLUMNS; the noisy sound, both results, and what both processors executed.

    Raises ValueError for an unknown form, a noise that is not from 0 to LOUDEST, and, without an emulator, for what is
    not stored.
    """
    if form not in FORMS:
        raise ValueError(f"There is no form {form!r}. Choose one of: {', '.join(FORMS)}.")
    if noise is None or not 0 <= noise <= LOUDEST:
        raise ValueError(f"The noise is {noise}. Choose a number from 0 to {LOUDEST}.")
    model = convert.gate(FORMS[form])
    here = pipeline.run(model, [data.noisy(noise)], "f32")
    arm = measuring.on_arm(f"gate {form}", model, here)
    rows = []
    for run in (here, arm):
        snr = f"{data.snr_db(run.outputs[0], data.melody()):.1f}"
        rows.append([run.processor, run.precision, snr, f"{pipeline.difference(run, here):.5f}"])
    sounds = [(data.RATE_HZ, to_int16(sound[0])) for sound in (here.inputs[0], here.outputs[0], arm.outputs[0])]
    return rows, *sounds, graphs({"this processor": here, "ARM": arm})


def make_demo(model: str = "tiny", device: str = "CPU") -> gr.Blocks:
    """The Blocks of the demo, which show an answered example when the page opens. It needs no checkpoint."""

    def shown(form: str, noise: float) -> tuple:
        with shown_errors():
            return clean(form, noise)

    def searched(file: str | None) -> str:
        with shown_errors():
            return convert.examined(convert.read(file)) if file else ""

    with gr.Blocks(title="The same model on ARM") as demo:
        gr.Markdown(
            "# Does ARM compute the same?\n"
            "A network takes the noise out of a melody, on this processor and on an emulated ARM processor. As it was "
            "written in PyTorch, OpenVINO computes it wrongly on ARM. Emulation shows results, never times."
        )
        with gr.Row():
            form = gr.Radio(list(FORMS), value="as written", label="Form of the network")
            noise = gr.Slider(0, LOUDEST, data.NOISE, step=0.01, label="Noise")
            start = gr.Button("Clean the sound", variant="primary")
        table = gr.Dataframe(headers=COLUMNS, label="Result", interactive=False)
        with gr.Row():
            sounds = [gr.Audio(label=name, interactive=False) for name in ("Noisy", "This processor", "ARM, emulated")]
        figure = gr.Plot(label="Executed operations", show_label=False)
        gr.Markdown("Or send an ONNX model of your own, up to 20 MB. It stays on this machine.")
        with gr.Row():
            own = gr.File(label="ONNX model", file_types=[".onnx"], height=120)
            names = gr.Textbox(label="Operations that are wrong on ARM", lines=4)
        one_at_a_time = {"concurrency_id": "cores", "concurrency_limit": 1}
        outputs = [table, *sounds, figure]
        start.click(shown, [form, noise], outputs, api_name="clean", **one_at_a_time)
        own.change(searched, own, names, api_name=False, **one_at_a_time)
        demo.load(shown, [form, noise], outputs, api_name=False, **one_at_a_time)
    return demo
