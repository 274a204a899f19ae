"""The speed rows: every runtime says the same, ratios are to PyTorch, the random checkpoint has the released size."""

import json
import shutil
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
from transformers import BertConfig, BertModel, HubertConfig, HubertModel

from notebooks.gpt_sovits import convert
from notebooks.gpt_sovits.measuring import bench, random_checkpoint, runtimes
from notebooks.gpt_sovits.network.sovits import SynthesizerTrn
from notebooks.gpt_sovits.network.t2s import Text2SemanticDecoder
from tests.gpt_sovits import small
from utils import report
from utils.models.llm import FP32_PROPERTIES

SHORT = {"RECORDING_S": 1.0, "CHARACTERS": 8, "SENTENCE_CHARACTERS": 4, "TOKENS": 12}
ONCE = {"hubert", "bert", "semantic", "synthesizer", "vocoder"}  # parts that every runtime has
LAYERS = small.T2S["model"]["n_layer"]


@pytest.fixture(scope="module", autouse=True)
def short():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHORT.items():
            patch.setattr(runtimes, name, value)
        yield


@pytest.fixture(scope="module")
def eager(checkpoint) -> runtimes.Eager:
    return runtimes.Eager(checkpoint)


@pytest.fixture(scope="module")
def given(eager, ir) -> dict:
    """What PyTorch is given in a sentence, and makes of it."""
    return runtimes.synthesize(eager, runtimes.sentence(ir))


@pytest.fixture(scope="module")
def onnx(checkpoint, given, tmp_path_factory) -> Path:
    """The folder of ONNX files."""
    folder = tmp_path_factory.mktemp("onnx")
    runtimes.export(checkpoint, given, folder)
    return folder


@pytest.fixture(scope="module")
def vocoder(checkpoint, tmp_path_factory) -> Path:
    return runtimes.convert_vocoder(checkpoint, tmp_path_factory.mktemp("vocoder") / "vocoder.xml")


@pytest.fixture(scope="module")
def ours(ir, vocoder) -> runtimes.Converted:
    return runtimes.Converted(ir, vocoder, **FP32_PROPERTIES)


@pytest.fixture(scope="module")
def decoders(eager, checkpoint, ir, onnx, ours) -> dict[str, runtimes.Decoder]:
    return {
        "torch": eager.decoder,
        "torch, no cache": runtimes.NoCacheDecoder(eager.decoder),
        "onnx": runtimes.Exported(onnx).decoder,
        "openvino": ours.decoder,
        "openvino, no cache": runtimes.NoCacheDecoder(ours.decoder),
        "openvino, cache passed": runtimes.openvino_external_cache(checkpoint, ir, **FP32_PROPERTIES),
    }


def close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    scale = max(1.0, np.abs(expected).max())
    return found.shape == expected.shape and np.abs(found - expected).max() < tolerance * scale


def test_the_random_checkpoint_has_the_released_size():
    with torch.device("meta"):
        built = {part: build() for part, build in random_checkpoint.RELEASED.items()}
        whole = SynthesizerTrn(random_checkpoint.SOVITS, posterior=True)
    sizes = {part: sum(x.numel() for x in network.parameters()) / 1e6 for part, network in built.items()}
    assert sizes["t2s"] == pytest.approx(77.6, abs=0.05) and sizes["sovits"] == pytest.approx(40.8, abs=0.05)
    assert sum(x.numel() for x in whole.parameters()) / 1e6 == pytest.approx(51.3, abs=0.05)
    assert sizes["hubert"] == pytest.approx(94.4, abs=0.05) and sizes["bert"] == pytest.approx(324.5, abs=0.05)
    t2s, sovits = built["t2s"], built["sovits"]
    assert (t2s.heads, t2s.eos, len(t2s.h["layers"])) == (16, 1024, 24)
    assert (sovits.version, sovits.dec.hop, sovits.bins, len(sovits.codebook.embed)) == ("v2", 640, 704, 1024)


def test_a_random_checkpoint_loads_and_speaks(tmp_path):
    networks = {
        "t2s": lambda: Text2SemanticDecoder(small.T2S),
        "sovits": lambda: SynthesizerTrn({"data": small.DATA, "model": small.MODEL}),
        "hubert": lambda: HubertModel(HubertConfig(**small.HUBERT)),
        "bert": lambda: BertModel(BertConfig(**small.BERT), add_pooling_layer=False),
    }
    one, other = (random_checkpoint.random_checkpoint(tmp_path / name, networks) for name in ("one", "other"))
    for part in networks:
        file = Path(part) / "model.safetensors"
        assert (one / file).read_bytes() == (other / file).read_bytes()
    settings = {"sample_rate": 1000, "channels": 12, "phones": small.PHONES, "bert": small.WIDTH}
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    given = runtimes.synthesize(runtimes.Eager(one), runtimes.sentence(tmp_path))
    (sound,) = given["sound"]
    assert sound.shape == (1, 1, 12 * 2 * 20) and np.isfinite(sound).all() and sound.std() > 1e-3
    assert runtimes.BERT not in given and not given["tokens"][1].any()  # no IR of BERT is there
    assert json.loads((one / "bert" / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]["[SEP]"] == 2


def test_every_runtime_computes_the_same(eager, ours, onnx, given):
    exported = runtimes.Exported(onnx)
    assert set(exported.parts) == ONCE and set(eager.parts) == set(ours.parts) == ONCE | {"style"}
    for part in eager.parts:
        expected = eager.run(part, *given[part])
        for runtime in (ours, exported):
            if part in runtime.parts:
                assert close(runtime.run(part, *given[part]), expected, 1e-4), (part, type(runtime))
    assert given["bert"][0].shape == (1, 10) and given["tokens"][1].all(0).all()


def test_the_sentence_is_the_same(ours, given, ir):
    said = runtimes.synthesize(ours, runtimes.sentence(ir))
    assert said.keys() == given.keys()
    for part, arrays in given.items():
        for found, expected in zip(said[part], arrays, strict=True):
            assert close(found, expected, 1e-3), part


def test_onnx_files_take_other_lengths(eager, onnx):
    """All but the synthesizer's."""
    exported = runtimes.Exported(onnx)
    inputs = {
        "vocoder": (small.drawn(1, 12, 19).numpy(), small.drawn(1, 20, 1).numpy()),
        "hubert": (0.1 * small.drawn(1, 5000).numpy(),),
        "bert": (small.ids(13, 50).numpy(),),
        "semantic": (small.drawn(1, 9, small.WIDTH).numpy(),),
    }
    assert inputs.keys() == ONCE - {"synthesizer"}
    for part, arrays in inputs.items():
        assert close(exported.run(part, *arrays), eager.run(part, *arrays), 1e-4), part


def test_every_decoder_says_the_same_and_forgets_the_sentence_before(decoders, given):
    phones, bert, prompts = given["tokens"]
    sentences = given["tokens"], (phones[::-1].copy(), bert, prompts[:9])
    expected = [runtimes.greedy(decoders["torch"], *sentence).tolist() for sentence in sentences]
    assert all(len(tokens) == 12 and max(tokens) < small.CODES for tokens in expected)
    for name, decoder in decoders.items():
        for _ in range(2):
            assert [runtimes.greedy(decoder, *sentence).tolist() for sentence in sentences] == expected, name


def test_every_decoder_s_logits_are_those_of_pytorch(decoders, given):
    """Tokens are given, for random networks repeat theirs."""

    def logits(decoder, tokens: tuple[int, ...]) -> np.ndarray:
        return np.stack([decoder.prefill(*given["tokens"]), *(decoder.step(token) for token in tokens)])

    scripts = (3, 31, 3), (4, 0, 7)
    expected = [logits(decoders["torch"], script) for script in scripts]
    assert (np.abs(expected[0] - expected[1]).max(1) > 0.01).tolist() == [False, True, True, True]
    for name, decoder in decoders.items():
        for script, theirs in zip(scripts, expected, strict=True):
            assert np.abs(logits(decoder, script) - theirs).max() < 5e-5, name


def test_bf16_rounds_all_but_what_decides(eager, checkpoint, given):
    rounded = runtimes.Eager(checkpoint, "BF16")
    for part in rounded.parts:
        found, expected = (x.run(part, *given[part]) for x in (rounded, eager))
        same = part in ("semantic", "style")
        assert np.array_equal(found, expected) == same and close(found, expected, 0.2), part
    assert rounded.decoder.prefill(*given["tokens"]).dtype == np.float32


def test_attention_is_one_node_with_its_cache_only_if_that_is_inside(ours, checkpoint):
    step, example, shapes, outputs = convert.language_step(runtimes.networks(checkpoint)["t2s"])
    outside = ov.Core().compile_model(runtimes.tracing.trace(step, example, shapes, outputs), "CPU", FP32_PROPERTIES)
    assert runtimes.fused_layers(outside) == 0
    assert runtimes.fused_layers(ours.decoder.language.get_compiled_model()) == LAYERS


@pytest.fixture(scope="module")
def folders(ir, tmp_path_factory) -> dict[str, Path]:
    made = {precision: tmp_path_factory.mktemp(precision) for precision in ("INT8", "INT4")}
    for precision, folder in made.items():
        convert.compress(ir, precision, 16, folder)
    return {"FP16": ir} | made


def test_rows_name_every_runtime_and_pass_the_schema(checkpoint, folders, onnx, vocoder, tmp_path, monkeypatch):
    def export(checkpoint, given, folder) -> None:
        shutil.copytree(onnx, folder, dirs_exist_ok=True)

    networks = []
    monkeypatch.setattr(runtimes, "export", export)  # once is enough
    monkeypatch.setattr(runtimes, "convert_vocoder", lambda checkpoint, path: vocoder)
    monkeypatch.setattr(bench.bench, "torch_precision", lambda: "BF16")
    monkeypatch.setattr(torch, "compile", lambda network, dynamic: networks.append(network) or network)
    rows = bench.time_all(checkpoint, folders, rounds=1, compiling=True, label="small")
    found, named = {}, bench.names()
    for row in rows:
        found.setdefault((row["runtime"], row["precision"]), set()).add(row["workload"])
    alone, decoding = ONCE | {"style"}, {bench.FIRST, bench.TOKENS}
    expected = {
        (bench.EAGER, "FP32"): alone | decoding | {bench.WHOLE},
        (bench.EAGER, "BF16"): alone - {"semantic", "style"} | decoding | {bench.WHOLE},
        (bench.COMPILED, "FP32"): {"synthesizer"},
        (bench.ONNX, "FP32"): ONCE | decoding,
        (bench.OURS, "FP32"): alone | decoding | {bench.WHOLE},
        (bench.OURS, "BF16"): alone - {"semantic", "style"} | decoding | {bench.WHOLE},
        (bench.OURS, "INT8"): {"hubert", "bert", bench.WHOLE} | decoding,
        (bench.OURS, "INT4"): {bench.WHOLE} | decoding,
        (bench.EXTERNAL_CACHE, "FP32"): {bench.TOKENS},
        (bench.NO_CACHE, "FP32"): {bench.TOKENS},
    }
    assert found == {key: {named[work] for work in works} for key, works in expected.items()}
    assert len(rows) == sum(map(len, expected.values())) and isinstance(networks[0], SynthesizerTrn)
    times = {(row["runtime"], row["precision"], row["workload"]): row["median_ms"] for row in rows}
    for row in rows:
        alone = row["runtime"] in (bench.EAGER, bench.OURS)
        assert (row["model_mb"] is not None) == alone and row["label"] == "small"
        peers = ((bench.EAGER, "FP32"), (bench.EAGER, "BF16"), (bench.COMPILED, "FP32"))
        fastest = min(times.get((*peer, row["workload"]), np.inf) for peer in peers)
        if alone:  # the others are timed in a second group, with other timings of PyTorch
            assert row["ratio_to_torch"] == pytest.approx(fastest / row["median_ms"])
        assert row["ratio_to_torch"] > 0 and row["peak_rss_mb"] is None
    amounts = {row["workload"]: row["throughput"] * row["median_ms"] / 1e3 for row in rows}
    of = {bench.FIRST: 1, bench.TOKENS: 12, "synthesizer": 24, "vocoder": 24}
    assert amounts == pytest.approx({name: of.get(work, 12 / 25) for work, name in named.items()})
    path = report.save("gpt_sovits", model="tiny", device="CPU", parity=[], quality=[], speed=rows, folder=tmp_path)
    assert len(report.load(path)["speed"]) == len(rows)


def test_ours_and_the_other_peers_are_timed_apart_and_both_with_all_of_pytorch(checkpoint, folders, monkeypatch):
    groups = []

    def compare(settings, timed, **options):
        groups.append([setting.runtime for setting in settings])
        return [{"runtime": runtime} for runtime in groups[-1]]

    monkeypatch.setattr(bench.bench, "compare", compare)
    monkeypatch.setattr(bench.bench, "torch_precision", lambda: "BF16")
    monkeypatch.setattr(runtimes, "convert_vocoder", lambda checkpoint, path: path)
    rows = bench.time_all(checkpoint, folders, rounds=1, compiling=True)
    pytorch, others = [bench.EAGER, bench.EAGER, bench.COMPILED], [bench.ONNX, bench.EXTERNAL_CACHE, bench.NO_CACHE]
    assert [sorted(group) for group in groups] == [sorted([*pytorch, *[bench.OURS] * 4]), sorted([*pytorch, *others])]
    assert sorted(row["runtime"] for row in rows) == sorted([*pytorch, *[bench.OURS] * 4, *others])
    groups.clear()
    bench.time_all(checkpoint, folders, rounds=1, together=False)
    assert len(groups) == 1 and len(groups[0]) == 9


def test_inputs_come_back_from_their_file(given, tmp_path):
    found = runtimes.load_inputs(runtimes.save_inputs(given, tmp_path / "inputs.npz"))
    assert list(found) == list(given)
    for part, arrays in given.items():
        for ours, theirs in zip(found[part], arrays, strict=True):
            assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs), part


@pytest.mark.parametrize(
    ("runtime", "networks"), [(bench.OURS, []), (bench.NO_CACHE, []), (bench.EXTERNAL_CACHE, ["t2s"])]
)
def test_a_process_loads_what_it_times(runtime, networks, checkpoint, ir, vocoder, given, tmp_path, monkeypatch):
    """At the released size PyTorch's networks take 2 GB, and ten processes live at once."""
    inputs, loaded = runtimes.save_inputs(given, tmp_path / "inputs.npz"), []

    def noted(part, load):
        return lambda path: loaded.append(part) or load(path)

    monkeypatch.setattr(convert, "LOAD", {part: noted(part, load) for part, load in convert.LOAD.items()})
    works = bench.start(runtime, "FP32", ir, checkpoint, ir, vocoder, inputs)
    assert loaded == networks
    assert works[bench.names()[bench.TOKENS]]().tolist() == given["synthesizer"][0][0].tolist()


def test_rows_have_the_memory_of_who_says_it_alone(checkpoint, folders, ours, monkeypatch):
    peaks = {}

    def peak(once, runtime, path, precision, sentence) -> float:
        if runtime == bench.OURS:
            once(runtime, path, precision, sentence)
        return peaks.setdefault((runtime, precision), 100.0 + len(peaks))

    monkeypatch.setattr(bench, "openvino", lambda path, precision: {folders["FP16"]: ours}[path])
    monkeypatch.setattr(bench.bench, "torch_precision", lambda: "FP32")
    monkeypatch.setattr(bench.bench, "peak_rss_mb", peak)
    kinds = (bench.EAGER, bench.OURS, bench.ONNX)
    monkeypatch.setattr(bench, "time_all", lambda *given: [{"runtime": x, "precision": "FP32"} for x in kinds])
    rows = bench.measured(checkpoint, {"FP16": folders["FP16"]}, rounds=1)
    assert [row["peak_rss_mb"] for row in rows] == [100, 101, None]


def test_without_bf16_there_is_none(checkpoint, folders, monkeypatch):
    monkeypatch.setattr(bench.bench, "torch_precision", lambda: "FP32")
    kinds = {(bench.EAGER, "FP32"): checkpoint, (bench.OURS, "FP32"): folders["FP16"]}
    assert bench.weight_folders(checkpoint, folders) == kinds | {(bench.OURS, x): folders[x] for x in ("INT8", "INT4")}


def row(precision: str, work: str, median_ms: float, amount: float = 1) -> dict:
    timing = bench.bench.Timing.of([median_ms])
    return bench.bench.row(bench.OURS, precision, bench.names()[work], timing, amount=amount)


def test_limits_are_shares_of_what_was_measured_in_the_same_run(ir, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.bench, "read_bandwidth_gbs", lambda: 20.0)
    monkeypatch.setattr(bench.bench, "matmul_gflops", lambda dtype: {"f32": 100.0, "bf16": 400.0}[dtype])
    sizes = {ir: 50.0, tmp_path: 20.0}  # MB
    monkeypatch.setattr(bench.bench, "size_mb", lambda path: sizes[path.parent])
    monkeypatch.setattr(bench, "gflop", lambda network, sentence: {"synthesizer": 2.0, "vocoder": 1.0})
    rows = []
    for precision, first, tokens in (("FP32", 100, 650), ("BF16", 100, 375), ("INT4", 100, 210)):
        rows += [row(precision, bench.FIRST, first), row(precision, bench.TOKENS, tokens)]
        rows.append(row(precision, bench.WHOLE, 800, amount=4))
    rows += [row("FP32", "synthesizer", 25), row("BF16", "synthesizer", 10), row("BF16", "vocoder", 10)]
    notes = bench.limits(rows, {"FP16": ir, "INT4": tmp_path}, small.synthesizer())
    assert notes == {
        "read bandwidth, GB/s": 20,
        "operations of the synthesizer for the sentence, GFLOP": 2,
        "operations of the vocoder for the sentence, GFLOP": 1,
        **{f"tokens/s after the first at {x}": y for x, y in (("FP32", 20), ("BF16", 40), ("INT4", 100))},
        **{
            f"share of the bandwidth that they take at {x}": y
            for x, y in (("FP32", 0.05), ("BF16", 0.1), ("INT4", 0.1))
        },
        **{f"real-time factor of the whole at {x}": 0.2 for x in ("FP32", "BF16", "INT4")},
        **{"large matrix product at FP32, GFLOP/s": 100, "share of it that the synthesizer reaches at FP32": 0.8},
        **{"large matrix product at BF16, GFLOP/s": 400, "share of it that the synthesizer reaches at BF16": 0.5},
        "share of it that the vocoder reaches at BF16": 0.25,
    }


@torch.inference_mode()
def test_operations_are_those_of_the_layers(ir):
    """The vocoder's are those that are counted by hand, and the synthesizer has some more."""
    network, counted = small.synthesizer(), 0

    def count(layer, inputs, output) -> None:
        nonlocal counted
        places = inputs[0] if isinstance(layer, torch.nn.ConvTranspose1d) else output
        counted += 2 * layer.weight.numel() * places.shape[2]

    sentence = runtimes.sentence(ir)
    hooks = [x.register_forward_hook(count) for x in network.dec.modules() if hasattr(x, "kernel_size")]
    network.dec(torch.from_numpy(sentence.noise), torch.zeros(1, network.dec.cond.in_channels, 1))
    for hook in hooks:
        hook.remove()
    found = bench.gflop(network, sentence)
    assert found["vocoder"] == pytest.approx(counted / 1e9) and 1 < found["synthesizer"] * 1e9 / counted < 2


def test_the_stages_are_those_of_the_whole_sentence(monkeypatch):
    whole, parts = bench.stages()
    took = {"hubert": 40, "semantic": 1, "style": 4, "bert": 15, bench.TOKENS: 100, "synthesizer": 40}
    rows = [row("FP32", work, ms) for work, ms in took.items()] + [row("FP32", bench.WHOLE, 200)]
    rows += [row("INT8", work, 20) for work in ("hubert", "bert", bench.TOKENS)] + [row("INT8", bench.WHOLE, 100)]
    shares = bench.bench.stage_shares(rows, whole, parts, "tiny")
    assert {name.rpartition(" ")[2]: share for name, share in shares.items()} == {"FP32": 1.0, "INT8": 1.05}


def test_the_notebook_measures_the_tiny_model(checkpoint, ir, monkeypatch):
    monkeypatch.setattr(bench.weights, "resolve", lambda name: {"gpt_sovits_tiny": checkpoint}[name])
    monkeypatch.setattr(bench.convert, "prepare", lambda model, precision: ir / model / precision)
    monkeypatch.setattr(bench, "time_all", lambda *given, together: (*given, together))
    tiny = {precision: ir / "tiny" / precision for precision in ("FP16", "INT8")}
    assert bench.live.__wrapped__(("FP16", "INT8"), rounds=2) == (checkpoint, tiny, 2, False)


def test_all_precisions_are_converted(checkpoint, tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(bench.preflight, "in_child", lambda *given, what: done.append(given))
    folders = bench.converted(checkpoint, tmp_path, 32)
    assert list(folders) == ["FP16", "INT8", "INT4"] and len(set(folders.values())) == 3
    assert done[0] == (convert.to_ir, checkpoint, folders["FP16"])
    assert done[1:] == [(convert.compress, folders["FP16"], x, 32, folders[x]) for x in ("INT8", "INT4")]
