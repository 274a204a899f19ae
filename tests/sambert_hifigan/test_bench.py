"""The speed rows: all runtimes agree, ratios are to PyTorch, the random voice has the released size."""

import numpy as np
import pytest
import torch

from notebooks.sambert_hifigan.convert import quantize, to_ir
from notebooks.sambert_hifigan.measuring import bench, random_checkpoint, runtimes
from notebooks.sambert_hifigan.network.acoustic import KanTtsSAMBERT, load_acoustic
from notebooks.sambert_hifigan.network.vocoder import Generator, load_vocoder, stored_shapes
from notebooks.sambert_hifigan.pipeline import FP32_PROPERTIES, Synthesizer, parts_of
from tests.sambert_hifigan import small as networks
from tests.sambert_hifigan.small import NAMES, TABLE_SIZES
from utils import report
from utils.bench import Timing

SENTENCE = "你好，再见。"
SMALL = networks.ACOUSTIC | TABLE_SIZES | {"speaker": 4, "max_len": 120}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small random voice: checkpoint folder, IR, and the IR of INT8."""
    folder = tmp_path_factory.mktemp("random")
    voice = random_checkpoint.random_voice(folder / "voice", SMALL, networks.VOCODER, 2400)
    ir = to_ir(voice, folder / "ir", half=False)
    mels = [spoken.mel for spoken in Synthesizer(ir).stream(SENTENCE, random_checkpoint.SPEAKER)]
    return voice, ir, quantize(ir, mels, folder / "int8")


def make_runtimes(voice, ir, folder, speaker):
    """Every runtime but torch.compile, the inputs of the first, the sentence, and the configuration."""
    acoustic, vocoder = load_acoustic(voice / "am"), load_vocoder(voice / "voc")
    ours = runtimes.OpenVINORuntime(ir, **FP32_PROPERTIES)
    sentence, config = runtimes.read_sentence(ours.synthesizer, speaker, SENTENCE), ours.synthesizer.config
    eager = runtimes.StepwiseRuntime(runtimes.eager(runtimes.modules(acoustic, vocoder)), acoustic)
    inputs = runtimes.synthesize(eager, sentence, config)
    steps = runtimes.onnx(runtimes.modules(acoustic, vocoder), eager.examples(inputs), folder)
    by_name = {"eager": eager, "openvino": ours, "onnx": runtimes.StepwiseRuntime(steps, acoustic)}
    return by_name, inputs, sentence, config


def test_the_random_voice_has_the_released_size():
    with torch.device("meta"):
        acoustic = KanTtsSAMBERT({"Model": {"KanTtsSAMBERT": {"params": random_checkpoint.ACOUSTIC}}})
        vocoder = Generator({"Model": {"Generator": {"params": random_checkpoint.VOCODER}}})
    assert sum(x.numel() for x in acoustic.state_dict().values()) == 12_709_355  # four rows of speakers
    assert sum(shape.numel() for shape in stored_shapes(vocoder).values()) == 4_879_004 and vocoder.hop == 200


def test_every_symbol_of_the_random_voice_lasts_as_long(small):
    (spoken,) = Synthesizer(small[1]).stream(SENTENCE, random_checkpoint.SPEAKER)
    assert [frames for _, frames in spoken.durations] == [18, 18, 9, 18, 18, 9]
    assert spoken.samples.std() > 1e-3 and np.isfinite(spoken.samples).all()


@pytest.mark.parametrize("kind", networks.KINDS)
def test_all_runtimes_agree(kind, checkpoints, irs, synthesizers, tmp_path):
    by_name, expected, sentence, config = make_runtimes(checkpoints[kind], irs[kind], tmp_path, NAMES[1])
    (spoken,) = synthesizers[kind].stream(SENTENCE, NAMES[1])
    assert expected["sound"][0].shape[2] == len(spoken.samples)
    assert set(expected) - {"durations", "sound"} < set(parts_of(config))
    for name in ("openvino", "onnx"):
        found = runtimes.synthesize(by_name[name], sentence, config)
        for part, inputs in expected.items():
            for ours, theirs in zip(found[part], inputs, strict=True):
                scale = max(1.0, np.abs(theirs).max())
                assert np.shape(ours) == np.shape(theirs) and np.abs(ours - theirs).max() < 2e-3 * scale, (name, part)


@pytest.mark.parametrize("band", [1, 3, 20])
def test_a_call_for_every_step_makes_the_same_and_forgets_the_sentence_before(band):
    network = networks.acoustic()
    decoder, predictor = network.decoder, network.variance_adaptor.duration_predictor
    stateful, random = runtimes.StatefulRuntime(network), torch.Generator().manual_seed(0)
    memory = torch.randn(1, 11, decoder.dec_in_proj.in_features - decoder.width, generator=random)
    condition = torch.randn(1, 7, stateful.requests["duration"].model_inputs[1].shape[2], generator=random)
    with torch.inference_mode():
        frames, ahead = decoder.infer(memory, band).numpy(), decoder.keys_and_values(memory).numpy()
        durations = predictor.infer(condition)[0].exp().numpy() - 1
    for _ in range(2):
        assert np.abs(stateful.decode(memory.numpy(), ahead, band) - frames).max() < 1e-5
        assert np.abs(stateful.durations(condition.numpy()) - durations).max() < 1e-5
    (cache,) = stateful.requests["decoder"].query_state()
    assert list(cache.state.shape) == [3, 1, min(11, band), 2 * decoder.width]


def test_rows_name_every_runtime_and_pass_the_schema(small, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "TEXT", SENTENCE)
    monkeypatch.setattr(bench.bench, "read_bandwidth_gbs", lambda: 20.0)
    monkeypatch.setattr(bench.bench, "matmul_gflops", lambda dtype: 100.0)
    monkeypatch.setattr(bench.bench, "torch_precision", lambda: "BF16")
    voice, ir, int8 = small
    rows = bench.measured(voice, {"FP32": ir, "INT8": int8}, rounds=1, label="small")
    notes = bench.limits(rows, load_acoustic(voice / "am").decoder, load_vocoder(voice / "voc"), 2400)
    found = {(row["runtime"], row["precision"]) for row in rows}
    exact = {(runtime, "FP32") for runtime in (bench.EAGER, bench.ONNX, bench.OURS, bench.STATEFUL)}
    assert found == exact | {(bench.EAGER, "BF16"), (bench.OURS, "BF16"), (bench.OURS, "INT8")}
    seconds = 90 * 24 / 2400
    for row in rows:
        amount = row["throughput"] * row["median_ms"] / 1e3
        assert amount == pytest.approx(seconds)
        torch_ms = [x["median_ms"] for x in rows if (x["runtime"], x["workload"]) == (bench.EAGER, row["workload"])]
        assert row["ratio_to_torch"] == pytest.approx(min(torch_ms) / row["median_ms"])
    sizes = {row["workload"].partition(", 0")[0]: row["model_mb"] for row in rows if row["model_mb"]}
    assert sizes[bench.STEPS] < sizes[bench.WHOLE] / 2 and sizes["encoder"] != sizes[bench.VOCODER]
    assert {row["workload"].partition(", 0")[0] for row in rows if row["precision"] == "INT8"} == set(
        bench.VOCODER_WORKLOADS
    )
    assert notes["read bandwidth, GB/s"] == 20 and "share of it that the vocoder reaches at BF16" in notes
    path = report.save(
        "sambert_hifigan", model="tiny", device="CPU", parity=[], quality=[], speed=rows, folder=tmp_path
    )
    assert len(report.load(path)["speed"]) == len(rows)


@pytest.mark.parametrize("faster", ["FP32", "BF16"])
def test_a_source_is_timed_beside_its_vocoder(faster, checkpoints, irs, monkeypatch):
    monkeypatch.setattr(bench, "TEXT", SENTENCE)
    monkeypatch.setattr(bench.bench, "torch_precision", lambda: faster)
    monkeypatch.setattr(bench.convert, "source", lambda model: checkpoints[model])
    monkeypatch.setattr(bench.convert, "prepare", lambda model, precision: irs[model])
    rows = bench.live.__wrapped__("se", rounds=1)
    assert {row["precision"] for row in rows if row["workload"].startswith("source")} == {"FP32"}
    assert {row["precision"] for row in rows} == {"FP32", "INT8", faster}
    assert len(rows) == 3 * 10 + 2 + 3 + (2 * 3 if faster == "BF16" else 0)


def test_limits_are_shares_of_what_was_measured_in_the_same_run(monkeypatch):
    decoder, vocoder, counted = networks.acoustic().decoder, networks.vocoder(), 0

    def count(layer, inputs, output):
        nonlocal counted
        places = inputs[0] if isinstance(layer, torch.nn.ConvTranspose1d) else output
        counted += 2 * layer.weight.numel() * places.shape[2]

    hooks = [x.register_forward_hook(count) for x in vocoder.modules() if hasattr(x, "kernel_size")]
    mel = np.zeros((1, 10, 40), np.float32)
    vocoder(torch.from_numpy(mel))
    for hook in hooks:
        hook.remove()
    monkeypatch.setattr(bench.bench, "read_bandwidth_gbs", lambda: 0.5)
    monkeypatch.setattr(bench.bench, "matmul_gflops", lambda dtype: 0.01)
    seconds = 40 * vocoder.hop / networks.RATE
    timings = {bench.VOCODER: 1000.0, bench.STEPS: 0.1}
    rows = [
        bench.bench.row(bench.OURS, "FP32", f"{work}, {seconds:.2g} s of speech", Timing.of([took]), amount=seconds)
        for work, took in timings.items()
    ]
    notes = bench.limits(rows, decoder, vocoder, networks.RATE)
    assert notes["share of it that the vocoder reaches at FP32"] == round(counted / 1e9 / 0.01, 2) > 0.1
    read = sum(x.numel() for x in decoder.parameters()) - 3 * (decoder.pnca[0]["pnca_attn"].w_h_kv.weight.numel() + 32)
    share = notes["share of the bandwidth that a step of the decoder reaches"]
    assert share == round(14 * 4 * read / 1e9 / 1e-4 / 0.5, 2) > 0.1
