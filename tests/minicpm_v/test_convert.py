"""The converted sub-models compute what PyTorch does, the folder is whole, and conversion does not copy the weights."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch

from notebooks.minicpm_v import convert
from notebooks.minicpm_v.network import load
from tests.minicpm_v import small
from utils import compare
from utils.models import llm

TOLERANCE = 2e-4


def request(folder: Path, part: str, **properties) -> ov.InferRequest:
    path = folder / convert.xml(part)
    return ov.Core().compile_model(path, "CPU", llm.FP32_PROPERTIES | properties).create_infer_request()


def run(part: ov.InferRequest, **inputs) -> np.ndarray:
    part.infer({name: np.asarray(x) for name, x in inputs.items()})
    return part.get_output_tensor(0).data.copy()


def agrees(stage: str, ours, reference) -> None:
    row = compare.parity(stage, ours, reference, TOLERANCE)
    compare.check([row])
    assert row["cosine"] > 0.999999


@pytest.fixture
def network(both):
    """The network in FP32, of the weights as they are stored."""
    return load(both[0]).float()


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_the_vision_tower_sees_as_in_pytorch(both, network):
    tower = request(both[1], "vision_embeddings")
    if network.version == 2.6:
        pixels, ids = drawn(2, 3, 14, 6 * 14), torch.tensor([[0, 8, 24, 32, 300, 575], [5, 7, 100, 0, 0, 0]])
        mask = torch.tensor([[1.0] * 6, [1.0] * 3 + [0.0] * 3])
        with torch.inference_mode():
            expected = network.vpm(pixels, mask.bool(), ids)
        found = run(tower, pixel_values=pixels, patch_attention_mask=mask[:, None], position_ids=ids)
        agrees("vision", found[0], expected[0])
        agrees("vision", found[1, :3], expected[1, :3])
        alone = run(
            tower, pixel_values=pixels[1:, :, :, :42], patch_attention_mask=mask[1:, None, :3], position_ids=ids[1:, :3]
        )
        agrees("vision without padding", alone[0], found[1, :3])
    else:
        for rows, columns in ((4, 4), (2, 6)):
            pixels, positions = drawn(2, 3, 14 * rows, 14 * columns), network.vpm.positions(rows, columns)
            with torch.inference_mode():
                expected = network.vpm(pixels, positions)
            agrees("vision", run(tower, pixel_values=pixels, pos_embed=positions), expected)
        table = np.load(both[1] / convert.POSITIONS, allow_pickle=False)
        assert (table.reshape(1, 729, -1) == network.vpm.pos_embed.detach().numpy()).all()


@pytest.mark.parametrize("length", [5, 9])
def test_the_resampler_attends_as_in_pytorch(both, network, length):
    features, positions = drawn(2, length, 64), drawn(length, 2, 256)
    padding = torch.zeros(2, length)
    padding[1, 3:] = 1
    with torch.inference_mode():
        expected = network.resampler(features, positions, padding.bool())
    found = run(request(both[1], "resampler"), image_feature=features, pos_embed=positions, key_padding_mask=padding)
    agrees("resampler", found, expected)
    assert (
        np.abs(
            found[1]
            - run(
                request(both[1], "resampler"), image_feature=features, pos_embed=positions, key_padding_mask=0 * padding
            )[1]
        ).max()
        > 0.01
    )


def test_tokens_are_embedded_as_in_pytorch(both, network):
    ids = torch.tensor([[3, 1, 4], [100, 5, 9]])
    with torch.inference_mode():
        expected = network.llm.get_input_embeddings()(ids)
    agrees("text embeddings", run(request(both[1], "text_embeddings"), input=ids), expected)


def step(model: ov.InferRequest, embeddings: torch.Tensor, past: int, beams: list[int]) -> np.ndarray:
    batch, new = embeddings.shape[:2]
    return run(
        model,
        inputs_embeds=embeddings,
        attention_mask=np.ones((batch, past + new), np.int64),
        position_ids=np.arange(past, past + new)[None].repeat(batch, 0),
        beam_idx=np.int32(beams),
    )


def test_the_language_model_reads_piece_by_piece_as_pytorch_does_at_once(both, network):
    text = drawn(2, 9, 256)
    with torch.inference_mode():
        expected = network.llm(inputs_embeds=text).logits
        crossed = network.llm(inputs_embeds=torch.cat([text[[1, 0], :7], text[:, 7:]], 1)).logits
    model = request(both[1], "language")
    pieces = [step(model, text[:, :4], 0, [0, 1]), step(model, text[:, 4:7], 4, [0, 1])]
    agrees("language", np.concatenate([*pieces, step(model, text[:, 7:], 7, [0, 1])], 1), expected)
    model.reset_state()
    step(model, text[:, :7], 0, [0, 1])
    agrees("beams exchanged", step(model, text[:, 7:], 7, [1, 0]), crossed[:, 7:])


def test_attention_reads_and_writes_its_cache_itself(both):
    def kind(node) -> str:
        return node.get_rt_info()["layerType"].astype(str)

    graph = ov.Core().compile_model(both[1] / convert.xml("language"), "CPU").get_runtime_model()
    nodes = [node for node in graph.get_ops() if kind(node) == "ScaledDotProductAttention"]
    assert len(nodes) == small.SIZES["num_hidden_layers"]
    for node in nodes:
        read = [kind(node.input_value(i).get_node()) for i in range(node.get_input_size())]
        written = [kind(port.get_node()) for output in node.outputs() for port in output.get_target_inputs()]
        assert read.count("MemoryInput") == written.count("MemoryOutput") == 2


def constants(path: Path, least: int = 5000) -> set[str]:
    """The types of the large constants of an IR."""
    found = (x for x in ov.Core().read_model(path).get_ops() if x.get_type_name() == "Constant")
    return {x.get_element_type().get_type_name() for x in found if np.prod(x.get_output_shape(0)) > least}


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "f16")])
def test_weights_of_16_bits_stay_what_they_are(tmp_path, dtype, name):
    made = small.checkpoint(tmp_path, 2.6, dtype)
    model = load(made, ["llm"])
    ov.save_model(convert.convert_language_model(model), tmp_path / "language.xml", compress_to_fp16=False)
    assert constants(tmp_path / "language.xml") == {name}
    text = drawn(1, 5, 256)
    with torch.inference_mode():
        expected = load(made, ["llm"]).llm.float()(inputs_embeds=text).logits
    compiled = ov.Core().compile_model(tmp_path / "language.xml", "CPU", llm.FP32_PROPERTIES)
    agrees("language", step(compiled.create_infer_request(), text, 0, [0]), expected)


def test_the_network_is_left_as_it_was(checkpoint_2_6):
    model = load(checkpoint_2_6, ["llm"])
    convert.convert_language_model(model)
    weight = model.llm.lm_head.weight
    assert weight.dtype == torch.float16 and weight.abs().max() > 0
    with torch.inference_mode():
        assert model.float().llm(inputs_embeds=drawn(1, 3, 256)).logits.std() > 0.1


def test_the_folder_holds_what_its_readers_need(both):
    folder = both[1]
    files = {path.name for path in folder.iterdir()}
    models = {convert.xml(part) for part in convert.CONVERSIONS} | {
        "openvino_tokenizer.xml",
        "openvino_detokenizer.xml",
    }
    assert models | {path.replace(".xml", ".bin") for path in models} <= files
    assert {"config.json", "tokenizer.json", "generation_config.json", "preprocessor_config.json"} <= files
    settings = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    assert (settings["scale_resolution"], settings["max_slice_nums"], settings["patch_size"]) == (small.SIDE, 9, 14)
    assert settings["norm_mean"] == settings["norm_std"] == [0.5, 0.5, 0.5]
    assert (convert.POSITIONS in files) == (
        "pos_embed" in ov.Core().read_model(folder / convert.xml("vision_embeddings")).inputs[1].names
    )


@pytest.mark.parametrize(("precision", "language"), [("INT8", {"u8"}), ("INT4", {"u4", "u8"})])
def test_compressed_weights_are_integers_and_stay_close(ir_2_6, tmp_path, precision, language):
    convert.compress(ir_2_6, precision, 64, tmp_path)
    assert constants(tmp_path / convert.xml("language")) == language
    assert constants(tmp_path / convert.xml("vision_embeddings"), 8000) == {"u8"}
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in ir_2_6.iterdir()}
    text = drawn(1, 6, 256)
    whole, small_one = (step(request(folder, "language"), text, 0, [0]) for folder in (ir_2_6, tmp_path))
    row = compare.parity("language", small_one, whole, 100)
    assert 0 < row["max_abs_diff"] and row["cosine"] > (0.999 if precision == "INT8" else 0.97)


def test_a_template_is_asked_for(checkpoint_2_6, tmp_path):
    damaged = shutil.copytree(checkpoint_2_6, tmp_path / "damaged")
    for path in damaged.glob("chat_template*"):
        path.unlink()
    settings = json.loads((damaged / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings.pop("chat_template", None)
    (damaged / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ValueError, match="has no chat template in tokenizer_config.json"):
        convert.to_ir(damaged, tmp_path / "ir")


MEASURE = """
import resource, sys
from pathlib import Path
import openvino as ov
from notebooks.minicpm_v.convert import convert_language_model
from notebooks.minicpm_v.network import load

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def convert(folder):
    ov.save_model(convert_language_model(load(folder, ["llm"])), folder / "language.xml", compress_to_fp16=False)

convert(Path(sys.argv[1]))  # what the libraries take by themselves
before = peak()
convert(Path(sys.argv[2]))
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from the kernel in kilobytes")
def test_converting_takes_little_more_memory_than_the_weights(tmp_path):
    config = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 10, "num_attention_heads": 8}
    small.checkpoint(tmp_path / "small", 2.6, torch.bfloat16)
    middle = small.checkpoint(tmp_path / "middle", 2.6, torch.bfloat16, empty=True, **config)
    size = (middle / "model.safetensors").stat().st_size
    assert size > 280e6
    run = [sys.executable, "-c", MEASURE, tmp_path / "small", middle]
    measured = subprocess.run(run, capture_output=True, text=True, cwd=Path(__file__).parents[2], encoding="utf-8")
    assert measured.returncode == 0, measured.stderr
    assert size < 1.6 * (middle / "language.bin").stat().st_size
    assert int(measured.stdout.split()[-1]) < 1.3 * size
