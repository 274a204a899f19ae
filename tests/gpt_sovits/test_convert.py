"""The converted sub-models compute what PyTorch does, at lengths they were not traced with, and the folder is whole."""

import json
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch

from notebooks.gpt_sovits import convert
from notebooks.gpt_sovits.network import checkpoint as files
from notebooks.gpt_sovits.network.t2s import prefix_mask
from notebooks.gpt_sovits.pipeline.constants import SPEAKER_SIZE
from tests.gpt_sovits import small
from tests.gpt_sovits.small import CODES, PHONES, WIDTH, drawn, ids
from utils import compare
from utils.models import llm, portable

TOLERANCE = 2e-5


def request(model: ov.Model | Path) -> ov.InferRequest:
    return ov.Core().compile_model(model, "CPU", llm.FP32_PROPERTIES).create_infer_request()


def run(model: ov.InferRequest, **inputs) -> np.ndarray:
    model.infer({name: np.asarray(x) for name, x in inputs.items()})
    return model.get_output_tensor(0).data.copy()


def agrees(stage: str, ours, reference, tolerance: float = TOLERANCE) -> None:
    row = compare.parity(stage, ours, reference, tolerance)
    compare.check([row])
    assert row["cosine"] > 0.999999


@torch.inference_mode()
@pytest.mark.parametrize("samples", [1600, 4321])
def test_hubert_hears_as_in_pytorch(ir, checkpoint, samples):
    wav = 0.1 * drawn(1, samples)
    expected = files.load_hubert(checkpoint / "hubert")(wav).last_hidden_state
    agrees("HuBERT", run(request(ir / convert.xml("hubert")), wav=wav), expected)


@torch.inference_mode()
def test_bert_s_features_are_those_before_its_last_two_layers(ir, tmp_path):
    """Of the network that was stored, all of whose layers transformers runs."""
    read = small.bert()
    for tensor in read.state_dict().values():
        tensor.copy_(tensor.half())
    for words in (ids(9, 50), ids(17, 50, seed=1)):
        expected = read(words, output_hidden_states=True).hidden_states[-3]
        agrees("BERT", run(request(ir / convert.xml("bert")), input_ids=words), expected)


@torch.inference_mode()
@pytest.mark.parametrize("frames", [2, 9, 24])
def test_the_tokens_of_a_reference_are_those_of_pytorch(ir, checkpoint, frames):
    states = drawn(1, frames, WIDTH)
    codes = run(request(ir / convert.xml("semantic")), last_hidden_state=states)
    expected = files.load_sovits(checkpoint / "sovits").encode(states.transpose(1, 2))
    assert codes.shape == (1, frames // 2) and codes.tolist() == expected.tolist()


@torch.inference_mode()
@pytest.mark.parametrize("samples", [100, 617])
def test_the_style_is_that_of_pytorch(ir, checkpoint, samples):
    network, wav = files.load_sovits(checkpoint / "sovits"), 0.5 * drawn(1, samples)
    agrees("style", run(request(ir / convert.xml("style")), wav=wav), network.style(network.spectrogram(wav)))


def spoken(network, tokens: int = 6, phones: int = 5, frames: int = 12) -> dict[str, torch.Tensor]:
    """Inputs of the synthesizer."""
    return {
        "codes": ids(tokens, CODES),
        "phones": ids(phones, PHONES),
        "ge": drawn(1, network.dec.cond.in_channels, 1),
        "noise": drawn(1, network.dec.conv_pre.in_channels, frames),
    }


@torch.inference_mode()
@pytest.mark.parametrize("sizes", [(6, 5, 12), (1, 1, 2), (9, 14, 15)], ids=["plain", "shortest", "faster"])
def test_the_sound_is_that_of_pytorch(ir, checkpoint, sizes):
    network = files.load_sovits(checkpoint / "sovits")
    inputs = spoken(network, *sizes)
    sound = run(request(ir / convert.xml("synthesizer")), **inputs)
    assert sound.shape == (1, 1, 20 * sizes[2]) and sound.std() > 0.01
    agrees("synthesizer", sound, network(*inputs.values()))


@torch.inference_mode()
def test_v2pro_is_told_the_speaker():
    network = small.synthesizer(version="v2Pro", gin_channels=28)
    wav, speaker = 0.5 * drawn(1, 200), drawn(1, SPEAKER_SIZE)
    ge = network.style(network.spectrogram(wav), speaker)
    agrees("style", run(request(convert.convert_style(network)), wav=wav, speaker=speaker), ge)
    assert (ge - network.style(network.spectrogram(wav))).abs().max() > 0.1
    inputs = spoken(network) | {"ge": ge}
    sound = run(request(convert.convert_synthesizer(network)), **inputs)
    agrees("synthesizer", sound, network(*inputs.values()))


@torch.inference_mode()
def test_phones_and_tokens_are_embedded_as_in_pytorch(ir, checkpoint):
    network = files.load_t2s(checkpoint / "t2s")
    phones, bert, places = ids(7, PHONES), drawn(1, WIDTH, 7), torch.tensor([[0, 5, 1499]])
    found = run(request(ir / convert.xml("text_embeddings")), phones=phones, bert=bert)
    agrees("text embeddings", found, network.embed_text(phones, bert))
    found = run(request(ir / convert.xml("audio_embeddings")), tokens=ids(3, CODES), position_ids=places)
    agrees("audio embeddings", found, network.embed_audio(ids(3, CODES), places))


def language(model: ov.InferRequest, rows: torch.Tensor, text: int, past: int = 0, beams=(0, 1), mask=None):
    seen = np.ones((len(rows), past + rows.shape[1]), np.int64) if mask is None else mask
    return run(model, inputs_embeds=rows, attention_mask=seen, text_length=np.array(text), beam_idx=np.int32(beams))


@torch.inference_mode()
def test_the_language_model_reads_row_by_row_as_pytorch_does_at_once(ir, checkpoint):
    network, rows = files.load_t2s(checkpoint / "t2s"), drawn(2, 12, 32)

    def whole(rows: torch.Tensor) -> torch.Tensor:
        mask = prefix_mask(rows.shape[1], rows.shape[1], 5)
        return network.ar_predict_layer(network.run(rows, mask, network.empty_cache(len(rows)))[0])

    expected, model = whole(rows), request(ir / convert.xml("language"))
    agrees("prefill", language(model, rows[:, :7], 5), expected[:, 6])
    agrees("two more", language(model, rows[:, 7:9], 0, 7), expected[:, 8])
    agrees("one more", language(model, rows[:, 9:10], 0, 9), expected[:, 9])
    crossed = whole(torch.cat([rows[[1, 0], :10], rows[:, 10:]], 1))
    agrees("beams exchanged", language(model, rows[:, 10:11], 0, 10, beams=(1, 0)), crossed[:, 10])
    model.reset_state()
    agrees("another sentence", language(model, rows[:1, 2:9], 5, beams=(0,)), whole(rows[:1, 2:9])[:, -1])


@torch.inference_mode()
def test_rows_that_the_mask_hides_are_not_seen(ir):
    rows, model = drawn(2, 9, 32), request(ir / convert.xml("language"))
    mask = np.ones((2, 9), np.int64)
    mask[1, 2:4] = 0  # phones of the second are two less
    found = language(model, rows, 4, mask=mask)
    model.reset_state()
    alone = language(model, torch.cat([rows[1:, :2], rows[1:, 4:]], 1), 2, beams=(0,))
    agrees("hidden", found[1:], alone)


def test_attention_reads_and_writes_its_cache_itself(ir):
    def kind(node) -> str:
        return node.get_rt_info()["layerType"].astype(str)

    graph = ov.Core().compile_model(ir / convert.xml("language"), "CPU").get_runtime_model()
    nodes = [node for node in graph.get_ops() if kind(node) == "ScaledDotProductAttention"]
    assert len(nodes) == small.T2S["model"]["n_layer"]
    for node in nodes:
        read = [kind(node.input_value(i).get_node()) for i in range(node.get_input_size())]
        written = [kind(port.get_node()) for output in node.outputs() for port in output.get_target_inputs()]
        assert read.count("MemoryInput") == written.count("MemoryOutput") == 2


def test_the_folder_holds_what_its_readers_need(ir):
    models = {convert.xml(part) for part in convert.CONVERT}
    models |= {name.replace(".xml", ".bin") for name in models}
    assert {path.name for path in ir.iterdir()} == models | {"config.json", "tokenizer.json"}
    assert json.loads((ir / "config.json").read_text(encoding="utf-8")) == {
        **{"version": "v2", "sample_rate": 1000, "samples_per_frame": 20, "channels": 12, "style": 20},
        **{"codes": CODES, "phones": PHONES, "positions": 4000, "bert": WIDTH, "characters": 62},
    }


def constants(path: Path, least: int) -> set[str]:
    """The types of the large constants of an IR."""
    found = (x for x in ov.Core().read_model(path).get_ops() if x.get_type_name() == "Constant")
    return {x.get_element_type().get_type_name() for x in found if np.prod(x.get_output_shape(0)) > least}


@torch.inference_mode()
@pytest.mark.parametrize(("precision", "kind"), [("INT8", {"u8"}), ("INT4", {"u4", "u8"})])
def test_compressed_weights_are_integers_and_stay_close(ir, tmp_path, precision, kind):
    convert.compress(ir, precision, 16, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in ir.iterdir()}
    assert constants(tmp_path / convert.xml("language"), 1000) == kind
    assert constants(tmp_path / convert.xml("bert"), 1000) == {"u8"}
    assert constants(tmp_path / convert.xml("synthesizer"), 1000) == {"f16"}
    rows = drawn(1, 9, 32)
    one, other = (language(request(folder / convert.xml("language")), rows, 5, beams=(0,)) for folder in (ir, tmp_path))
    row = compare.parity("language", other, one, 100)
    assert 0 < row["max_abs_diff"] and row["cosine"] > (0.999 if precision == "INT8" else 0.9)


def test_without_bert_and_in_half_precision(checkpoint, tmp_path):
    source = tmp_path / "source"
    for part in ("t2s", "sovits", "hubert"):
        (source / part).mkdir(parents=True)
        for file in (checkpoint / part).iterdir():
            (source / part / file.name).write_bytes(file.read_bytes())
    convert.to_ir(source, tmp_path / "ir")
    assert not (tmp_path / "ir" / convert.xml("bert")).exists()
    for part, kinds in (("language", {"f16"}), ("hubert", {"f16", "f32"}), ("synthesizer", {"f16"})):
        assert constants(tmp_path / "ir" / convert.xml(part), 300) == kinds, part  # FP32: what tracing derived


def test_a_bert_without_its_tokens_is_told(tmp_path):
    source = small.checkpoint(tmp_path / "source")
    (source / "bert" / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"tokenizer\.json is missing: BERT's tokens are in it"):
        convert.to_ir(source, tmp_path / "ir")


def test_parts_that_do_not_belong_together_are_told(tmp_path):
    source = small.checkpoint(tmp_path / "source")
    files.save(source / "sovits", small.synthesizer(symbols=PHONES + 1))
    with pytest.raises(ValueError, match="knows 40 phones and 32 tokens, but the synthesizer 41 and 32"):
        convert.to_ir(source, tmp_path / "ir")


def test_wide_groups_compute_the_same_in_every_precision(checkpoint):
    network, wav = files.load_hubert(checkpoint / "hubert"), drawn(1, 8000)
    with torch.inference_mode():
        expected = network(wav).last_hidden_state
        convert.widen_groups(network)
        conv = network.encoder.pos_conv_embed.conv
        assert conv.in_channels // conv.groups >= convert.MIN_GROUP_CHANNELS
        assert torch.allclose(network(wav).last_hidden_state, expected, atol=1e-5)
        rounded = network.bfloat16()(wav.bfloat16()).last_hidden_state.float()
    assert (rounded - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.parametrize("part", convert.CONVERT)
def test_no_operation_is_computed_wrongly_on_arm(ir, part):
    assert portable.wrong_on_arm(ov.Core().read_model(ir / convert.xml(part))) == []
