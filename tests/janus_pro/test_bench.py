"""The speed rows: every runtime computes the same, ratios are to PyTorch, a seeded checkpoint loads."""

import json

import numpy as np
import pytest
import torch
from transformers import JanusForConditionalGeneration

from notebooks.janus_pro import convert, network
from notebooks.janus_pro.measuring import bench, random_checkpoint
from tests.janus_pro import small
from utils import report
from utils.models.llm import FP32_PROPERTIES

WORDS = {"QUESTION_TOKENS": 5, "ANSWER_TOKENS": 4, "PARTIAL_TOKENS": 6}  # shorter, for speed


@pytest.fixture(scope="module", autouse=True)
def short():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WORDS.items():
            patch.setattr(bench, name, value)
        yield


@pytest.fixture(scope="module")
def config(checkpoint):
    return network.configuration(checkpoint)


def test_the_released_size_is_that_of_the_specification():
    with torch.device("meta"):
        model = JanusForConditionalGeneration(random_checkpoint.released())
    sizes = {part: sum(x.numel() for x in model.get_submodule(part).parameters()) / 1e6 for part in network.PARTS}
    assert sizes["model.vision_model"] == pytest.approx(303.7, abs=0.5)
    assert sizes["model.vqmodel"] == pytest.approx(71.9, abs=0.5)
    assert sizes["lm_head"] == pytest.approx(102400 * 2048 / 1e6)
    layer = 4 * 2048**2 + 3 * 2048 * 5632 + 2 * 2048
    assert sizes["model.language_model"] == pytest.approx((24 * layer + 2048 + 102400 * 2048) / 1e6)
    assert bench.whole_drawing(random_checkpoint.released()).name == "draw all 576 tokens"
    assert bench.workloads(random_checkpoint.released())[0].name == "see a picture of 384 x 384"


def test_a_seeded_checkpoint_loads_whole_from_several_files(checkpoint, tmp_path, monkeypatch):
    whole = random_checkpoint.seeded_checkpoint(small.CONFIG, checkpoint, tmp_path / "whole")
    monkeypatch.setattr(random_checkpoint.random_checkpoint, "WEIGHTS_PER_FILE", 100_000)
    parts = random_checkpoint.seeded_checkpoint(small.CONFIG, whole, tmp_path / "parts")
    first, second = network.load(whole).state_dict(), network.load(parts).state_dict()
    assert first.keys() == second.keys() and all(torch.equal(x, second[key]) for key, x in first.items())
    assert (parts / "tokenizer.json").is_file() and len(list(whole.glob("*.safetensors"))) == 1
    sizes = [file.stat().st_size for file in parts.glob("*.safetensors")]
    largest = max(tensor.numel() for tensor in first.values())
    assert len(sizes) > 3 and max(sizes) < 2 * max(largest, 100_000) + 20_000


def test_all_runtimes_compute_the_same(checkpoint, ir, config):
    eager, ours = bench.Eager(checkpoint, "FP32"), bench.OpenVINO(ir, config, **FP32_PROPERTIES)
    shapes = [(1, 16, 64), (1,), (4,), (6,), (1, 3, 64, 64), (1,), (16,)]
    for work, shape in zip([*bench.workloads(config), bench.whole_drawing(config)], shapes, strict=True):
        expected, found = eager(work), ours(work)
        assert found.shape == expected.shape == shape, work
        assert np.abs(found - expected).max() < (0.05 if work.step == "decode" else 1e-3), work  # its weights are FP16
    assert len(set(found.tolist())) > 3  # a drawing is not of one token


def test_the_naive_way_draws_the_same(ir, config):
    drawing = bench.whole_drawing(config)
    naive, ours = bench.Naive(ir, config, **FP32_PROPERTIES), bench.OpenVINO(ir, config, **FP32_PROPERTIES)
    expected = ours(drawing).tolist()
    assert naive(drawing).tolist() == expected == naive(drawing).tolist()


def test_a_drawing_may_stop_early_and_padding_is_as_before(ir, config):
    ours = bench.OpenVINO(ir, config, **FP32_PROPERTIES)
    padding = ours.janus._special_ids["padding"]
    part, all_of_it = ours(bench.workloads(config)[3]), ours(bench.whole_drawing(config))
    assert part.tolist() == all_of_it[:6].tolist() and ours.janus._special_ids["padding"] == padding != 0


def test_rows_name_every_runtime_and_a_whole_drawing(checkpoint, ir, config, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.bench, "torch_precision", lambda: "BF16")
    rows = bench.measure(checkpoint, {"FP16": ir}, ("BF16",), 3, label="small")
    found = {(row["runtime"], row["precision"], row["workload"]) for row in rows}
    names = [*(work.name for work in bench.workloads(config)), "draw all 16 tokens"]
    expected = {(runtime, "BF16", name) for runtime in (bench.EAGER, bench.OURS) for name in names}
    assert found == expected | {(bench.NAIVE, "BF16", names[3])}
    amounts = [row["throughput"] * row["median_ms"] / 1e3 for row in rows if row["runtime"] == bench.OURS]
    assert amounts == pytest.approx([1, 1, 4, 6, 1, 1, 16])
    whole, parts = bench.stages(config)
    assert whole == names[1] and list(parts) == [names[0], "first token, 21 tokens"]
    shares = bench.bench.stage_shares(rows, whole, parts, "small")
    assert {name.rpartition(", ")[2] for name in shares} == {f"{runtime} BF16" for runtime in (bench.EAGER, bench.OURS)}
    assert all(row["model_mb"] > 0.1 for row in rows)
    report.save("janus_pro", model="tiny", device="CPU", parity=[], quality=[], speed=rows, folder=tmp_path)


def test_answers_go_on_from_the_prompt_that_is_read_before(checkpoint, ir, config):
    calls = bench.start(bench.OURS, ir, checkpoint, "FP16")
    answer = calls[bench.workloads(config)[2].name]
    answer.prepare()
    first = answer.call().tolist()
    answer.prepare()
    assert answer.call().tolist() == first and len(first) == 4


def test_conversions_are_rows_with_time_and_size(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.preflight, "in_child", lambda function, *args, what: function(*args))
    folders, rows = bench.timed_conversions(
        convert.to_ir, convert.compress, checkpoint, tmp_path, ("FP16", "INT4"), 32, "small"
    )
    assert [row["workload"] for row in rows] == ["conversion of the checkpoint", "compression of the FP16 IR"]
    assert rows[1]["model_mb"] < rows[0]["model_mb"] == pytest.approx(report.bench.size_mb(folders["FP16"]))
    report.save("janus_pro", model="tiny", device="CPU", parity=[], quality=[], speed=rows, folder=tmp_path)


def test_limits_are_shares_of_what_was_measured_in_the_same_run(checkpoint, config, tmp_path, monkeypatch):
    sizes = {"language": 50.0, "text_head": 10.0, "image_head": 5.0}
    monkeypatch.setattr(bench.bench, "read_bandwidth_gbs", lambda: 20.0)
    monkeypatch.setattr(bench.bench, "matmul_gflops", lambda dtype: {"bf16": 0.5}[dtype])
    monkeypatch.setattr(bench.bench, "size_mb", lambda path: sizes[path.name[9:-10]])
    row = {"runtime": bench.OURS, "precision": "INT4"}
    names = {work.step: work.name for work in bench.workloads(config)}
    rows = [row | {"workload": names[step], "throughput": rate} for step, rate in (("answer", 100.0), ("draw", 200.0))]
    rows.append(row | {"workload": names["read text"], "median_ms": 10.0})
    layers = network.load(checkpoint, dtype=torch.float32).model.language_model.layers
    gflop = 2e-9 * sum(p.numel() for p in layers.parameters() if p.ndim == 2) * 21
    notes = bench.limits(rows, {"INT4": tmp_path}, config, "small")
    assert notes == {
        "read bandwidth, GB/s": 20.0,
        "largest bf16 matrix product, GFLOP/s": 0,
        "small, reading a prompt at INT4, share of that product": round(gflop / 0.01 / 0.5, 2),
        "small, tokens to answer at INT4, share of the read bandwidth": 0.3,
        "small, tokens to draw at INT4, share of the read bandwidth": 0.55,
    }
    assert json.dumps(notes)
