"""Reading released and own checkpoint folders, and all that can be wrong with them."""

import numpy as np
import pytest
import torch
import yaml

from notebooks.sambert_hifigan.network.acoustic import FORMULAS, KanTtsSAMBERT, load_acoustic, save_acoustic
from notebooks.sambert_hifigan.network.vocoder import Generator, load_vocoder, save_vocoder
from tests.sambert_hifigan.small import NSF, SIZES, VOCODER, acoustic, sentence, vocoder


def normed(network: Generator) -> dict[str, torch.Tensor]:
    """Its tensors with weight norm, of directions that have not length 1."""
    tensors = {}
    for key, x in network.state_dict().items():
        if key.endswith(".weight"):
            tensors[f"{key}_g"] = x.flatten(1).norm(dim=1)[:, None, None]
            tensors[f"{key}_v"] = 3 * x
        else:
            tensors[key] = x
    return tensors


def released(folder, network: KanTtsSAMBERT | Generator, tensors: dict | None = None, steps: int = 900):
    """A folder as the authors lay it out: with the optimizer's state, and tables' sizes only in the embeddings."""
    (folder / "ckpt").mkdir(parents=True, exist_ok=True)
    kind = "KanTtsSAMBERT" if isinstance(network, KanTtsSAMBERT) else "Generator"
    params = {key: x for key, x in network.config["Model"][kind]["params"].items() if key not in SIZES}
    config = {"model_type": kind, "Model": {kind: {"optimizer": {"type": "Adam"}, "params": params}}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    if kind == "Generator":
        model = {"generator": tensors or normed(network), "discriminator": {"x": {"y": torch.zeros(1)}}}
    else:
        model = tensors or network.state_dict()
    optimizer = {"state": {0: {"step": 3, "exp_avg": torch.zeros(2)}}, "param_groups": [{"lr": 1e-4, "params": [0]}]}
    torch.save({"model": model, "optimizer": optimizer, "steps": steps}, folder / "ckpt" / f"checkpoint_{steps}.pth")
    return folder


def same(one: torch.nn.Module, other: torch.nn.Module, tolerance: float = 0.0) -> bool:
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys()
    return all((a[key] - b[key]).abs().max() <= tolerance * a[key].abs().max() for key in a)


@pytest.mark.parametrize("kind", ["plain", "nsf", "se"])
def test_a_released_acoustic_model_is_read_whole(kind, tmp_path):
    network = acoustic(kind)
    read = load_acoustic(released(tmp_path, network))
    assert same(network, read) and not read.training and read.f0 == (30.0, 700.0)
    with torch.inference_mode():
        assert torch.equal(network(*sentence(kind)).mel, read(*sentence(kind)).mel)


@torch.inference_mode()
@pytest.mark.parametrize("changes", [{}, NSF | {"causal": True}], ids=["plain", "nsf"])
def test_a_released_vocoder_is_read_and_folded(changes, tmp_path):
    network = vocoder(**changes)
    read = load_vocoder(released(tmp_path, network))
    assert same(network, read, 1e-6) and not read.training


def test_the_last_checkpoint_is_taken(tmp_path):
    released(tmp_path, vocoder(seed=1), steps=90_000)
    released(tmp_path, vocoder(seed=2), steps=1_000_000)
    (tmp_path / "ckpt" / "checkpoint_best.pth").write_bytes(b"")
    assert same(load_vocoder(tmp_path), vocoder(seed=2), 1e-6)


def test_tables_have_the_sizes_of_the_checkpoint(tmp_path):
    """Older voices have a symbol less in each; a table of positions may be of any length, or not be there."""
    network = acoustic(sy=10, tone=4, max_len=17)
    read = load_acoustic(released(tmp_path, network))
    assert same(network, read) and read.text_encoder.sy_emb.num_embeddings == 10
    without = {key: x for key, x in network.state_dict().items() if key not in FORMULAS}
    read = load_acoustic(released(tmp_path, network, without))
    position, scales = (read.state_dict()[key] for key in FORMULAS)
    assert torch.equal(position, network.state_dict()[FORMULAS[0]]) and scales.shape == (8,)


def test_the_pitch_s_mean_and_deviation_are_read(tmp_path):
    network = acoustic("nsf", nsf_norm_type="mean_std")
    released(tmp_path, network)
    with pytest.raises(ValueError, match="mvn.npy cannot be read.*mean and standard deviation"):
        load_acoustic(tmp_path)
    np.save(tmp_path / "mvn.npy", np.array([[210.0], [45.0]]))
    read = load_acoustic(tmp_path)
    assert read.f0 == (210.0, 45.0)
    mel = torch.zeros(1, 2, 12)
    mel[0, :, -2], mel[0, :, -1] = torch.tensor([1.0, -9.0]), torch.tensor([0.6, 0.59])
    assert read.in_hertz(mel)[0, :, -2:].tolist() == [[255.0, 1.0], [30.0, 0.0]]
    assert load_acoustic(save_acoustic(tmp_path / "own", read)).f0 == (210.0, 45.0)
    for wrong in (np.zeros(3), np.array([1, np.nan])):
        np.save(tmp_path / "mvn.npy", wrong)
        with pytest.raises(ValueError, match="mvn.npy must hold two finite numbers"):
            load_acoustic(tmp_path)
    np.save(tmp_path / "mvn.npy", np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="mvn.npy cannot be read"):
        load_acoustic(tmp_path)


@pytest.mark.parametrize("kind", ["plain", "se"])
def test_an_own_acoustic_model_comes_back_in_half_precision(kind, tmp_path):
    network = acoustic(kind)
    network.config["linguistic_unit"] = {"speaker_list": "甲,乙"}
    assert save_acoustic(tmp_path / "am", network) == tmp_path / "am"
    assert {file.name for file in (tmp_path / "am").iterdir()} == {"config.yaml", "model.safetensors"}
    read = load_acoustic(tmp_path / "am")
    assert same(network, read, 1e-3) and read.config["linguistic_unit"] == {"speaker_list": "甲,乙"}
    assert all(x.dtype == torch.float32 for x in read.state_dict().values())
    assert all(torch.equal(read.state_dict()[key], network.state_dict()[key]) for key in FORMULAS)


def test_an_own_vocoder_comes_back_in_half_precision(tmp_path):
    network = vocoder(**NSF)
    read = load_vocoder(save_vocoder(tmp_path, network))
    assert same(network, read, 1e-3)
    assert same(load_vocoder(save_vocoder(tmp_path, read)), read)


def test_a_failed_save_leaves_the_earlier_checkpoint(tmp_path, monkeypatch):
    network = vocoder()
    save_vocoder(tmp_path, network)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr("safetensors.torch.save_file", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        save_vocoder(tmp_path, network)
    network.conv_pre.conv1d.bias.data[0] = 1e9
    with pytest.raises(ValueError, match="cannot be saved in FP16.*conv_pre.conv1d.bias"):
        save_vocoder(tmp_path, network)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_all_that_is_wrong_with_an_acoustic_model_is_listed(tmp_path):
    network = acoustic()
    tensors = network.state_dict() | {
        "fp_predictor.fc.weight": torch.zeros(2),
        "mel_postnet.fc.bias": torch.zeros(3),
        "emo_tokenizer.weight": torch.full((3, 4), float("nan")),
    }
    del tensors["text_encoder.ling_proj.weight"]
    with pytest.raises(ValueError) as told:
        load_acoustic(released(tmp_path, network, tensors))
    sentence = str(told.value)
    assert "checkpoint_900.pth is no checkpoint of the network in its config.yaml" in sentence
    assert "missing: text_encoder.ling_proj.weight;" in sentence
    assert "not known to it: fp_predictor.fc.weight;" in sentence
    assert "of another shape: mel_postnet.fc.bias;" in sentence
    assert "not finite: emo_tokenizer.weight." in sentence


def test_a_vocoder_s_tensors_are_told_by_the_names_in_its_file(tmp_path):
    tensors = normed(vocoder())
    del tensors["conv_post.conv1d.weight_g"]
    with pytest.raises(ValueError, match="Tensors missing: conv_post.conv1d.weight_g.$"):
        load_vocoder(released(tmp_path, vocoder(), tensors))
    with pytest.raises(ValueError, match=r"missing: .*weight_g.* and \d+ more; not known to it: .*weight"):
        load_vocoder(released(tmp_path, vocoder(), vocoder().state_dict()))


def test_the_file_of_another_model_is_refused(tmp_path):
    am, voc = released(tmp_path / "am", acoustic()), released(tmp_path / "voc", vocoder())
    with pytest.raises(ValueError, match="no Model / Generator / params"):
        load_vocoder(am)
    (am / "ckpt" / "checkpoint_900.pth").replace(voc / "ckpt" / "checkpoint_901.pth")
    with pytest.raises(ValueError, match="checkpoint_901.pth holds no tensors under model / generator"):
        load_vocoder(voc)


def test_missing_and_damaged_files_are_told(tmp_path):
    with pytest.raises(ValueError, match="config.yaml cannot be read"):
        load_vocoder(tmp_path)
    config = yaml.safe_dump({"Model": {"Generator": {"params": VOCODER}}})
    for content, wrong in (("a: [", "cannot be read"), ("- 1", "holds no settings"), (b"\xff", "cannot be read")):
        (tmp_path / "config.yaml").write_bytes(content.encode() if isinstance(content, str) else content)
        with pytest.raises(ValueError, match=f"config.yaml {wrong}"):
            load_vocoder(tmp_path)
    (tmp_path / "config.yaml").write_text(config, encoding="utf-8")
    with pytest.raises(ValueError, match="has neither model.safetensors nor ckpt/checkpoint_N.pth"):
        load_vocoder(tmp_path)
    save_vocoder(tmp_path, vocoder())
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="model.safetensors cannot be read whole"):
        load_vocoder(tmp_path)


class Sneaky:
    def __reduce__(self):
        return print, ("run!",)


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_in_a_file_is_run(tmp_path, capsys, zipped):
    released(tmp_path, vocoder())
    file, content = tmp_path / "ckpt" / "checkpoint_900.pth", {"model": {"generator": Sneaky()}}
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match="not a checkpoint of plain tensors"):
        load_vocoder(tmp_path)
    (tmp_path / "config.yaml").write_text("Model: !!python/object/apply:builtins.print ['run!']\n", encoding="utf-8")
    with pytest.raises(ValueError, match="config.yaml cannot be read"):
        load_vocoder(tmp_path)
    assert "run!" not in capsys.readouterr().out
