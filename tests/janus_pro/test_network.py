"""Checkpoints of either spelling are read strictly, lazily and as they are stored."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import JanusForConditionalGeneration

from notebooks.janus_pro import network
from notebooks.janus_pro.network import PARTS, load
from tests.janus_pro import small

MAPPING = json.loads((Path(__file__).parents[1] / "oracles" / "janus" / "mapping.json").read_text(encoding="utf-8"))
LAYER = "model.vision_model.encoder.layers.1.self_attn"


def test_every_name_of_the_authors_has_its_own_in_transformers():
    assert len(MAPPING) > 600
    for theirs, ours in MAPPING.items():
        found = list(network.canonical_tensors(theirs, (3, 2), torch.Tensor))
        if ours is None:
            assert all(network.UNUSED.fullmatch(name) for name in found), theirs
        else:
            assert found == (ours if isinstance(ours, list) else [ours])
            assert all(network.canonical_name(name) == name for name in found)


def same(found: JanusForConditionalGeneration, dtype: torch.dtype) -> None:
    expected = small.weights()
    assert found.state_dict().keys() == expected.keys()
    for key, x in found.state_dict().items():
        assert x.dtype == dtype and torch.equal(x, expected[key].to(dtype)), key


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("files", [1, 3])
def test_the_authors_files_are_read_as_they_are_stored(tmp_path, files):
    small.authors_checkpoint(tmp_path, files=files)
    same(load(tmp_path), torch.bfloat16)
    wide = load(tmp_path, dtype=torch.float32)
    assert torch.equal(wide.lm_head.weight, small.weights()["lm_head.weight"].bfloat16().float())


@pytest.mark.usefixtures("known")
def test_their_weights_in_safetensors_are_read_too(tmp_path):
    small.companions(tmp_path, small.AUTHORS)
    save_file({key: x.contiguous() for key, x in small.authors_weights().items()}, tmp_path / "model.safetensors")
    same(load(tmp_path), torch.float32)


def test_files_of_transformers_are_read_as_they_are_stored(tmp_path):
    same(load(small.checkpoint(tmp_path, torch.float16)), torch.float16)


def test_what_transformers_saves_is_read(tmp_path):
    made = JanusForConditionalGeneration(small.CONFIG).eval()
    made.save_pretrained(tmp_path, max_shard_size="4MB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    read, ids = load(tmp_path), torch.arange(7, 20)[None]
    with torch.inference_mode():
        assert torch.equal(read(input_ids=ids).logits, made(input_ids=ids).logits)
        codes, pixels = torch.arange(16)[None], torch.rand(1, 3, 64, 64)
        assert torch.equal(read.decode_image_tokens(codes), made.decode_image_tokens(codes))
        seen = (x.model.get_image_features(pixels).pooler_output for x in (read, made))
        assert torch.equal(*seen)


@pytest.mark.usefixtures("known")
def test_their_config_says_the_same_in_other_words(tmp_path):
    small.companions(tmp_path, small.AUTHORS)
    found, expected = network.configuration(tmp_path).to_dict(), small.CONFIG.to_dict()
    for part in ("vision_config", "vq_config"):
        assert found[part] == expected[part]
    assert found["text_config"] | {"dtype": None} == expected["text_config"]


def test_the_released_models_have_their_published_sizes(tmp_path):
    """1B spells its language model out; 7B leaves out what is Llama's default."""
    config = json.loads(json.dumps(small.AUTHORS))
    config["vision_config"]["params"]["model_name"] = "siglip_large_patch16_384"
    config["gen_vision_config"]["cls"] = "VQ-16"
    common = {"model_type": "llama", "max_position_embeddings": 16384, "vocab_size": 102400}
    one = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16}
    sizes = {}
    for name, text in (("1B", one | {"num_hidden_layers": 24}), ("7B", {"num_hidden_layers": 30})):
        small.companions(tmp_path, config | {"language_config": common | text})
        with torch.device("meta"):
            model = JanusForConditionalGeneration(network.configuration(tmp_path))
        sizes[name] = sum(x.numel() for x in model.parameters())
        assert model.model.vqmodel.quantize.quant_state_dims == [24, 24]
    assert sizes == {"1B": 2_076_636_811, "7B": 7_407_773_323}


@torch.inference_mode()
def test_pictures_come_back_as_their_tokens_when_the_latents_are_codes(model, monkeypatch):
    """The nearest code is found by its direction alone, however long code and latent are."""
    vq = model.model.vqmodel
    ids = torch.randint(0, 96, (2, 16), generator=torch.Generator().manual_seed(0))
    latent = vq.quantize.embedding.weight[ids] * torch.linspace(0.1, 30, 16)[None, :, None]
    monkeypatch.setattr(vq, "encoder", torch.nn.Identity())
    monkeypatch.setattr(vq, "quant_conv", torch.nn.Identity())
    assert network.encode_pictures(model, latent.transpose(1, 2).unflatten(2, (4, 4))).tolist() == ids.tolist()


def mapped(folder: Path) -> bool:
    return str(folder) in Path("/proc/self/maps").read_text(encoding="utf-8")


@pytest.mark.usefixtures("known")
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists what is mapped into memory")
@pytest.mark.parametrize("write", [small.checkpoint, small.authors_checkpoint])
def test_weights_stay_in_the_file_until_they_are_used(tmp_path, write):
    write(tmp_path, torch.bfloat16)
    read = load(tmp_path, ["model.language_model"])
    assert mapped(tmp_path) and read.model.language_model.norm.weight.device.type == "cpu"
    others = [read.get_submodule(part) for part in PARTS if part != "model.language_model"]
    assert all(x.is_meta for part in others for x in part.parameters())
    del read, others
    read = load(tmp_path, ["lm_head"], torch.float32)
    assert not mapped(tmp_path) and read.lm_head(torch.ones(1, small.WIDTH)).shape == (1, len(small.TOKENS))


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Add tensors to a checkpoint of transformers, or take them away (None)."""
    path = folder / "model.safetensors"
    kept = {key: x for key, x in load_file(path).items() if key not in tensors}
    save_file(kept | {key: x for key, x in tensors.items() if x is not None}, folder / "new")
    os.replace(folder / "new", path)  # the old one may be mapped


def test_missing_and_unknown_tensors_are_listed(tmp_path):
    small.checkpoint(tmp_path)
    wrong = {f"{LAYER}.q_proj.bias": None, "lm_head.weight": torch.zeros(5, 64), "model.vqmodel.x": torch.zeros(1)}
    change(tmp_path, **wrong, **{"model.language_model.rotary_emb.inv_freq": torch.zeros(8)})
    with pytest.raises(ValueError) as told:
        load(tmp_path, ["model.aligner"])
    sentence = str(told.value)
    assert "is no Janus-Pro of the sizes in its config.json" in sentence
    assert f"missing: {LAYER}.q_proj.bias;" in sentence
    assert "not known to it: model.vqmodel.x;" in sentence and "of another shape: lm_head.weight." in sentence


@pytest.mark.usefixtures("known")
def test_a_missing_tensor_of_the_authors_is_listed(tmp_path):
    small.companions(tmp_path, small.AUTHORS)
    tensors = small.authors_weights()
    del tensors["vision_model.vision_tower.blocks.1.attn.qkv.bias"]
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=rf"missing: {LAYER}.q_proj.bias, .*k_proj.bias, .*v_proj.bias\.$"):
        load(tmp_path)


@pytest.mark.parametrize(
    "config",
    ["", "[]", "{}", '{"model_type": "llama"}', '{"model_type": "multi_modality"}', '{"model_type": "janus", "a": {'],
)
def test_a_folder_without_a_right_config_is_refused(config, tmp_path):
    small.checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    with pytest.raises(ValueError, match=r"config.json (cannot be read|holds no object|(does not )?describes? )"):
        load(tmp_path)


def test_another_tower_is_refused(tmp_path):
    small.companions(tmp_path, small.AUTHORS)
    with pytest.raises(ValueError, match="does not describe a Janus-Pro model: KeyError.'small'"):
        load(tmp_path)


def test_missing_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"config.json cannot be read.*Name the folder of a Janus-Pro checkpoint"):
        load(tmp_path)
    small.companions(tmp_path, small.CONFIG.to_dict())
    with pytest.raises(ValueError, match=r"has neither model.safetensors nor pytorch_model.bin"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(ValueError, match="holds a file that cannot be read whole.*Fetch it again"):
        load(tmp_path)


class Trap:
    def __reduce__(self):
        return os.mkdir, ("trapped",)


@pytest.mark.usefixtures("known")
def test_what_runs_code_and_what_is_cut_short_is_not_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small.companions(tmp_path, small.AUTHORS)
    path = tmp_path / "pytorch_model.bin"
    torch.save({"gen_embed.weight": Trap()}, path)
    with pytest.raises(ValueError, match="pytorch_model.bin is not a checkpoint of plain tensors"):
        load(tmp_path)
    path.write_bytes(pickle.dumps({"gen_embed.weight": Trap()}))
    with pytest.raises(ValueError, match="pytorch_model.bin is not a checkpoint of plain tensors"):
        load(tmp_path)
    assert not (tmp_path / "trapped").exists()
    small.authors_checkpoint(tmp_path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError, match="is not a checkpoint of plain tensors .*Fetch it again"):
        load(tmp_path)


@pytest.mark.usefixtures("known")
def test_an_index_names_whole_files_of_its_folder(tmp_path):
    small.authors_checkpoint(tmp_path, files=2)
    (tmp_path / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(ValueError, match="lacks pytorch_model-00002-of-00002.bin"):
        load(tmp_path)
    for content in ('{"weight_map": {"a": "../b.bin"}}', "{}"):
        (tmp_path / "pytorch_model.bin.index.json").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match="names no files, or some outside its folder"):
            load(tmp_path)
