"""The speed rows: every runtime computes the same, ratios are to PyTorch, a seeded checkpoint loads."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from notebooks.minicpm_v import convert
from notebooks.minicpm_v.measuring import bench, random_checkpoint
from notebooks.minicpm_v.network import MiniCPMV, load
from tests.minicpm_v import small
from utils import report
from utils.models.llm import FP32_PROPERTIES

WORDS = {"PROMPT_TOKENS": 40, "QUESTION_TOKENS": 5, "ANSWER_TOKENS": 4, "STATIC_CACHE_TOKENS": 80}  # shorter, for speed


@pytest.fixture(scope="module", autouse=True)
def short():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WORDS.items():
            patch.setattr(bench, name, value)
        yield


def config_of(checkpoint: Path) -> dict:
    return json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))


def test_the_released_size_is_that_of_the_specification():
    with torch.device("meta"):
        model = MiniCPMV(random_checkpoint.RELEASED)
    count = sum(tensor.numel() for tensor in model.state_dict().values())
    assert count == 3_434_965_792
    layers = [p for name, p in model.llm.model.layers.named_parameters() if p.ndim == 2]
    assert bench.layer_weights(random_checkpoint.RELEASED) == sum(p.numel() for p in layers)
    assert [work.name for work in bench.workloads(random_checkpoint.RELEASED)][:2] == [
        "encode a slice of 448 x 448",
        "encode 10 slices of 448 x 448",
    ]


def test_layers_with_fewer_keys_than_queries_are_counted_right():
    layers = [p for p in MiniCPMV(small.CONFIGS[2.6]).llm.model.layers.parameters() if p.ndim == 2]
    assert bench.layer_weights(small.CONFIGS[2.6]) == sum(p.numel() for p in layers)


@pytest.mark.parametrize("version", [2.6, 2.0])
def test_a_seeded_checkpoint_loads_whole_from_several_files(version, tmp_path, monkeypatch):
    config = small.CONFIGS[version]
    small.tokenizer(version).save_pretrained(tmp_path / "companions")
    whole = random_checkpoint.seeded_checkpoint(config, tmp_path / "companions", tmp_path / "whole")
    monkeypatch.setattr(random_checkpoint.random_checkpoint, "WEIGHTS_PER_FILE", 100_000)
    parts = random_checkpoint.seeded_checkpoint(config, whole, tmp_path / "parts")
    first, second = load(whole).state_dict(), load(parts).state_dict()
    assert first.keys() == second.keys() and all(torch.equal(x, second[key]) for key, x in first.items())
    assert (parts / "tokenizer.json").is_file() and len(list(whole.glob("*.safetensors"))) == 1
    sizes = [file.stat().st_size for file in parts.glob("*.safetensors")]
    largest = max(tensor.numel() for tensor in first.values())
    assert len(sizes) > 3 and max(sizes) < 2 * max(largest, 100_000) + 20_000


def test_all_runtimes_compute_the_same(both):
    checkpoint, ir = both
    config = config_of(checkpoint)
    network, ours = load(checkpoint, dtype=torch.float32), bench.OpenVINO(ir, **FP32_PROPERTIES)
    runs = [bench.Eager(network, static) for static in (False, True)]
    for work in [*bench.workloads(config), bench.Workload("", "read", 2, 5), bench.Workload("", "generate", 0, 3)]:
        eager, static = (run(work) for run in runs)
        found = ours(work)
        assert found.shape == eager.shape and len(eager) == {"read": 1}.get(work.step, work.slices + work.tokens)
        assert np.abs(static - eager).max() < 1e-4 and np.abs(found - eager).max() < 1e-3, work
        if work.step == "encode":
            assert eager.std() > 0.1 and eager.shape[1:] == (config["query_num"], config["hidden_size"])


def test_rows_name_every_runtime_and_pass_the_schema(both, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.bench, "torch_precision", lambda: "BF16")
    checkpoint, ir = both
    config = config_of(checkpoint)
    rows = bench.measure(checkpoint, {"FP16": ir}, ("BF16",), rounds=1, label="small")
    found = {(row["runtime"], row["precision"], row["workload"]) for row in rows}
    names = [work.name for work in bench.workloads(config)]
    expected = {(runtime, "BF16", name) for runtime in (bench.EAGER, bench.OURS) for name in names}
    assert found == expected | {(bench.STATIC, "BF16", name) for name in names[2:]}
    amounts = {row["workload"]: row["throughput"] * row["median_ms"] / 1e3 for row in rows}
    assert list(amounts.values()) == pytest.approx([1, 10, 1, 1, 1, 4])
    whole, parts = bench.stages(config)
    assert whole == names[2] and list(parts) == [names[0], f"first token, {config['query_num'] + 5} tokens"]
    shares = bench.bench.stage_shares(rows, whole, parts, "small")  # a static cache changes no encoding of slices
    assert {name.rpartition(", ")[2] for name in shares} == {f"{runtime} BF16" for runtime in (bench.EAGER, bench.OURS)}
    report.save("minicpm_v", model="tiny", device="CPU", parity=[], quality=[], speed=rows, folder=tmp_path)


def test_a_prompt_begins_anew_and_generating_goes_on(ir_2_6):
    config, ir = config_of(ir_2_6), ir_2_6
    run = bench.OpenVINO(ir, **FP32_PROPERTIES)
    *_, read, generate = bench.workloads(config)
    first, then, later = run(read), run(generate), run(generate)
    assert run.chat._past == read.tokens + 2 * generate.tokens
    assert run(read) == first and (run(generate) == then).all() and (run(generate) == later).all()


def test_generating_goes_on_from_the_long_prompt_each_time(ir_2_6):
    config = (ir_2_6 / "config.json").read_text(encoding="utf-8")
    *_, generate = bench.start(bench.OURS, ir_2_6, "FP16", config).values()
    generate.prepare()
    first = generate.call().tolist()
    generate.prepare()
    assert generate.call().tolist() == first


def test_conversions_are_rows_with_time_and_size(checkpoint_2_6, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.preflight, "in_child", lambda function, *args, what: function(*args))
    folders, rows = bench.timed_conversions(
        convert.to_ir, convert.compress, checkpoint_2_6, tmp_path, ("FP16", "INT4"), 32, "small"
    )
    assert [row["workload"] for row in rows] == ["conversion of the checkpoint", "compression of the FP16 IR"]
    assert rows[1]["model_mb"] < rows[0]["model_mb"] == pytest.approx(report.bench.size_mb(folders["FP16"]))
    assert bench.weights_mb(folders["INT4"]) < bench.weights_mb(folders["FP16"]) < rows[0]["model_mb"]
    report.save("minicpm_v", model="tiny", device="CPU", parity=[], quality=[], speed=rows, folder=tmp_path)


def test_limits_are_shares_of_what_was_measured_in_the_same_run(tmp_path, monkeypatch):
    config = small.CONFIGS[2.6]
    monkeypatch.setattr(bench.bench, "read_bandwidth_gbs", lambda: 20.0)
    monkeypatch.setattr(bench.bench, "matmul_gflops", lambda dtype: 100.0)
    monkeypatch.setattr(bench.bench, "size_mb", lambda path: 50.0 if path.name == "openvino_language_model.xml" else 0)
    *_, read, generate = bench.workloads(config)
    row = {"runtime": bench.OURS, "precision": "INT4"}
    rows = [row | {"workload": read.name, "median_ms": 1.0}, row | {"workload": generate.name, "throughput": 300.0}]
    notes = bench.limits(rows, {"INT4": tmp_path}, config, "small")
    assert notes["small, generating at INT4, share of the read bandwidth"] == 0.75
    share = 2e-9 * bench.layer_weights(config) * 40 / 1e-3 / 100
    assert notes["small, reading a prompt at INT4, share of that product"] == round(share, 2) > 0
