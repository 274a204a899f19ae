"""The stages of a training in the checkpoint: their time, processors and versions of the code."""

import json
import subprocess

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from utils.models.tensors import save_half
from utils.training import loop, lora, parts, provenance


@pytest.fixture(autouse=True)
def stages(monkeypatch):
    monkeypatch.setattr(provenance, "STAGES", [])


def stored(file):
    with safe_open(file, "numpy") as opened:
        return json.loads(opened.metadata()["training"])


def train(path, network, steps):
    loop.optimise(path, network, lambda *_: {"loss": network.weight.square().mean()}, steps=steps, rate=0.1)


def test_a_checkpoint_carries_all_stages_of_its_training(tmp_path):
    network = nn.Linear(2, 2)
    train(tmp_path / "first.pt", network, 3)
    train(tmp_path / "second.pt", network, 5)
    weights = tmp_path / "part" / "model.safetensors"
    save_half(weights.parent, {weights.name: network.state_dict()})
    provenance.stamp(tmp_path)
    first, second = stored(weights)
    assert torch.equal(load_file(weights)["weight"], network.weight.half())
    assert (first["stage"], first["steps"], second["stage"], second["steps"]) == ("first", 3, "second", 5)
    assert first["processors"] == [provenance.processor()] and first["code"] == [provenance.code_version()]


def test_a_stopped_stage_sums_its_time_and_names_both_machines(tmp_path, monkeypatch):
    clock = iter([0, 100, 1000, 1050, 2000])
    monkeypatch.setattr(loop, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(provenance, "processor", lambda: "one machine")
    network = nn.Linear(2, 2)
    train(tmp_path / "only.pt", network, 3)
    monkeypatch.setattr(provenance, "processor", lambda: "another machine")
    provenance.STAGES.clear()
    train(tmp_path / "only.pt", network, 6)
    train(tmp_path / "only.pt", network, 6)  # which finds everything done
    assert [(one["steps"], one["seconds"]) for one in provenance.STAGES] == [(6, 150), (6, 150)]
    assert provenance.STAGES[1]["processors"] == ["one machine", "another machine"]


def test_an_adapter_carries_them_and_each_part_only_its_own(tmp_path):
    def part(name):
        adapter = lora.Adapter(nn.Sequential(nn.Linear(4, 4)), 1, ["0"])
        provenance.STAGES.append(provenance.stage(name, 1, 2.0))
        adapter.save(tmp_path / f"{name}.safetensors")

    parts.run({"a": lambda: part("a"), "b": lambda: part("b")}, [])
    assert [one["stage"] for one in stored(tmp_path / "a.safetensors")] == ["a"]
    assert [one["stage"] for one in stored(tmp_path / "b.safetensors")] == ["b"]


def test_the_version_is_the_commit_and_says_when_files_differ_from_it(tmp_path, monkeypatch):
    def version():
        provenance.code_version.cache_clear()
        return provenance.code_version()

    def git(*command):
        git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.com"]
        done = subprocess.run([*git, *command], cwd=tmp_path, check=True, capture_output=True, encoding="utf-8")
        return done.stdout.strip()

    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    try:
        assert version() == "unknown"
        (tmp_path / "code.py").write_text("1", encoding="utf-8")
        git("init", "--quiet")
        git("add", "code.py")
        git("commit", "--quiet", "-m", "First")
        assert version() == git("rev-parse", "--short=12", "HEAD")
        (tmp_path / "code.py").write_text("2", encoding="utf-8")
        assert version().endswith("-dirty")
    finally:
        provenance.code_version.cache_clear()
