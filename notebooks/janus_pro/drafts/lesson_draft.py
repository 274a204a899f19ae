"""Builds janus_pro.ipynb: python janus_lesson.py OUT"""

import sys, nbformat as nbf

nb = nbf.v4.new_notebook()
nb.metadata = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
cells = nb.cells
IGN = "nbval-ignore-output"


def md(text):
    cells.append(nbf.v4.new_markdown_cell(text.strip()))


def code(text, *tags):
    c = nbf.v4.new_code_cell(text.strip())
    c.metadata["tags"] = list(tags)
    if not tags:
        del c.metadata["tags"]
    cells.append(c)


md("""
# Read pictures and make them: Janus-Pro

Models that look at pictures and models that paint them are usually two different machines. *Janus-Pro* (Chen et al., 2025)
is one: the same language model answers a question about a picture in words, and draws what a sentence asks for, token by
token, as if a picture were a text. This lesson takes it apart, runs it in OpenVINO, and checks its drawings with a ruler.
""")
md("""
## What you will build

A program with two verbs, `understand` and `draw`, on one language model whose cache stays inside OpenVINO. And the proof:
answers compared letter by letter with the truth, and drawings measured by a checker that knows nothing but geometry.

![ALT](result.png)

With a warm cache the notebook takes about two minutes and 3 GB of memory on two cores.
""")
md("""
## Set up

`MODEL=tiny` is Janus-Pro in small, 4.8 million values instead of two billion, trained by [`train_tiny.py`](train_tiny.py) on
a world that this repository draws ([`utils/scenes.py`](../../utils/scenes.py)): six shapes in eight colours, on paper of
96 x 96 pixels. It knows nothing else. `released` is the authors' Janus-Pro-1B, `released-7b` the larger one, both trained on
photos, documents and a great many words.
""")
code("MODEL = DEVICE = None  # papermill parameters; environment variables of the same names come first", "parameters")
code(
    """
from notebooks.janus_pro import convert
from utils import preflight, select

model = select.model(list(convert.MODELS), parameter=MODEL)
device = select.device(parameter=DEVICE)
preflight.check(ram_gb=convert.MODELS[model.value]["ram_gb"] + 1, disk_gb=1, what="This notebook")
display(model, device)
""",
    IGN,
)
md("""
## The model

Two ways in, two ways out, one model between.
""")
code(
    """
from matplotlib_inline.backend_inline import set_matplotlib_formats

from notebooks.janus_pro import drawing

set_matplotlib_formats("jpeg", dpi=72)  # show a figure that is a cell's value as a small picture
drawing.network_picture()
""",
    IGN,
)
md("""
Above, seeing: a SigLIP tower and an aligner make embeddings of a picture, which stand among the words of the question.
Below, drawing: the image head names the next token of a picture, which goes back in through embeddings of its own; when all
tokens are there, the decoder of a VQ autoencoder makes pixels of them.

| sub-model | in | out |
|---|---|---|
| vision tower (SigLIP) | `pixel_values` [N, 3, S, S] | [N, T, C] |
| aligner | [N, T, C] | embeddings [N, T, D] |
| token embedding | `input` [B, T] | [B, T, D] |
| language model (a Llama) | `inputs_embeds` [B, T, D], `attention_mask`, `position_ids`, `beam_idx` | `last_hidden_state`; KV cache inside |
| text head | `hidden` [B, D] | `logits` of words |
| image head | `hidden` [B, D] | `logits` of image tokens |
| generation embedding and aligner | `input` [B, T] | [B, T, D] |
| VQ decoder | `tokens` [N, T] | `pixels` [N, 3, S, S] |

**Why two encoders?** That is the idea of Janus. To answer, one wants to know *what* is there, and the tower may forget every
brush stroke. To draw, one needs the strokes. Earlier models made one encoder do both, and it did neither well; here they
share nothing but the language model.
""")
code("""
from notebooks.janus_pro.network import PARTS
from notebooks.janus_pro.quality import Reference
from utils import weights

checkpoint = weights.resolve(convert.MODELS[model.value]["checkpoint"])
reference = Reference(checkpoint)
for part in PARTS:
    values = sum(p.numel() for p in reference.model.get_submodule(part).parameters())
    print(f"{part.removeprefix('model.'):22} {values / 1e6:.2f} million values")
""")
md("""
### A picture as a text

The autoencoder cuts a picture into squares of 8 x 8 pixels (16 x 16 in the released one) and finds for each the nearest of a
few hundred vectors, its *codebook*. A picture is then a row of numbers, and can be written like a sentence.
""")
code(
    """
from notebooks.janus_pro.pictures import held_out, held_out_wishes

true, wish = held_out_wishes("several", 1)[0]
tokens = reference.encode([true])
grid = drawing.token_grid(tokens[0], reference.rows, reference.model.config.vq_config.num_embeddings)
(back,) = reference.decode(tokens)
shown = [("a picture", true), ("its tokens, each in a colour", grid), ("made of them again", back)]
drawing.pictures_with_words(shown, columns=3)
""",
    IGN,
)
md("""
Left the picture, in the middle its 144 tokens (equal ones have equal colours: bare paper is always the same), right what the
decoder makes of those numbers alone. Whatever is lost here no drawing can have, so the quality table asks for it, too.
""")
md("""
## Convert

Every sub-model by itself, in a process of its own; the weights are mapped from the file, so that the 1B model needs no more
memory than its largest part.
""")
code(
    """
folder = convert.prepare(model.value)
print(*sorted(file.name for file in folder.iterdir() if file.suffix in (".xml", ".json")), sep="\\n")
""",
    IGN,
)
md("""
Understanding and drawing need the same language model, so it is converted once, without a head: embeddings in, hidden states
out. Its KV cache is state inside the graph, two variables a layer. Nothing of it passes through Python, however long the
drawing: 144 tokens here, 576 with the released model.
""")
code("""
import openvino as ov

language = ov.Core().read_model(folder / convert.xml("language"))
print(len(language.get_variables()), "variables;", [port.any_name for port in language.inputs])
""")
md("""
## Check against PyTorch

Each sub-model on the same weights and inputs, in FP32 arithmetic. (The tests compare the networks with outputs of the
authors' programs as well.)
""")
code(
    """
import numpy as np
import torch

from notebooks.janus_pro.pipeline import normalised
from utils import compare, llm


def in_openvino(part, *inputs):
    compiled = ov.Core().compile_model(folder / convert.xml(part), device.value, llm.EXACT)
    return compiled.create_infer_request().infer([np.asarray(x) for x in inputs])[0]


network, config = reference.model.model, reference.model.config
pixels = torch.from_numpy(normalised(held_out("shape", 1)[0][0], config.vision_config.image_size))
rng = np.random.default_rng(0)
words = torch.from_numpy(rng.standard_normal((2, 40, config.text_config.hidden_size), np.float32))
mask, places = torch.ones(2, 40, dtype=int), torch.arange(40)[None].repeat(2, 1)
rows = torch.arange(2, dtype=torch.int32)
with torch.inference_mode():
    seen = network.vision_model(pixels).last_hidden_state
    hidden = network.language_model(inputs_embeds=words).last_hidden_state
    last, drawn = hidden[:, -1], torch.from_numpy(tokens)
    stages = {
        "vision": ([pixels], seen),
        "aligner": ([seen], network.aligner(seen)),
        "language": ([words, mask, places, rows], hidden),
        "text_head": ([last], reference.model.lm_head(last)),
        "image_head": ([last], network.generation_head(last)),
        "generation_embeddings": ([tokens], reference.model.prepare_embeddings_for_image_generation(drawn)),
        "image_decoder": ([tokens], network.vqmodel.decode(drawn)),
    }
parity = [
    compare.parity(part.replace("_", " "), in_openvino(part, *inputs), wanted, 1e-3)
    for part, (inputs, wanted) in stages.items()
]
compare.table(parity)
""",
    IGN,
)
md("""
## Run

`Janus` is the whole of it in one file without PyTorch, [`pipeline.py`](pipeline.py). First a question:
""")
code("""
from notebooks.janus_pro.pipeline import Janus

janus = Janus(folder, device.value)
picture, asked = held_out("relation", 1)[0]
print(asked.text)
print(janus.understand(picture, asked.text), "- and it is", asked.answer)
""")
code(
    """
asks = [held_out(kind, 1)[0] for kind in ("colour", "count", "place", "relation")]
answers = [janus.understand(picture, question.text) for picture, question in asks]
drawing.pictures_with_words(
    [(f"{question.text}\\n{answer}", picture) for (picture, question), answer in zip(asks, answers, strict=True)]
)
""",
    IGN,
)
md("""
Held-out pictures, held-out wordings, and the model's answers. What stands before a colon is the reason: which things, and
where. The answer that counts is what follows it. (A model of this size cannot count in its head, but it can count what it
has just said.)
""")
md("""
### Drawing

To draw, the language model is asked for image tokens. Two rows run side by side as a batch of two: one has read the sentence,
the other padding in its place. What is sampled from is neither: `unprompted + guidance · (prompted - unprompted)`, what the
sentence changes, exaggerated. At a guidance of 1 the second row cancels out; at 0 the sentence does.
""")
code(
    """
wishes = [held_out_wishes(kind, 1)[0][1] for kind in ("thing", "place", "count", "relation")]
drawing.pictures_with_words([(wish.text, janus.draw(wish.text)[0]) for wish in wishes])
""",
    IGN,
)
md("""
Four sentences in wordings that training never heard, and what came of them. The tokens come row by row from the top left, and
none is taken back:
""")
code(
    """
stages = []


def show(tokens):
    if tokens.shape[1] in (36, 72, 108, 144):
        (picture,) = janus.decode(tokens)
        stages.append((f"after {tokens.shape[1]} tokens", picture))


janus.draw(wish.text, seed=1, progress=show)
drawing.pictures_with_words(stages) if stages else None
""",
    IGN,
)
md("""
The same drawing at four moments; grey is not drawn yet. By the time the pen is half way down it is settled what the rest has
to be.
""")
code(
    """
sentence = wishes[1].text
print(f"{sentence} (without being told: guidance {janus.guidance})")
guided = {strength: janus.draw(sentence, seed=2, guidance=strength)[0] for strength in (0.0, 1.0, 2.0, 5.0)}
drawing.pictures_with_words([(f"guidance {strength}", picture) for strength, picture in guided.items()])
""",
    IGN,
)
md("""
The same sentence and seed at four strengths. Without guidance the model draws *something*, for the world it was trained on is
full of somethings.
""")
md("""
What cannot be done is refused with a sentence:
""")
code("""
for impossible in (
    lambda: janus.understand(picture, "  "),
    lambda: janus.understand("no.png", "What is this?"),
    lambda: janus.draw("a red star", guidance=-1),
    lambda: janus.draw("a red star " * 1000),
):
    try:
        impossible()
    except ValueError as error:
        print(error)
""")
md("""
## Compress

Weights to INT8 everywhere, or the language model's to INT4 in groups: it is where most of them are, and each token of an
answer or a drawing waits for all of them. The decoder of pictures stays in FP16, as convolutions compute no faster on
weights of 8 bits.
""")
code(
    """
from utils import parts

folders = {precision: convert.prepare(model.value, precision) for precision in parts.PRECISIONS}
models = {precision: Janus(place, device.value) for precision, place in folders.items()}
for precision, place in folders.items():
    print(f"{precision}: {sum(file.stat().st_size for file in place.glob('*_model.bin')) / 1e6:.1f} MB")
""",
    IGN,
)
md("""
Now the examination: five kinds of questions, six kinds of sentences; scenes, wordings and (as *new pair*) combinations of
colour and shape that training never met. A drawing counts when [`checker.py`](checker.py), which knows only how shapes cover
pixels, finds on it what was asked for and nothing else. *Round trip* asks the model what it has just drawn. What must lose: no
picture or another one, no sentence or another one, the answer that is most often right.
""")
code(
    """
import pandas as pd

from notebooks.janus_pro import quality

pd.set_option("display.width", 300)  # of tables where they are shown as text
asked, wished = quality.trials(20), quality.wishes(WISHES)
rows = quality.table(models, reference, asked, wished)
compare.table(rows)
""".replace("WISHES", "3"),
    IGN,
)
code(
    """
from utils import charts

charts.bars_by_kind(rows, "accuracy, ", "right answers")
""",
    IGN,
)
md("""
Bars: the share of right answers by kind and precision. Marks: the controls.
""")
code(
    """
charts.bars_by_kind(rows, "drawings, ", "right drawings")
""",
    IGN,
)
md("""
The same for drawings. DRAWINGSPROSE
""")
md("""
## Measure

Seeing is arithmetic; every token of an answer or a drawing is reading weights: all of the language model's pass through the
processor for each. A drawing has two rows to read them for, so guidance costs little more than its arithmetic. The *naive* rows
draw as one would at first: two requests in turns, and a cache that is copied out to Python and back with every token.
""")
code(
    """
from notebooks.janus_pro import bench as measure
from utils import bench

with bench.exclusive() as load_now:
    speed = measure.live()
columns = ["runtime", "precision", "workload", "median_ms", "throughput", "unit", "ratio_to_torch"]
pd.DataFrame(speed)[columns].round(2)
""",
    IGN,
)
md("""
At the size of the released Janus-Pro-1B (random weights: speed only), measured by `make bench`:
""")
code(
    """
from utils import report
from utils.weights import ROOT

slow = report.load(ROOT / "results" / "bench" / "janus_pro.json")
print(f"Measured on {slow['date']}, {slow['cpu']}, {slow['cores']} cores.")
print("; ".join(f"{name}: {value}" for name, value in slow["notes"].items()))
table = pd.DataFrame(slow["speed"])
table[["workload", "label", "runtime", "precision", "median_ms", "throughput", "ratio_to_torch", "peak_rss_mb"]].round(
    2
)
""",
    IGN,
)
md("""
The published benchmark of this model reports start, first token, tokens a second and the time of a picture; that is
`python -m notebooks.janus_pro.benchmark --task vlm|t2i -m FOLDER`.

The verdict, written to `results/`:
""")
code("""
report.save(
    "janus_pro", model=model.value, device=device.value, parity=parity, quality=rows, speed=speed, notes=load_now
)
compare.check(parity + rows)
for row in parity:
    print(f"{row['stage']:24} within {row['tolerance']}: {row['pass']}")
for row in compare.table(rows).itertuples():
    if row[-1] != "reported":
        print(f"{row.metric:40} {row.precision or 'control: ' + row.control:36} {row[-1]}")
""")
md("""
## Play

Two tabs, one to ask and one to draw: the drawing appears row by row, its tokens beside it. The demo starts in the background,
on this machine only, and runs until the kernel stops; from a terminal, `make demo CASE=janus_pro`.
""")
code(
    """
import utils.demo
from notebooks.janus_pro.demo import make_demo

address = utils.demo.start(make_demo(model.value, device.value))
print(f"The demo is at {address}")
""",
    IGN,
)
md("""
## Use it in your project

Copy [`pipeline.py`](pipeline.py) into a folder `janus` (it needs `openvino`, `openvino-genai`, `numpy` and `pillow`) and adapt
this block. The model is the folder that `convert.prepare` returned above.
""")
code("""
import os
import shutil
import sys
import tempfile
from pathlib import Path

scratch = tempfile.TemporaryDirectory()
project = Path(scratch.name) / "janus"
project.mkdir()
shutil.copy("pipeline.py", project)
sys.path.insert(0, scratch.name)
picture, _ = held_out("count", 1)[0]
picture.save(Path(scratch.name) / "picture.png")
os.environ |= {"MODEL_FOLDER": str(folders["INT8"]), "PICTURE": str(Path(scratch.name) / "picture.png")}
""")
code(
    """
# copy from here
import os

from janus.pipeline import Janus

model = Janus(os.environ["MODEL_FOLDER"])
print(model.understand(os.environ["PICTURE"], "How many things are there?"))
print(model.draw("Draw a red circle and a blue star.", seed=1)[0].size)
""",
    "copy-block",
    IGN,
)
code("""
scratch.cleanup()
print("done")
""")
for i, c in enumerate(cells):
    c["id"] = f"cell-{i}"
nbf.write(nb, sys.argv[1])
