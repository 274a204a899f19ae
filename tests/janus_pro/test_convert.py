"""The converted sub-models compute what PyTorch does, the folder is whole, and conversion does not copy the weights."""

import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
from transformers import JanusForConditionalGeneration

from notebooks.janus_pro import convert, network
from notebooks.janus_pro.measuring import parity
from notebooks.janus_pro.network.reference import Reference
from notebooks.janus_pro.pipeline import IMAGE_TOKENS
from notebooks.janus_pro.training import settings
from tests.janus_pro import small
from utils import compare
from utils.models import llm
from utils.paths import ROOT

NOTEBOOK = ROOT / "notebooks" / "janus_pro" / "janus_pro.ipynb"
TOLERANCE = 2e-4


def request(model: ov.Model | Path) -> ov.InferRequest:
    return ov.Core().compile_model(model, "CPU", llm.FP32_PROPERTIES).create_infer_request()


def run(model: ov.InferRequest, **inputs) -> np.ndarray:
    model.infer({name: np.asarray(x) for name, x in inputs.items()})
    return model.get_output_tensor(0).data.copy()


def agrees(stage: str, ours, reference) -> None:
    row = compare.parity(stage, ours, reference, TOLERANCE)
    compare.check([row])
    assert row["cosine"] > 0.999999


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@torch.inference_mode()
def test_pictures_are_seen_and_aligned_as_in_pytorch(ir, model):
    pixels = drawn(2, 3, 64, 64)
    expected = model.model.get_image_features(pixels)
    seen = run(request(ir / convert.xml("vision")), pixel_values=pixels)
    agrees("vision", seen, expected.last_hidden_state)
    agrees("aligner", run(request(ir / convert.xml("aligner")), last_hidden_state=seen), expected.pooler_output)


@torch.inference_mode()
def test_words_are_embedded_as_in_pytorch(ir, model):
    ids = torch.tensor([[3, 1, 4], [90, 5, 9]])
    words = run(request(ir / convert.xml("text_embeddings")), input=ids)
    agrees("text embeddings", words, model.get_input_embeddings()(ids))


@torch.inference_mode()
def test_tokens_of_pictures_are_embedded_as_in_pytorch(model):
    ids = torch.tensor([[3, 1, 4], [90, 5, 9]])
    painting = run(request(convert.convert_generation_embeddings(model)), input=ids)
    agrees("generation embeddings", painting, model.prepare_embeddings_for_image_generation(ids))


@torch.inference_mode()
def test_both_heads_judge_as_in_pytorch(ir, model):
    hidden = drawn(3, small.WIDTH)
    agrees("text head", run(request(ir / convert.xml("text_head")), hidden=hidden), model.lm_head(hidden))
    expected = model.model.generation_head(hidden)
    agrees("image head", run(request(ir / convert.xml("image_head")), hidden=hidden), expected)


@torch.inference_mode()
def test_pictures_are_made_as_in_pytorch(model):
    tokens = torch.randint(0, 96, (2, 16), generator=torch.Generator().manual_seed(0))
    expected = model.model.vqmodel.decode(tokens)
    assert expected.std() > 0.1
    agrees("image decoder", run(request(convert.convert_image_decoder(model)), tokens=tokens), expected)


def step(model: ov.InferRequest, embeddings: torch.Tensor, past: int, beams: list[int]) -> np.ndarray:
    batch, new = embeddings.shape[:2]
    return run(
        model,
        inputs_embeds=embeddings,
        attention_mask=np.ones((batch, past + new), np.int64),
        position_ids=np.arange(past, past + new)[None].repeat(batch, 0),
        beam_idx=np.int32(beams),
    )


@torch.inference_mode()
def test_the_language_model_reads_piece_by_piece_as_pytorch_does_at_once(ir, model):
    """Also with the rows exchanged, and with more rows than before: drawings begin as copies of one prompt."""
    text, language = drawn(2, 9, small.WIDTH), model.model.language_model
    expected = language(inputs_embeds=text).last_hidden_state
    crossed = language(inputs_embeds=torch.cat([text[[1, 0], :7], text[:, 7:]], 1)).last_hidden_state
    cached = request(ir / convert.xml("language"))
    pieces = [step(cached, text[:, :4], 0, [0, 1]), step(cached, text[:, 4:7], 4, [0, 1])]
    agrees("language", np.concatenate([*pieces, step(cached, text[:, 7:], 7, [0, 1])], 1), expected)
    cached.reset_state()
    step(cached, text[:, :7], 0, [0, 1])
    agrees("rows exchanged", step(cached, text[:, 7:], 7, [1, 0]), crossed[:, 7:])
    cached.reset_state()
    step(cached, text[:, :7], 0, [0, 1])
    more = step(cached, text[[0, 1, 0, 1], 7:8], 7, [0, 1, 0, 1])
    agrees("rows copied", more, expected[[0, 1, 0, 1], 7:8])
    agrees("one after", step(cached, text[[0, 1, 0, 1], 8:], 8, [0, 1, 2, 3]), expected[[0, 1, 0, 1], 8:])


def test_attention_reads_and_writes_its_cache_itself(ir):
    def kind(node) -> str:
        return node.get_rt_info()["layerType"].astype(str)

    graph = ov.Core().compile_model(ir / convert.xml("language"), "CPU").get_runtime_model()
    nodes = [node for node in graph.get_ops() if kind(node) == "ScaledDotProductAttention"]
    assert len(nodes) == small.TEXT["num_hidden_layers"]
    for node in nodes:
        read = [kind(node.input_value(i).get_node()) for i in range(node.get_input_size())]
        written = [kind(port.get_node()) for output in node.outputs() for port in output.get_target_inputs()]
        assert read.count("MemoryInput") == written.count("MemoryOutput") == 2


def constants(path: Path, least: int = 4000) -> set[str]:
    """The types of the large constants of an IR."""
    found = (x for x in ov.Core().read_model(path).get_ops() if x.get_type_name() == "Constant")
    return {x.get_element_type().get_type_name() for x in found if np.prod(x.get_output_shape(0)) > least}


@pytest.fixture(scope="module")
def halves(tmp_path_factory) -> tuple[Path, Path]:
    """The authors' checkpoint in bfloat16, and its IR folder."""
    checkpoint, folder = (tmp_path_factory.mktemp(name) for name in ("theirs", "ir"))
    small.authors_checkpoint(checkpoint)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(network.TOWERS, "small", small.TOWER)
        patch.setitem(network.AUTOENCODERS, "small", small.AUTOENCODER)
        convert.to_ir(checkpoint, folder)
    return checkpoint, folder


@torch.inference_mode()
def test_weights_of_16_bits_stay_what_they_are(halves, model):
    folder = halves[1]
    assert constants(folder / convert.xml("language")) == constants(folder / convert.xml("text_head")) == {"bf16"}
    assert constants(folder / convert.xml("image_decoder"), 9000) == {"f16"}  # of convolutions
    language, text = request(folder / convert.xml("language")), drawn(1, 5, small.WIDTH)
    expected = model.model.language_model(inputs_embeds=text).last_hidden_state
    assert compare.parity("language", step(language, text, 0, [0]), expected, 0.1)["pass"]
    tokens = torch.arange(16)[None]
    decoded = run(request(folder / convert.xml("image_decoder")), tokens=tokens)
    assert compare.parity("image decoder", decoded, model.model.vqmodel.decode(tokens), 0.1)["pass"]


def test_the_folder_holds_what_its_readers_need(ir):
    files = {path.name for path in ir.iterdir()}
    models = {convert.xml(part) for part in convert.CONVERSIONS} | {
        "openvino_tokenizer.xml",
        "openvino_detokenizer.xml",
    }
    assert models | {path.replace(".xml", ".bin") for path in models} | {"janus.json", "tokenizer.json"} <= files
    settings = json.loads((ir / "janus.json").read_text(encoding="utf-8"))
    assert (settings["image_size"], settings["rows"], settings["context"]) == (64, 4, 512)
    assert settings["tokens"] == {
        name: small.TOKENS.index(token)
        for name, token in zip(
            ("bos", "eos", "padding", "placeholder", "begin_of_image", "end_of_image"),
            ("<bos>", "<eos>", "<pad>", *IMAGE_TOKENS),
            strict=True,
        )
    }
    assert settings["system_prompt"] == "Look.\n\n"


def test_only_a_checkpoint_that_reasons_first_has_a_separator(ir, halves, tmp_path):
    for folder in (ir, halves[1]):
        assert json.loads((folder / "janus.json").read_text(encoding="utf-8"))["answer_separator"] == ""
    assert network.answer_separator(tmp_path) == ""
    assert network.answer_separator(settings.TINY) == ":"


def test_without_a_system_prompt_it_is_the_usual_one(halves):
    prompt = json.loads((halves[1] / "janus.json").read_text(encoding="utf-8"))["system_prompt"]
    assert prompt.startswith("You are") and prompt.endswith(".\n\n")


def test_guidance_is_the_checkpoints_own(ir, tmp_path):
    assert json.loads((ir / "janus.json").read_text(encoding="utf-8"))["guidance"] == 5
    assert network.guidance(tmp_path) == 5
    for given, expected in ((2.5, 2.5), (None, 5)):
        (tmp_path / "generation_config.json").write_text(json.dumps({"guidance_scale": given}), encoding="utf-8")
        assert network.guidance(tmp_path) == expected


@pytest.mark.parametrize(("precision", "language"), [("INT8", {"u8"}), ("INT4", {"u4"})])
def test_compressed_weights_are_integers_and_stay_close(ir, tmp_path, precision, language):
    convert.compress(ir, precision, 64, tmp_path)
    assert constants(tmp_path / convert.xml("language")) == language
    assert constants(tmp_path / convert.xml("text_head")) == constants(tmp_path / convert.xml("image_head")) == {"u8"}
    same = convert.xml("image_decoder").replace(".xml", ".bin")
    assert (tmp_path / same).read_bytes() == (ir / same).read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in ir.iterdir()}
    text = drawn(1, 6, small.WIDTH)
    whole, smaller = (step(request(folder / convert.xml("language")), text, 0, [0]) for folder in (ir, tmp_path))
    row = compare.parity("language", smaller, whole, 100)
    assert 0 < row["max_abs_diff"] and row["cosine"] > (0.999 if precision == "INT8" else 0.97)


def test_tokens_that_the_pipeline_needs_are_asked_for(checkpoint, tmp_path):
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    path = copy / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace("<begin_of_image>", "<other>"), encoding="utf-8")
    settings = copy / "tokenizer_config.json"
    settings.write_text(settings.read_text(encoding="utf-8").replace("<begin_of_image>", "<other>"), encoding="utf-8")
    with pytest.raises(ValueError, match="copy lacks <begin_of_image>. Fetch the whole checkpoint"):
        convert.to_ir(copy, tmp_path / "ir")


MEASURE = """
import resource, sys
from pathlib import Path
import openvino as ov
from notebooks.janus_pro.convert import convert_language_model
from notebooks.janus_pro.network import load

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def convert(folder):
    model = load(folder, ["model.language_model"])
    ov.save_model(convert_language_model(model), folder / "language.xml", compress_to_fp16=False)

convert(Path(sys.argv[1]))  # what the libraries take by themselves
before = peak()
convert(Path(sys.argv[2]))
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from the kernel in kilobytes")
def test_converting_takes_little_more_memory_than_the_weights(tmp_path):
    """Also from a file of the authors' kind, which is mapped too."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6, "num_attention_heads": 8}
    given = small.CONFIG.to_dict()
    given["text_config"] |= sizes | {"num_key_value_heads": 8, "head_dim": 128}
    small.companions(tmp_path / "middle", given)
    with torch.device("meta"):
        shapes = JanusForConditionalGeneration(network.configuration(tmp_path / "middle")).state_dict()

    def value(i: int) -> float:  # another one for each, also in 16 bits: equal tensors are written once
        return (1 + i % 128 / 128) * 2.0 ** (i // 128)

    tensors = {key: torch.full(x.shape, value(i), dtype=torch.bfloat16) for i, (key, x) in enumerate(shapes.items())}
    torch.save(tensors, tmp_path / "middle" / "pytorch_model.bin")
    size = (tmp_path / "middle" / "pytorch_model.bin").stat().st_size
    assert size > 190e6
    small.checkpoint(tmp_path / "small", torch.bfloat16)
    run = [sys.executable, "-c", MEASURE, tmp_path / "small", tmp_path / "middle"]
    measured = subprocess.run(run, capture_output=True, text=True, cwd=Path(__file__).parents[2], encoding="utf-8")
    assert measured.returncode == 0, measured.stderr
    assert size < 1.6 * (tmp_path / "middle" / "language.bin").stat().st_size
    assert int(measured.stdout.split()[-1]) < 1.3 * size


def test_parity_rows_pass_for_the_converted_folder_and_fail_for_another(tmp_path):
    checkpoint, ir = small.checkpoint(tmp_path / "half", torch.float16), tmp_path / "ir"
    convert.to_ir(checkpoint, ir)
    reference = Reference(checkpoint)
    rows = parity.parity(ir, reference)
    compare.check(rows)
    assert [row["stage"] for row in rows] == [part.replace("_", " ") for part in convert.CONVERSIONS]
    convert.compress(ir, "INT4", 64, tmp_path / "int4")
    failing = {row["stage"] for row in parity.parity(tmp_path / "int4", reference) if not row["pass"]}
    assert failing == {part.replace("_", " ") for part in convert.CONVERSIONS if part != "image_decoder"}


def test_the_notebook_shows_the_loop_of_the_conversion():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    page = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    (loop,) = re.findall(r"```python\n(for part, .*?)```", page, re.DOTALL)
    lines = [line.partition("  #")[0].strip() for line in loop.splitlines()]
    assert len(lines) == 4 and all(line in inspect.getsource(convert.to_ir) for line in lines)
