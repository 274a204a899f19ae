import json, sys
cells=[]
def md(s): cells.append({"cell_type":"markdown","id":f"m{len(cells):02}","metadata":{},"source":s.strip("\n").splitlines(keepends=True)})
def code(s,*tags): cells.append({"cell_type":"code","id":f"c{len(cells):02}","metadata":{"tags":list(tags)} if tags else {},"execution_count":None,"outputs":[],"source":s.strip("\n").splitlines(keepends=True)})
V="nbval-ignore-output"
md("""
# Ask about a picture: MiniCPM-V, and why slicing matters

A photographed page made small enough for a vision model is a grey smear. *MiniCPM-V* (Yao et al., 2024) looks twice: at
the picture as a whole, and at up to nine slices that keep its details. This lesson builds the whole of it in OpenVINO,
and measures what the second look is worth.
""")
md("""
## What you will build

A program that takes a picture and a question, and answers in words: slicing, vision tower, resampler and a language model
whose cache stays inside OpenVINO, with streaming, several pictures, and conversations in which only what is new is read.
And the proof: hundreds of questions about pictures that training never saw, in words that it never heard, right or wrong
letter by letter, with slicing and without.

![A drawn picture of coloured shapes with small words below them, cut into numbered slices, and beside it the same picture
made small, in which no word can be read.](result.png)

With a warm cache the notebook takes under two minutes and 3 GB of memory on two cores.
""")
md("""
## Set up

`MODEL=tiny` is MiniCPM-V 2.6 in small, 4.5 million values instead of 8 billion, trained by
[`train_tiny.py`](train_tiny.py) on a world that this repository draws ([`utils/scenes.py`](../../utils/scenes.py)): coloured
shapes and printed words. It knows nothing else: show it a photo of your cat, and it will tell you about a brown circle.
`released` is the authors' 2.0 (3.4 billion values), `released-2.6` their 2.6 (8.1 billion), both trained on the world at
large.
""")
code("""MODEL = DEVICE = None  # papermill parameters; environment variables of the same names come first""","parameters")
code("""
from notebooks.minicpm_v import convert
from utils import preflight, select

model = select.model(list(convert.MODELS), parameter=MODEL)
device = select.device(parameter=DEVICE)
preflight.check(ram_gb=convert.MODELS[model.value]["ram_gb"] + 1, disk_gb=1, what="This notebook")
display(model, device)
""",V)
md("""
## The model

Three networks in a row, and before them a pair of scissors.
""")
code("""
from matplotlib_inline.backend_inline import set_matplotlib_formats

from notebooks.minicpm_v import drawing

set_matplotlib_formats("jpeg", dpi=72)  # show a figure that is a cell's value as a small picture
drawing.network_picture()
""",V)
md("""
From left to right: the picture is cut, every piece becomes patches of 14 x 14 pixels, the vision tower makes a vector of
each, the resampler 64 vectors of those, however many there were, and the language model reads these among the words of
the question, where the text has `<unk>`.

| sub-model | in | out |
|---|---|---|
| vision tower (SigLIP; 2.6 takes any shape) | `pixel_values` [N, 3, 14, L · 14], `patch_attention_mask` [N, 1, L], `position_ids` [N, L] | [N, L, C] |
| resampler | `image_feature` [N, L, C], `pos_embed` [L, N, D], `key_padding_mask` [N, L] | [N, 64, D] |
| token embedding | `input` [B, T] | [B, T, D] |
| language model (2.6: Qwen2; 2.0: a Llama with scaled branches) | `inputs_embeds` [B, T, D], `attention_mask`, `position_ids`, `beam_idx` | `logits`; KV cache inside |

**Why 64 vectors?** Every patch as a token of its own would make a picture as long as a short story. One cross-attention
with 64 learnt queries bounds the price of a slice; the price of a picture then grows with its slices, which is what we can
choose.
""")
code("""
from notebooks.minicpm_v.network import PARTS, load
from utils import weights

checkpoint = weights.resolve(convert.MODELS[model.value]["checkpoint"])
network = load(checkpoint)
for part in PARTS:
    print(f"{part:10} {sum(p.numel() for p in getattr(network, part).parameters()) / 1e6:.2f} million values")
""")
md("""
### How a picture is cut

The plan looks at the picture's area and shape alone: about as many slices as the tower's resolution fits into it, at most
nine, in the grid whose shape comes closest.
""")
code("""
from PIL import Image

from notebooks.minicpm_v import slicing
from notebooks.minicpm_v.questions import held_out

side = network.config["slice_config"]["scale_resolution"]
(large, asked), (_, _) = held_out("label", 2)
planned = slicing.plan(large.size, resolution=side)
overview, *slices = slicing.cut(large, planned)
print(f"{large.width} x {large.height} pixels:", planned)
drawing.slices_picture({"as given": drawing.draw_slices(large, planned.grid), "overview": overview})
""",V)
md("""
The picture with its cuts, and the overview at the same scale: shapes and places survive, words do not. So every slice
comes along, too, and the text tells the language model what is what: `<image>` for the overview, `<slice>` for each slice,
a new line for each row of them.
""")
code("""
for size in [(side, side), (2 * side, side), (3 * side, 2 * side), (4000, 3000), (100, 2000)]:
    grid = slicing.plan(size, resolution=side).grid
    print(size, "->", "no slices" if grid == (0, 0) else f"{grid[0]} x {grid[1]} slices")
print(slicing.placeholder((2, 1), queries=2))
""")
md("""
## Convert

Vision tower, resampler, token embedding and language model, one after the other in a process of its own; the weights are
mapped from the file, so that converting 8 billion values does not take twice their memory. Positions are computed outside
and passed in: that is what makes one graph serve every grid.
""")
code("""
folder = convert.prepare(model.value)
print(*sorted(file.name for file in folder.iterdir() if file.suffix in (".xml", ".json")), sep="\\n")
""",V)
md("""
The language model comes out of the tracer with its KV cache as forty or more inputs and outputs. Three steps make it
*stateful*: rows of the cache are picked by `beam_idx`, each pair of input and output becomes a variable, and the variable
is told what empty looks like. Only then does the CPU see attention as one operation.
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
code("""
import numpy as np
import torch

from utils import compare, llm

reference = load(checkpoint, dtype=torch.float32)
given = slicing.batch([overview, *slices], network.config["image_size"] // 14)
mask, width = given.patch_attention_mask, network.config["hidden_size"]
places = np.zeros((mask.shape[1], len(mask), width), np.float32)
for i, (rows, columns) in enumerate(given.sizes):
    places[: rows * columns, i] = slicing.sincos_positions(rows, columns, width).reshape(-1, width)
words = np.random.default_rng(0).standard_normal((1, 40, width)).astype(np.float32)


def in_openvino(part, *inputs):
    compiled = ov.Core().compile_model(folder / convert.xml(part), device.value, llm.EXACT)
    return compiled.create_infer_request().infer(list(inputs))[0]


with torch.inference_mode():
    seen = reference.vpm(*map(torch.from_numpy, (given.pixel_values, mask, given.position_ids)))
    read = reference.resampler(seen, torch.from_numpy(places), torch.from_numpy(~mask))
    said = reference.llm(inputs_embeds=torch.from_numpy(words)).logits
features = in_openvino("vision_embeddings", given.pixel_values, mask[:, None].astype(np.float32), given.position_ids)
pairs = {
    "vision tower": (features[mask], seen[torch.from_numpy(mask)]),
    "resampler": (in_openvino("resampler", seen.numpy(), places, (~mask).astype(np.float32)), read),
    "language model": (
        in_openvino("language", words, np.ones((1, 40), np.int64), np.arange(40)[None], np.zeros(1, np.int32)), said),
}
parity = [compare.parity(stage, ours, np.asarray(theirs), 1e-3) for stage, (ours, theirs) in pairs.items()]
compare.table(parity)
""",V)
md("""
## Run

`VisionChat` is the whole of it in one file without PyTorch, [`pipeline.py`](pipeline.py).
""")
code("""
from notebooks.minicpm_v.pipeline import VisionChat

chat = VisionChat(folder, device.value)
print(asked.text)
print(chat.ask(large, asked.text), "- and it is", asked.answer)
""")
md("""
The same question without slices: the model sees the overview alone, and guesses.
""")
code("""
print(chat.ask(large, asked.text, slicing=False))
""",V)
md("""
A conversation is a list of turns that belongs to you. The cache keeps what was read, so that the second question costs a
dozen tokens, not the picture's hundreds:
""")
code("""
turns = []
for question in (asked.text, "How many things are there?"):
    print(question, chat.ask(None if turns else large, question, turns))
    print(f"   {chat.figures.kept} tokens kept, {chat.figures.read} read")
""",V)
md("""
`openvino_genai` has a pipeline for this model, and our folder is laid out so that it opens it as it is. On pictures that
need no resizing the two agree. It makes pictures smaller by a filter of its own, though, which looks at four points where
training averaged over all: an overview made by it is another picture, and so are some answers.
""")
code("""
import openvino_genai as genai

theirs = genai.VLMPipeline(folder, device.value)
for kind in ("colour", "sign", "label"):
    same = 0
    for picture, question in held_out(kind, 10):
        image = ov.Tensor(np.asarray(picture)[None])
        answer = theirs.generate(question.text, images=[image], max_new_tokens=16, do_sample=False).texts[0]
        same += answer == chat.ask(picture, question.text)
    print(f"{kind}: {same} of 10 answers are the same")
""",V)
md("""
What cannot be answered is refused with a sentence:
""")
code("""
for picture, question in ((large, "  "), (Image.new("RGB", (20_000, 20)), "What is this?"), ("no.png", "What is this?")):
    try:
        chat.ask(picture, question)
    except ValueError as error:
        print(error)
""")
md("""
## Compress

Weights to INT8 everywhere, or the language model's to INT4 in groups: it is where most of them are, and where each token
waits for all of them.
""")
code("""
folders = {precision: convert.prepare(model.value, precision) for precision in convert.PRECISIONS}
chats = {precision: VisionChat(place, device.value) for precision, place in folders.items()}
for precision, place in folders.items():
    print(f"{precision}: {sum(file.stat().st_size for file in place.glob('*_model.bin')) / 1e6:.1f} MB")
""",V)
md("""
Now the questions: seven kinds, pictures and wordings that training never met, printed words that it never saw. An answer
counts when it is right to the letter. What must lose: a blank picture, somebody else's picture, the answer that is most
often right, and for the small words the same network with slicing off.
""")
code("""
import pandas as pd

from notebooks.minicpm_v import quality

pd.set_option("display.width", 300)  # of tables where they are shown as text
torch_chat = quality.Reference(checkpoint)
asks = {precision: quality.asking(one) for precision, one in chats.items()}
rows = quality.table(quality.trials(24), asks, quality.asking(torch_chat), torch_chat.tokens)
compare.table(rows)
""",V)
code("""
drawing.accuracy_bars(rows)
""",V)
md("""
Bars: the share of right answers by kind and precision. Marks: the controls. The last group is the point of the lesson: the
small words are read with slicing and lost without it, by the very same network.
""")
md("""
## Measure

Encoding a picture is arithmetic, generating is reading weights: for each token all of the language model's pass through
the processor once. The tiny network is too small for either limit, and what is measured is mostly overhead:
""")
code("""
from notebooks.minicpm_v import bench as measure
from utils import bench

with bench.exclusive() as load_now:
    speed = measure.live()
columns = ["runtime", "precision", "workload", "median_ms", "throughput", "unit", "ratio_to_torch", "model_mb"]
pd.DataFrame(speed)[columns].round(2)
""",V)
md("""
At the size of the released 2.0 (random weights: speed only), measured by `make bench`:
""")
code("""
from utils import report
from utils.weights import ROOT

slow = report.load(ROOT / "results" / "bench" / "minicpm_v.json")
print(f"Measured on {slow['date']}, {slow['cpu']}, {slow['cores']} cores.")
print("; ".join(f"{name}: {value}" for name, value in slow["notes"].items()))
table = pd.DataFrame(slow["speed"])
table[["workload", "label", "runtime", "precision", "median_ms", "throughput", "ratio_to_torch", "peak_rss_mb"]].round(2)
""",V)
md("""
The verdict, written to `results/`:
""")
code("""
report.save("minicpm_v", model=model.value, device=device.value, parity=parity, quality=rows, speed=speed, notes=load_now)
compare.check(parity + rows)
for row in parity:
    print(f"{row['stage']:24} within {row['tolerance']}: {row['pass']}")
for row in compare.table(rows).itertuples():
    if row[-1] != "reported":
        print(f"{row.metric:30} {row.precision or 'control: ' + row.control:36} {row[-1]}")
""")
md("""
## Play

The demo shows the slices over your picture, answers as it thinks and tells its speed. It starts in the background, on this
machine only, and runs until the kernel stops; from a terminal, `make demo CASE=minicpm_v`.
""")
code("""
import utils.demo
from notebooks.minicpm_v.demo import make_demo

address = utils.demo.start(make_demo(model.value, device.value))
print(f"The demo is at {address}")
""",V)
md("""
## Use it in your project

Copy [`pipeline.py`](pipeline.py) and [`slicing.py`](slicing.py) into a folder `visionchat` (they need `openvino`,
`openvino-genai`, `numpy` and `pillow`) and adapt this block. The model is the folder that `convert.prepare` returned above.
""")
code("""
import os
import shutil
import sys
import tempfile
from pathlib import Path

scratch = tempfile.TemporaryDirectory()
project = Path(scratch.name) / "visionchat"
project.mkdir()
for name in ("pipeline.py", "slicing.py"):
    shutil.copy(name, project)
sys.path.insert(0, scratch.name)
large.save(Path(scratch.name) / "picture.png")
os.environ |= {"MODEL_FOLDER": str(folders["INT8"]), "PICTURE": str(Path(scratch.name) / "picture.png")}
""",V)
code("""
# copy from here
import os

from visionchat.pipeline import VisionChat

chat = VisionChat(os.environ["MODEL_FOLDER"])
print(chat.ask(os.environ["PICTURE"], "How many things are there?"))
""","copy-block",V)
code("""
scratch.cleanup()
print("done")
""")
nb={"cells":cells,"metadata":{"kernelspec":{"display_name":"Python 3 (ipykernel)","language":"python","name":"python3"},"language_info":{"name":"python"}},"nbformat":4,"nbformat_minor":5}
json.dump(nb,open(sys.argv[1],"w"),indent=1)
