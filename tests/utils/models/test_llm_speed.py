"""Runtimes whose speed is compared do the same work: greedy decoding of the same tokens, whatever came before."""

import numpy as np
import pytest
import torch

from tests.utils.models.small import PRECISE, export, tiny_llama
from utils import bench
from utils.models import llm_speed
from utils.models.llm import Session

VOCABULARY = 256


@pytest.fixture(scope="module")
def llama():
    return tiny_llama()


@pytest.fixture(scope="module")
def folder(llama, tmp_path_factory):
    """An IR folder of the same model."""
    return export(llama, tmp_path_factory.mktemp("llama")).parent


@pytest.mark.parametrize("runtime", ["eager", "compiled"])
def test_pytorch_generates_the_tokens_of_openvino(runtime, llama, folder, monkeypatch):
    monkeypatch.setattr(llm_speed, "PREFILL_TOKENS", 12)
    monkeypatch.setattr(torch, "compile", lambda model, dynamic: model)  # compiling takes half a minute
    generate = getattr(llm_speed, runtime)(llama)
    session = Session(folder / "openvino_model.xml", **PRECISE)
    for seed in (0, 1):  # the second prompt begins with an empty cache
        prompt = np.random.default_rng(seed).integers(0, VOCABULARY, (1, 12))
        assert generate(prompt, 6) == session.generate(prompt, 6)[0].tolist()


def test_workloads_have_the_lengths_in_their_names():
    calls = []
    works = llm_speed.workloads(lambda ids, count: calls.append((ids.shape, count, ids[0, 0])))
    for name in (llm_speed.FIRST, llm_speed.FIRST, llm_speed.DECODE):
        works[name]()
    assert [call[:2] for call in calls] == [((1, 512), 1), ((1, 512), 1), ((1, 16), 32)]
    assert calls[0][2] != calls[1][2]  # a new prompt in each call
    assert [work.amount for work in llm_speed.WORKLOADS] == [512, 32]


def test_settings_of_openvino_and_pytorch_are_compared(llama, folder, tmp_path, monkeypatch):
    changed = []
    llama.save_pretrained(tmp_path)
    monkeypatch.setattr(llm_speed, "FIRST_ID", 0)
    monkeypatch.setattr(llm_speed, "END_ID", VOCABULARY)
    monkeypatch.setattr(bench, "torch_precisions", lambda: ("FP32", "BF16"))
    settings = [llm_speed.openvino_setting("openvino changed", "FP16", folder, changed.append)]
    rows = bench.compare([*settings, *llm_speed.torch_settings(tmp_path)], llm_speed.WORKLOADS)
    assert [(row["runtime"], row["precision"]) for row in rows[:3]] == [
        ("openvino changed", "FP16"),
        ("torch eager", "FP32"),
        ("torch eager", "BF16"),
    ]
    assert len(rows) == 6 and len(changed) == 1 and rows[0]["model_mb"] > 0
