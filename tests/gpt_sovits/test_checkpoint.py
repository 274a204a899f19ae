"""Reading the authors' files and the collection's folders, and all that can be wrong with them."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from notebooks.gpt_sovits.network import checkpoint
from notebooks.gpt_sovits.network.checkpoint import (
    PARTS,
    find,
    folded,
    load_bert,
    load_hubert,
    load_sovits,
    load_t2s,
    save,
)
from tests.gpt_sovits import small

NORMED = re.compile(r".*(dec\.ups|dec\.resblocks|enc\.(in_layers|res_skip_layers|cond_layer)).*\.weight")
OLD, NEW = checkpoint.WEIGHT_NORM_KEYS


def normed(tensors: dict[str, torch.Tensor], names=OLD) -> dict[str, torch.Tensor]:
    """Tensors with weight norm, of directions that have not length 1."""
    made = {}
    for key, x in tensors.items():
        if NORMED.fullmatch(key):
            stem = key.removesuffix("weight")
            made[stem + names[0]] = x.flatten(1).norm(dim=1)[:, None, None]
            made[stem + names[1]] = 3 * x
        else:
            made[key] = x
    return made


def trained(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors with those of a codebook in training, which FP16 cannot hold."""
    stem = "quantizer.vq.layers.0._codebook."
    counts = {stem + "inited": torch.ones(1), stem + "cluster_size": torch.full((small.CODES,), 1e6)}
    return tensors | counts | {stem + "embed_avg": torch.zeros(small.CODES, small.WIDTH)}


def released(path: Path, weight: dict[str, torch.Tensor], config, head: bytes = b"PK") -> Path:
    """A file as the authors save it, in half precision."""
    torch.save({"weight": {key: x.half() for key, x in weight.items()}, "config": config, "info": "e8_s100"}, path)
    content = path.read_bytes()
    assert content[:2] == b"PK"
    path.write_bytes(head + content[2:])
    return path


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether both have the same weights but for rounding to FP16."""
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys()
    return all((a[key] - b[key]).abs().max() <= 2e-3 * a[key].abs().max() for key in a)


def without(config: dict, *names: str) -> dict:
    return {"data": config["data"], "model": {key: x for key, x in config["model"].items() if key not in names}}


def test_a_released_decoder_is_read_whole(tmp_path):
    network = small.t2s()
    weight = {f"model.{key}": x for key, x in network.state_dict().items()}
    read = load_t2s(released(tmp_path / "s1.ckpt", weight, small.T2S | {"train": {"seed": 1}}))
    assert same(network, read) and not read.training and read.eos == small.CODES


@pytest.mark.parametrize("names", [OLD, NEW], ids=["old", "new"])
def test_a_released_synthesizer_is_read_and_folded(tmp_path, names):
    network = small.synthesizer(posterior=True)
    tensors = trained(normed(network.state_dict(), names))
    read = load_sovits(released(tmp_path / "s2G.pth", tensors, network.config))
    assert same(network, read) and not read.training and hasattr(read, "enc_q")


def test_a_fine_tuned_synthesizer_has_no_posterior_encoder(tmp_path):
    network = small.synthesizer()
    read = load_sovits(released(tmp_path / "fine.pth", normed(network.state_dict()), network.config))
    assert same(network, read) and not hasattr(read, "enc_q")


@pytest.mark.parametrize(("version", "rows"), [("v1", 322), ("v2", 732), ("v2Pro", 732)])
def test_the_version_is_told_by_the_phones_and_the_speaker(tmp_path, version, rows):
    network = small.synthesizer(version=version, symbols=rows, style_bins=33 if version == "v1" else 22)
    kept = {} if version == "v1" else {"style_bins": 22}
    config = without(network.config, "version", "symbols", "style_bins")
    config["model"] |= kept
    read = load_sovits(released(tmp_path / "s2G.pth", network.state_dict(), config))
    assert read.version == version and read.bins == (33 if version == "v1" else 22) and same(network, read)


def test_a_version_that_is_not_known_is_told(tmp_path):
    network = small.synthesizer(symbols=500)
    path = released(tmp_path / "s2G.pth", network.state_dict(), without(network.config, "version", "symbols"))
    with pytest.raises(
        ValueError, match="s2G.pth does not describe.*no version None of SoVITS here. Known are v1, v2,"
    ):
        load_sovits(path)


@pytest.mark.parametrize("head", [b"05", b"06"])
def test_the_first_bytes_of_v2pro_are_put_back(tmp_path, head):
    network = small.synthesizer(version="v2Pro", gin_channels=28)
    path = released(tmp_path / "s2Gv2Pro.pth", network.state_dict(), network.config, head)
    assert same(network, load_sovits(path)) and path.read_bytes()[:2] == head


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, -1])
def test_a_restored_file_reads_as_a_zip_archive_wherever_one_begins(tmp_path, size):
    (tmp_path / "x").write_bytes(b"05abcdefghij")
    for place in range(5):
        with checkpoint.Restored(tmp_path / "x") as file:
            file.seek(place)
            expected = b"PKabcdefghij"[place:]
            assert file.read(size) == (expected if size < 0 else expected[:size])
            file.seek(place)
            buffer = bytearray(max(size, 0))
            assert file.readinto(buffer) == len(buffer) and buffer == expected[: len(buffer)]


@pytest.mark.parametrize(("head", "version"), [(b"02", "v3"), (b"03", "v3"), (b"04", "v4")])
def test_newer_networks_are_told(tmp_path, head, version):
    path = released(tmp_path / "s2G.pth", small.synthesizer().state_dict(), {}, head)
    with pytest.raises(ValueError, match=f"s2G.pth is a SoVITS {version}, a network that is not here. Take v1, v2 or"):
        load_sovits(path)


def record(settings: dict, kind: type):
    """Settings as the authors' record of attributes."""
    made = kind()
    made.__dict__.update({key: record(x, kind) if isinstance(x, dict) else x for key, x in settings.items()})
    return made


def test_settings_may_be_pickled_as_the_authors_record(tmp_path, monkeypatch):
    kind = type("HParams", (), {"__module__": "utils"})
    monkeypatch.setattr(sys.modules["utils"], "HParams", kind, raising=False)
    network = small.synthesizer()
    path = released(tmp_path / "fine.pth", network.state_dict(), record(network.config, kind))
    assert b"HParams" in path.read_bytes()
    read = load_sovits(path)
    assert same(network, read) and read.config == network.config


class Sneaky:
    def __reduce__(self):
        return print, ("run!",)


@pytest.mark.parametrize("head", [b"PK", b"05"])
def test_nothing_in_a_file_is_run(tmp_path, capsys, head):
    state = small.synthesizer().state_dict()
    with pytest.raises(ValueError, match="fine.pth is not a checkpoint of plain tensors"):
        load_sovits(released(tmp_path / "fine.pth", state, Sneaky(), head))
    (tmp_path / "hubert").mkdir()
    (tmp_path / "hubert" / "config.json").write_text(json.dumps(small.HUBERT), encoding="utf-8")
    torch.save({"x": Sneaky()}, tmp_path / "hubert" / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pytorch_model.bin is not a checkpoint of plain tensors"):
        load_hubert(tmp_path / "hubert")
    assert "run!" not in capsys.readouterr().out


def test_another_class_than_the_record_is_not_built(tmp_path, monkeypatch):
    kind = type("Trainer", (), {"__module__": "utils"})
    monkeypatch.setattr(sys.modules["utils"], "Trainer", kind, raising=False)
    with pytest.raises(ValueError, match="not a checkpoint of plain tensors.*"):
        load_t2s(released(tmp_path / "s1.ckpt", small.t2s().state_dict(), record(small.T2S, kind)))


def test_all_that_is_wrong_is_listed(tmp_path):
    network = small.synthesizer()
    tensors = normed(network.state_dict()) | {
        "enc_p.proj.bias": torch.zeros(3),
        "extra.weight": torch.zeros(2),
        "ssl_proj.bias": torch.full((small.WIDTH,), float("inf")),
    }
    del tensors["dec.ups.1.weight_g"], tensors["flow.flows.0.pre.weight"]
    with pytest.raises(ValueError) as told:
        load_sovits(released(tmp_path / "s2G.pth", tensors, network.config))
    sentence = str(told.value)
    assert "s2G.pth is no checkpoint of the network that its configuration describes" in sentence
    assert "missing: dec.ups.1.weight, flow.flows.0.pre.weight;" in sentence
    assert "dec.ups.1.weight_v" in sentence and "extra.weight" in sentence
    assert "of another shape: enc_p.proj.bias;" in sentence
    assert "not finite: ssl_proj.bias." in sentence and "Fetch it again, or name" in sentence


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ({"weight": {}, "config": {}}, "holds no tensors by name"),
        ({"weight": {"x": torch.zeros(1)}, "config": {"model": {}}}, "does not describe the network: KeyError"),
        ({"weight": {"x": 3}, "config": {}}, "holds no tensors by name"),
        ({"model": {}}, "has no weight and config. Name an s1 .ckpt or s2G .pth file"),
        ([1], "has no weight and config"),
    ],
)
def test_the_file_of_another_model_is_refused(tmp_path, content, wrong):
    torch.save(content, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match=f"x.ckpt {wrong}|configuration of .*x.ckpt {wrong}"):
        load_t2s(tmp_path / "x.ckpt")


def test_missing_and_damaged_files_are_told(tmp_path):
    with pytest.raises(ValueError, match="s1.ckpt cannot be read .*Name a GPT-SoVITS file, or a folder with one."):
        load_t2s(tmp_path / "s1.ckpt")
    (tmp_path / "s1.ckpt").write_bytes(b"PK and so on")
    with pytest.raises(ValueError, match="s1.ckpt is not a checkpoint of plain tensors"):
        load_t2s(tmp_path / "s1.ckpt")
    with pytest.raises(ValueError, match="config.json cannot be read"):
        load_t2s(tmp_path)
    save(tmp_path, small.t2s())
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="model.safetensors cannot be read whole"):
        load_t2s(tmp_path)


def test_own_folders_come_back_in_half_precision(checkpoint):
    pairs = {"t2s": (load_t2s, small.t2s()), "sovits": (load_sovits, small.synthesizer())}
    for part, (load, network) in (pairs | {"hubert": (load_hubert, small.hubert())}).items():
        read = load(checkpoint / part)
        assert same(network, read) and not read.training
        assert {x.dtype for x in read.state_dict().values()} == {torch.float32}
        assert {file.name for file in (checkpoint / part).iterdir()} == {"config.json", "model.safetensors"}
    assert find(checkpoint) == {part: checkpoint / part for part in PARTS}


def test_the_posterior_encoder_is_not_saved(tmp_path):
    network = small.synthesizer(posterior=True)
    read = load_sovits(save(tmp_path, network))
    assert not hasattr(read, "enc_q") and torch.allclose(read.enc_p.proj.bias, network.enc_p.proj.bias, atol=1e-3)


def test_a_failed_save_leaves_the_earlier_checkpoint(tmp_path, monkeypatch):
    network = small.t2s()
    save(tmp_path, network)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr("safetensors.torch.save_file", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        save(tmp_path, network)
    network.bert_proj.bias.data[0] = 1e9
    with pytest.raises(ValueError, match="cannot be saved in FP16.*bert_proj.bias"):
        save(tmp_path, network)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def library(folder: Path, config: dict, tensors: dict[str, torch.Tensor]) -> Path:
    """A folder of transformers as the authors publish it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.save({key: x.half() for key, x in tensors.items()}, folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize("prefix", ["", "hubert."])
def test_a_released_hubert_is_read_whole(tmp_path, capsys, prefix):
    network = small.hubert()
    renamed = {f"{prefix}{key}": x for key, x in network.state_dict().items()}
    for old, new in zip(OLD, NEW, strict=True):
        renamed = {key.replace(new, old): x for key, x in renamed.items()}
    renamed.pop(f"{prefix}masked_spec_embed")
    read = load_hubert(library(tmp_path / "hubert", small.HUBERT, renamed))
    read.masked_spec_embed.data.copy_(network.masked_spec_embed)
    assert same(network, read) and "Loading weights" not in capsys.readouterr().err


def test_a_released_bert_is_read_without_heads_and_its_last_two_layers(tmp_path):
    network = small.bert()
    tensors = {f"bert.{key}": x for key, x in network.state_dict().items()}
    tensors = {key.replace("LayerNorm.weight", "LayerNorm.gamma"): x for key, x in tensors.items()}
    heads = {"cls.predictions.bias": torch.zeros(50), "bert.pooler.dense.bias": torch.zeros(small.WIDTH)}
    folder = library(tmp_path / "bert", small.BERT, tensors | heads)
    read = load_bert(folder)
    network.encoder.layer = network.encoder.layer[:2]
    assert same(network, read) and read.config.num_hidden_layers == 4
    assert same(read, load_bert(save(tmp_path / "own", read)))
    del tensors["bert.encoder.layer.1.output.dense.bias"]
    with pytest.raises(ValueError, match="bert2 is no checkpoint.*missing: encoder.layer.1.output.dense.bias."):
        load_bert(library(tmp_path / "bert2", small.BERT, tensors))


def test_released_parts_are_found_by_their_names(tmp_path):
    (tmp_path / "gsv-v2final-pretrained").mkdir()
    files = {"t2s": "s1bert25hz.ckpt", "sovits": "s2G2333k.pth"}
    for name in (*files.values(), "s2D2333k.pth"):
        (tmp_path / "gsv-v2final-pretrained" / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"lacks hubert \(chinese-hubert-base\). Name the folder of a whole"):
        find(tmp_path)
    library(tmp_path / "chinese-hubert-base", {}, {})
    found = find(tmp_path)
    assert {part: path.name for part, path in found.items()} == files | {"hubert": "chinese-hubert-base"}
    (tmp_path / "s1v3.ckpt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"more than one of a part \(t2s: .*s1v3.ckpt.*Keep one of each."):
        find(tmp_path)


def test_folding_weight_norm_is_pytorch_s():
    """Over the axes on which there is one length: not always the same."""
    kinds = (torch.nn.Conv1d, 0), (torch.nn.ConvTranspose1d, 0), (torch.nn.Conv1d, 2)
    for layer, axis in ((kind(5, 3, 4), axis) for kind, axis in kinds):
        made = torch.nn.utils.parametrizations.weight_norm(layer, dim=axis)
        made.parametrizations.weight.original0.data.mul_(1.7)
        plain = folded({f"a.{key}": x for key, x in made.state_dict().items()})
        assert plain.keys() == {"a.weight", "a.bias"} and torch.allclose(plain["a.weight"], made.weight, atol=1e-6)
