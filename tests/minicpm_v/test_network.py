"""The networks against outputs of the authors' program wherever ORACLES has them; reading and writing checkpoints."""

import json
import math
import os
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from notebooks.minicpm_v.network import MiniCPMV, load, save_tiny, scale
from notebooks.minicpm_v.pipeline import slicing
from tests.minicpm_v import small
from tests.oracles import fill
from tests.references import files, sections, stored, tensor

FILES = files("minicpm_v")
SECTIONS = {  # of weights: part of the network and version
    "resampler_2_0": ("resampler", 2.0),
    "resampler_2_6": ("resampler", 2.6),
    "vpm_2_0_reduced_3blocks": ("vpm", 2.0),
    "vpm_2_6_reduced_3layers": ("vpm", 2.6),
    "minicpm_llm_reduced_2layers": ("llm", 2.0),
}
PIXELS = {"448": "mcv.px20b"}  # inputs of 2.0's tower by their size; all the others are drawn under one name
KNOWN = (
    r"resampler_2_0/(out_\d+x\d+|pos_embed_.*|kvpos_.*)|resampler_2_6/(out(_\d+x\d+)+|pos_\d+x\d+)"
    r"|vpm_2_0/features_\d+(x\d+)?(_every\d+(st|nd|rd|th))?|vpm_2_6/(embeddings|features|position_ids_\d+x\d+)"
    r"|slice/(plan_.*|placeholder_2_[06]_grid\d+x\d+_q\d+|reshape_by_patch_(in|out))"
    r"|llm_2_0/(ids|logits|logits_next_token\d+)"
)


@lru_cache(maxsize=1)  # they are large
def build(path: Path, name: str) -> torch.nn.Module:
    """A part of the network with the weights that the oracle was made with, its other parts without any."""
    section = sections(path)[name]
    (part, version), shapes = SECTIONS[name], {key: e["shape"] for key, e in section["keys"].items()}
    assert section["prefix"] == f"{part}."
    config = small.CONFIGS[version] | {"query_num": 64} | section.get("config", {})
    depth = 1 + max(
        (int(key.split(".")[-4]) for key in shapes if re.search(r"(blocks|layers)\.\d+\.mlp", key)), default=0
    )
    if part == "resampler":
        config["query_num"], config["hidden_size"] = shapes["query"]
        config["num_attention_heads"] = config["num_key_value_heads"] = config["hidden_size"] // 128
    config["vision_config"] = {"num_hidden_layers": depth + config["drop_vision_last_layer"]}
    with torch.device("meta"):
        module = MiniCPMV(config).get_submodule(part)
    tensors = {
        key: tensor(key, e) * scale(f"{part}.{key}", config) for key, e in section["keys"].items() if not e.get("fixed")
    }
    formulas = {
        key: x for key, x in module.state_dict().items() if key not in tensors and section["keys"][key]["fixed"]
    }
    module.load_state_dict(tensors | formulas, assign=True)
    return module.eval()


def every(ours: torch.Tensor, reference: np.ndarray) -> torch.Tensor:
    """The rows of `ours` [N, rows, width] that are stored: all, or every so many."""
    assert ours.shape[::2] == reference.shape[::2]
    return ours[:, :: math.ceil(ours.shape[1] / reference.shape[1])]


def assert_equal(ours: torch.Tensor, reference: np.ndarray, tolerance: float) -> None:
    assert ours.shape == reference.shape
    assert np.abs(ours.numpy() - reference.astype(np.float64)).max() <= tolerance


def test_there_is_reference_data_and_all_of_it_is_known():
    assert FILES
    for path in FILES:
        for key in np.load(path):
            assert re.fullmatch(KNOWN, key), f"{key} of {path} is not known"
        assert sections(path).keys() <= SECTIONS.keys()


@stored(FILES, r"resampler_2_[06]/out.*")
@torch.inference_mode()
def test_resampler(path, key):
    """Several grids in a row, the smaller ones padded."""
    reference, version = np.load(path)[key], key.partition("/")[0]
    grids = [tuple(map(int, grid.split("x"))) for grid in key.split("_")[3:]]
    grids = grids if len(grids) == len(reference) else grids * len(reference)
    lengths = torch.tensor([rows * columns for rows, columns in grids])
    resampler = build(path, version)
    x = fill.normal_input(f"mcv.res{version[-3]}{version[-1]}", (len(grids), int(lengths.max()), 1152))
    places = [torch.from_numpy(slicing.sincos_positions(*grid, resampler.width)).flatten(0, 1) for grid in grids]
    padding = torch.arange(int(lengths.max())) >= lengths[:, None]
    embeddings = resampler(torch.from_numpy(x), torch.nn.utils.rnn.pad_sequence(places), padding)
    assert_equal(every(embeddings, reference), reference, 3e-5)


@stored(FILES, r"vpm_2_0/features.*")
@torch.inference_mode()
def test_tower_of_2_0(path, key):
    reference, (size, side, other) = np.load(path)[key], re.search(r"features_((\d+)(?:x(\d+))?)", key).groups()
    shape = 1, 3, int(side), int(other or side)
    tower = build(path, "vpm_2_0_reduced_3blocks")
    pixels = torch.from_numpy(fill.uniform_input(PIXELS.get(size, "mcv.px20"), shape, -1, 1))
    features = tower(pixels, tower.positions(shape[2] // 14, shape[3] // 14))
    assert_equal(every(features, reference), reference, 3e-5)


@stored(FILES, "vpm_2_6/features")
@torch.inference_mode()
def test_tower_of_2_6(path, key):
    """The oracle has the first picture alone; together with a smaller one, padded, it must come out the same."""
    reference, tower = np.load(path)[key], build(path, "vpm_2_6_reduced_3layers")
    longest = reference.shape[1]
    known = [name.rpartition("_")[2].split("x") for name in np.load(path) if "position_ids_" in name]
    grids = [(int(rows), int(columns)) for rows, columns in known if int(rows) * int(columns) <= longest]
    grids = sorted(grids, key=math.prod, reverse=True)[:2]
    shorter = math.prod(grids[1])
    assert math.prod(grids[0]) == longest > shorter
    pixels = fill.uniform_input("mcv.px26", (2, 3, 14, 14 * longest), -1, 1)
    pixels[1, ..., 14 * shorter :] = 0
    ids = np.zeros((2, longest), np.int64)
    for row, grid in zip(ids, grids, strict=True):
        row[: math.prod(grid)] = slicing.position_ids(*grid)
    mask = torch.arange(longest) < torch.tensor([[math.prod(grid)] for grid in grids])
    pixels, ids = torch.from_numpy(pixels), torch.from_numpy(ids)
    assert_equal(tower(pixels[:1], None, ids[:1]), reference, 2e-5)
    together = tower(pixels, mask, ids)
    assert_equal(together[:1], reference, 2e-5)
    alone = tower(pixels[1:, ..., : 14 * shorter], None, ids[1:, :shorter])
    assert_equal(together[1:, :shorter], alone.numpy(), 2e-5)
    if "vpm_2_6/embeddings" in np.load(path):
        embeddings = tower.embeddings.patch_embedding(pixels).flatten(2).transpose(1, 2)
        embeddings, known = embeddings + tower.embeddings.position_embedding(ids), np.load(path)["vpm_2_6/embeddings"]
        assert_equal(every(embeddings, known), known, 1e-5)


@stored(FILES, "llm_2_0/logits")
@torch.inference_mode()
def test_language_model_of_2_0(path, key):
    """The whole prompt, and one more token after it."""
    reference, llm = np.load(path), build(path, "minicpm_llm_reduced_2layers")
    read = llm(torch.from_numpy(reference["llm_2_0/ids"]), use_cache=True)
    assert_equal(read.logits, reference[key], 5e-6)
    for name in reference:
        if name.startswith("llm_2_0/logits_next_token"):
            token = torch.tensor([[int(name.rpartition("token")[2])]])
            assert_equal(llm(token, past_key_values=read.past_key_values).logits, reference[name], 5e-6)


def test_the_released_networks_have_their_published_sizes():
    sizes = {"hidden_size": 2304, "num_hidden_layers": 40, "intermediate_size": 5760, "vocab_size": 122753}
    with torch.device("meta"):
        two = MiniCPMV(sizes | {"num_attention_heads": 36, "query_num": 64})
        sizes = {"hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944, "vocab_size": 151666}
        six = MiniCPMV(sizes | {"num_attention_heads": 28, "num_key_value_heads": 4, "version": 2.6})
    assert sum(x.numel() for x in two.parameters()) == 3_434_965_792
    assert sum(x.numel() for x in six.resampler.parameters()) == 68_619_264
    assert six.vpm.state_dict()["embeddings.position_embedding.weight"].shape == (4900, 1152)
    assert len(six.vpm.encoder.layers) == len(two.vpm.blocks) == 26


def test_another_version_is_refused():
    with pytest.raises(ValueError, match=r"version 2.5; only MiniCPM-V 2.0 and 2.6"):
        MiniCPMV(small.CONFIGS[2.6] | {"version": 2.5})


def made(version: float, **changes) -> MiniCPMV:
    """A small network of random weights, with 2.0's factors in them as `load` puts them there."""
    config = small.CONFIGS[version] | changes
    model = MiniCPMV(config)
    model.load_state_dict({key: x * scale(key, config) for key, x in small.weights(config).items()})
    return model.eval()


def pieces(*sizes: tuple[int, int]) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)) for width, height in sizes]


def tensors(batch: slicing.Batch) -> list[torch.Tensor]:
    return [torch.from_numpy(x) for x in vars(batch).values()]


@torch.inference_mode()
def test_a_slice_is_read_the_same_beside_longer_ones():
    model, given = made(2.6), pieces((28, 42), (56, 70), (70, 56))
    together = model.encode_images(*tensors(slicing.batch(given, 24)))
    assert together.shape == (3, 4, 256)
    for row, piece in enumerate(given):
        alone = model.encode_images(*tensors(slicing.batch([piece], 24)))
        assert (alone[0] - together[row]).abs().max() < 2e-5
    assert (together[0] - together[1]).abs().max() > 0.1


@torch.inference_mode()
@pytest.mark.parametrize("version", [2.0, 2.6])
def test_the_same_patches_laid_out_otherwise_are_told_apart(version):
    model, patches = made(version), np.random.default_rng(0).integers(0, 256, (14, 8, 14, 3), np.uint8)
    seen = []
    for rows, columns in ((2, 4), (4, 2)):
        pixels = patches.reshape(14, rows, columns, 14, 3).swapaxes(0, 1).reshape(14 * rows, 14 * columns, 3)
        batch = slicing.batch([Image.fromarray(pixels)], 24)
        if version == 2.6:
            seen.append(model.encode_images(*tensors(batch)))
        else:
            seen.append(model.encode_equal(torch.from_numpy(slicing.normalise(Image.fromarray(pixels)))[None]))
    assert seen[0].shape == (1, 4, 256) and (seen[0] - seen[1]).abs().max() > 1e-2


def test_training_reaches_every_weight():
    model = MiniCPMV(small.CONFIGS[2.6])
    pictures = model.encode_images(*tensors(slicing.batch(pieces((28, 42), (56, 56)), 24)))
    words = model.llm.get_input_embeddings()(torch.tensor([[1, 2], [3, 4]]))
    logits = model.llm(inputs_embeds=torch.cat([pictures, words], 1)).logits
    logits.log_softmax(-1)[:, :, 5].sum().backward()
    assert not [name for name, x in model.named_parameters() if x.grad is None or not x.grad.any()]


def test_the_factors_of_2_0():
    config = small.CONFIGS[2.0]
    assert scale("llm.model.embed_tokens.weight", config) == 12
    assert scale("llm.lm_head.weight", config) == 64 / 256
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        assert scale(f"llm.model.layers.1.{name}.weight", config) == pytest.approx(1.4 / 2**0.5)
        assert scale(f"llm.model.layers.1.{name}.weight", small.CONFIGS[2.6]) == 1
    assert scale("llm.model.layers.1.mlp.up_proj.weight", config) == scale("vpm.pos_embed", config) == 1


@pytest.mark.parametrize("version", [2.0, 2.6])
def test_the_tiny_checkpoint_comes_back_in_half_precision(version, tmp_path):
    model = made(version)
    assert save_tiny(tmp_path / "tiny", model) == tmp_path / "tiny"
    assert {file.name for file in (tmp_path / "tiny").iterdir()} == {"config.json", "model.safetensors"}
    read = load(tmp_path / "tiny", dtype=torch.float32)
    assert read.config == model.config and not read.training
    for key, x in read.state_dict().items():
        before = model.state_dict()[key]
        assert x.dtype == torch.float32 and (x - before).abs().max() <= 1e-3 * before.abs().max(), key
    assert all(x.dtype == torch.float16 for x in load_file(tmp_path / "tiny" / "model.safetensors").values())
    ids = torch.arange(9)[None]
    with torch.inference_mode():
        assert (read.llm(ids).logits - model.llm(ids).logits).abs().max() < 0.02 * model.llm(ids).logits.abs().max()


def test_a_failed_save_leaves_the_earlier_checkpoint(tmp_path, monkeypatch):
    model = made(2.6)
    save_tiny(tmp_path, model)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr("safetensors.torch.save_file", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        save_tiny(tmp_path, model)
    model.resampler.query.data[0, 0] = 1e9
    with pytest.raises(ValueError, match=r"cannot be saved in FP16.*resampler.query"):
        save_tiny(tmp_path, model)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def released(folder: Path, version: float, dtype: torch.dtype = torch.bfloat16, files: int = 3, **changes) -> Path:
    """A checkpoint as the authors store it: bfloat16, in several files with an index."""
    config = small.CONFIGS[version] | changes
    stored = {key: x.to(dtype) for key, x in small.weights(config).items()}
    names = [f"model-{n + 1:05}-of-{files:05}.safetensors" for n in range(files)]
    where = {key: names[n % files] for n, key in enumerate(stored)}
    for name in names:
        save_file({key: stored[key] for key in stored if where[key] == name}, folder / name, {"format": "pt"})
    index = {"metadata": {"total_size": 0}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Add tensors to the first file of a checkpoint, or take them away wherever they are (None)."""
    files = sorted(folder.glob("*.safetensors"))
    for file in files:
        kept = {key: x for key, x in load_file(file).items() if key not in tensors}
        if file == files[0]:
            kept |= {key: x for key, x in tensors.items() if x is not None}
        save_file(kept, file.with_suffix(".new"))
        os.replace(file.with_suffix(".new"), file)  # the old one may be mapped


@pytest.mark.parametrize("version", [2.0, 2.6])
def test_released_files_are_read_as_they_are_stored(version, tmp_path):
    config, read = small.CONFIGS[version], load(released(tmp_path, version))
    given = small.weights(config)
    assert read.state_dict().keys() == given.keys()
    for key, x in read.state_dict().items():
        expected = given[key].bfloat16().float() * scale(key, config)
        assert x.dtype == torch.bfloat16 and torch.equal(x, expected.bfloat16()), key
    wide = load(tmp_path, dtype=torch.float32).state_dict()
    for key, x in wide.items():
        assert torch.equal(x, given[key].bfloat16().float() * scale(key, config)), key


def mapped(folder: Path) -> bool:
    return str(folder) in Path("/proc/self/maps").read_text(encoding="utf-8")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists what is mapped into memory")
def test_weights_stay_in_the_file_until_they_are_used(tmp_path):
    released(tmp_path, 2.6)
    read = load(tmp_path, ["llm"])
    assert mapped(tmp_path) and read.llm.lm_head.weight.device.type == "cpu"
    assert all(x.is_meta for part in (read.vpm, read.resampler) for x in part.parameters())
    del read
    read = load(tmp_path, ["llm"], torch.float32)
    assert not mapped(tmp_path)
    assert read.llm(torch.tensor([[1, 2]])).logits.shape == (1, 2, len(small.TOKENS))


def test_tensors_that_are_formulas_may_be_there_or_not(tmp_path):
    released(tmp_path, 2.0, torch.float32)
    before = load(tmp_path).state_dict()
    change(tmp_path, **{"resampler.pos_embed": None, "vpm.attn_pool.latent": torch.zeros(2)})
    change(tmp_path, **{"llm.model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(3)})
    change(tmp_path, **{"vpm.blocks.2.norm1.weight": torch.zeros(64)})  # the last block, which is dropped
    after = load(tmp_path).state_dict()
    assert after.keys() == before.keys() and all(torch.equal(x, before[key]) for key, x in after.items())


def test_a_cache_of_positions_in_a_file_of_2_6_is_not_read(tmp_path):
    released(tmp_path, 2.6)
    change(tmp_path, **{"resampler.pos_embed": torch.zeros(70, 70, 256)})
    assert "resampler.pos_embed" not in load(tmp_path).state_dict()


def test_embeddings_that_serve_as_head_are_scaled_for_each(tmp_path):
    released(tmp_path, 2.0, torch.float32, tie_word_embeddings=True)
    change(tmp_path, **{"llm.lm_head.weight": None})
    llm = load(tmp_path).llm
    assert torch.allclose(llm.lm_head.weight / (64 / 256), llm.model.embed_tokens.weight / 12)
    assert not torch.equal(llm.lm_head.weight, llm.model.embed_tokens.weight)


def test_missing_and_unknown_tensors_are_listed(tmp_path):
    released(tmp_path, 2.6)
    wrong = {"llm.model.norm.weight": None, "resampler.query": torch.zeros(5, 256), "vpm.blocks.2.x": torch.zeros(1)}
    change(tmp_path, **wrong, **{"vpm.encoder.layers.3.mlp.fc1.bias": torch.zeros(1)})
    with pytest.raises(ValueError) as told:
        load(tmp_path)
    sentence = str(told.value)
    assert "is no MiniCPM-V 2.6 of the sizes in its config.json" in sentence
    assert "missing: llm.model.norm.weight;" in sentence
    assert "not known to it: vpm.encoder.layers.3.mlp.fc1.bias;" in sentence
    assert "of another shape: resampler.query." in sentence


def test_another_version_s_checkpoint_is_refused(tmp_path):
    released(tmp_path, 2.6)
    (tmp_path / "config.json").write_text(json.dumps(small.CONFIGS[2.0]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"no MiniCPM-V 2.0.*missing: vpm.pos_embed.*and \d+ more; not known to it"):
        load(tmp_path)


@pytest.mark.parametrize("config", ["", "[]", '{"version": 2.6}', '{"version": 3, "hidden_size": 256}'])
def test_a_folder_without_a_right_config_is_refused(config, tmp_path):
    released(tmp_path, 2.6)
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    with pytest.raises(ValueError, match=r"config.json.*(MiniCPM-V checkpoint|does not describe a MiniCPM-V)"):
        load(tmp_path)


def test_missing_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"config.json cannot be read.*Name the folder of a MiniCPM-V checkpoint"):
        load(tmp_path)
    released(tmp_path, 2.6)
    last = tmp_path / "model-00003-of-00003.safetensors"
    whole = last.read_bytes()
    last.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="holds a file that cannot be read whole.*Fetch it again"):
        load(tmp_path)
    last.unlink()
    with pytest.raises(ValueError, match="lacks model-00003-of-00003.safetensors"):
        load(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    for content in ('{"weight_map": {"a": "../b.safetensors"}}', "{}"):
        index.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match="names no files, or some outside its folder"):
            load(tmp_path)
    index.unlink()
    with pytest.raises(ValueError, match="lacks model.safetensors"):
        load(tmp_path)
