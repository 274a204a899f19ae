"""A GGUF file becomes a transformers folder with the same numbers and the file's own tokenizer, or a clear error."""

import unicodedata

import gguf as gguf_package
import numpy as np
import openvino as ov
import openvino_genai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.utils.models import small_gguf as small
from tests.utils.models.small_gguf import TEXTS
from utils import preflight
from utils.models import gguf, llm

IDS = torch.tensor([[5, 90, 17, 260, 33, 8, 301, 44, 12, 7, 99, 150]]).repeat(1, 3)  # longer than gemma2's window
VOCABULARY = 420  # tokens
TEXT = "Alice was beginning 天气很好 12345  👩\n"
GENAI = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


@pytest.fixture(scope="module")
def qwen2():
    """A byte-level tokenizer that splits as Qwen2's."""
    return small.byte_level("qwen2", VOCABULARY)


@pytest.fixture(scope="module")
def vocabulary(qwen2):
    """A function that adds the tokenizer's keys to a GGUFWriter."""
    return small.byte_level_vocabulary(qwen2, "qwen2")


def convert(folder, architecture, made, vocabulary, quantization="F32", extra=lambda writer: None):
    """The network as read from a file, in float32, and the values of the file's tensors."""
    values = small.write(folder / "model.gguf", architecture, made, vocabulary, quantization, extra)
    gguf.to_transformers(folder / "model.gguf", folder / "converted")
    return AutoModelForCausalLM.from_pretrained(folder / "converted", dtype=torch.float32).eval(), values


def logits(network, ids=IDS):
    with torch.inference_mode():
        return network(ids).logits.numpy()


def assert_same_logits(found, expected):
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("architecture", list(gguf.ARCHITECTURES))
def test_each_architecture_gives_the_logits_of_the_original_network(architecture, vocabulary, tmp_path):
    made = small.network(architecture, VOCABULARY)
    read, _ = convert(tmp_path, architecture, made, vocabulary)
    assert_same_logits(logits(read), logits(made))
    assert read.config.eos_token_id == read.generation_config.eos_token_id == 2


def test_a_file_of_the_name_mistral_is_a_llama(vocabulary, tmp_path):
    made = small.network("llama", VOCABULARY)
    read, _ = convert(tmp_path, "llama", made, vocabulary, extra=lambda writer: writer.add_name("mistral"))
    assert read.config.model_type == "llama"
    assert_same_logits(logits(read), logits(made))


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K_M"])
def test_each_quantization_gives_the_values_of_its_blocks(quantization, vocabulary, tmp_path):
    made = small.network("llama", VOCABULARY, width=256, tie_word_embeddings=quantization != "Q8_0")
    read, values = convert(tmp_path, "llama", made, vocabulary, quantization)
    found = small.tensors("llama", read)
    assert found.keys() == values.keys()
    for name, weight in values.items():
        np.testing.assert_array_equal(found[name], np.float32(np.float16(weight)), err_msg=name)
        assert np.abs(weight - small.tensors("llama", made)[name]).max() < 0.2, name  # q4: a step of up to 0.1


def test_the_blocks_written_by_the_tests_are_those_that_gguf_reads():
    weight = np.random.default_rng(0).standard_normal((3, 512), np.float32)
    for kind, most in ((gguf_package.GGMLQuantizationType.Q4_K, 0.3), (gguf_package.GGMLQuantizationType.Q6_K, 0.1)):
        packed, values = small.PACKED[kind](weight)
        assert np.abs(values - weight).max() < most
        np.testing.assert_array_equal(gguf_package.dequantize(packed, kind), values)


@pytest.mark.parametrize("bias", ["attention_bias", "mlp_bias"])
def test_biases_that_llama_has_only_sometimes_are_read(bias, vocabulary, tmp_path):
    made = small.network("llama", VOCABULARY, **{bias: True})
    read, _ = convert(tmp_path, "llama", made, vocabulary)
    assert getattr(read.config, bias)
    assert_same_logits(logits(read), logits(made))


# --- Rotary embeddings -------------------------------------------------------------------------------------------

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA31 = {"rope_type": "llama3", "factor": 8.0} | gguf.LLAMA3_ROPE


def add_yarn(writer):
    writer.add_rope_scaling_type(gguf_package.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(64)


def add_linear(writer):
    writer.add_rope_scaling_type(gguf_package.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


def llama31_factors(size=16, theta=10_000.0, factor=8.0):
    """The factors that llama.cpp's converter writes for Llama 3.1: 1 for short wavelengths, `factor` for long ones."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, size, 2) / size)
    smooth = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


@pytest.mark.parametrize(
    ("parameters", "extra"),
    [
        ({"rope_type": "linear", "factor": 4.0}, add_linear),
        ({"rope_type": "linear", "factor": 4.0}, lambda writer: writer.add_float32("llama.rope.scale_linear", 4.0)),
        (YARN, add_yarn),
        (LLAMA31, lambda writer: writer.add_tensor("rope_freqs.weight", llama31_factors(theta=500_000.0))),
        ({"rope_type": "default"}, lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32))),
    ],
    ids=["linear", "linear, old key", "yarn", "llama 3.1", "none"],
)
def test_scaled_rotary_embeddings_are_restored(parameters, extra, vocabulary, tmp_path):
    made = small.network("llama", VOCABULARY, rope_parameters={"rope_theta": 500_000.0} | parameters)
    read, _ = convert(tmp_path, "llama", made, vocabulary, extra=extra)
    assert read.config.rope_parameters == made.config.rope_parameters
    ids = torch.randint(0, VOCABULARY, (1, 200), generator=torch.Generator().manual_seed(1))
    assert_same_logits(logits(read, ids), logits(made, ids))


def test_the_scaling_of_gemma3_is_that_of_layers_without_a_window(vocabulary, tmp_path):
    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    made = small.network("gemma3", VOCABULARY, rope_parameters=parameters)
    read, _ = convert(tmp_path, "gemma3", made, vocabulary, extra=add_linear)
    assert_same_logits(logits(read), logits(made))


@pytest.mark.parametrize(("architecture", "extra"), [
    ("phi3", add_yarn),
    ("gemma3", lambda writer: writer.add_tensor("rope_freqs.weight", llama31_factors(size=32))),
])  # fmt: skip
def test_a_scaling_that_an_architecture_does_not_have_is_an_error(architecture, extra, vocabulary, tmp_path):
    with pytest.raises(
        ValueError, match=f"model.gguf: the scaling of the rotary embedding of {architecture}.* not known"
    ):
        convert(tmp_path, architecture, small.network(architecture, VOCABULARY), vocabulary, extra=extra)


def test_other_factors_of_the_rotary_embedding_are_an_error(vocabulary, tmp_path):
    made = small.network("llama", VOCABULARY)
    with pytest.raises(ValueError, match=r"model.gguf: rope_freqs.weight differs from Llama 3.1's scaling"):
        convert(
            tmp_path, "llama", made, vocabulary,
            extra=lambda writer: writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, 8, dtype=np.float32)),
        )  # fmt: skip


# --- Through OpenVINO -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["qwen2", "llama with SentencePiece", "llama 3.1"])
def test_the_exported_model_writes_the_tokens_of_pytorch(kind, vocabulary, tmp_path, monkeypatch):
    """As a notebook does it with CHECKPOINT=model.gguf: `transformers_folder`, then `ir_folder`.

    Qwen2 is converted in processes of its own, as a notebook's models are; the others in this one, which is faster.
    """
    monkeypatch.setenv("MODELS_DIR", str(tmp_path))
    if kind != "qwen2":
        monkeypatch.setattr(preflight, "in_child", lambda step, *arguments, **options: step(*arguments))
    architecture, settings, extra, size = kind.split()[0], {}, lambda writer: None, VOCABULARY
    if kind == "llama with SentencePiece":
        pieces = small.sentencepiece()
        vocabulary, size = small.sentencepiece_vocabulary(*pieces), len(pieces[0])
    if kind == "llama 3.1":
        settings = {"rope_parameters": {"rope_theta": 500_000.0} | LLAMA31}
        vocabulary = small.byte_level_vocabulary(small.byte_level("llama-bpe", VOCABULARY), "llama-bpe")
        extra = lambda writer: writer.add_tensor("rope_freqs.weight", llama31_factors(theta=500_000.0))  # noqa: E731
    file = tmp_path / "model.GGUF"
    small.write(file, architecture, small.network(architecture, size, **settings), vocabulary, "Q8_0", extra)
    folder = llm.transformers_folder("small", file)
    ir = llm.ir_folder("small", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    expected = network.generate(ids, do_sample=False, max_new_tokens=16, min_new_tokens=16, eos_token_id=None)
    session = llm.Session(ir / llm.MODEL_XML, **llm.FP32_PROPERTIES)
    assert session.generate(ids.numpy(), 16).tolist() == expected[:, ids.shape[1] :].tolist()
    in_graph = openvino_genai.Tokenizer(str(ir))
    assert in_graph.encode(TEXT).input_ids.data.tolist() == ids.tolist()
    assert in_graph.decode(ids[0].tolist()) == TEXT


def test_an_architecture_that_cannot_be_exported_is_an_error(vocabulary, tmp_path):
    convert(tmp_path, "lfm2", small.network("lfm2", VOCABULARY), vocabulary)
    with pytest.raises(
        ValueError, match="converted: optimum-intel does not export the architecture 'lfm2' .*Take another one"
    ):
        llm.to_ir(tmp_path / "converted", tmp_path / "ir")


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("quantization", ["F16", "Q8_0", "Q4_0", "Q4_1", "Q4_K_M"])
def test_openvino_genai_writes_the_same_tokens_from_the_file(architecture, quantization, vocabulary, tmp_path):
    """It rounds the minimum of a 4-bit block to a whole number of steps, so the weights are such that this is exact."""
    made = small.network(architecture, VOCABULARY, width=256)
    small.put_on_grid(made)
    read, _ = convert(tmp_path, architecture, made, vocabulary, quantization)
    pipeline = openvino_genai.LLMPipeline(str(tmp_path / "model.gguf"), "CPU", **GENAI)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "converted")
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    assert pipeline.get_tokenizer().encode(TEXT).input_ids.data.tolist() == ids.tolist()
    expected = read.generate(ids, do_sample=False, max_new_tokens=16, min_new_tokens=16, eos_token_id=None)
    found = pipeline.generate(ov.Tensor(ids.numpy()), max_new_tokens=16, ignore_eos=True, do_sample=False)
    assert found.tokens == expected[:, ids.shape[1] :].tolist()


@pytest.mark.parametrize("pre", ["qwen2", "smollm", "default"])
def test_openvino_genai_splits_text_into_the_same_tokens(pre, tmp_path):
    """Of a vocabulary with another name in tokenizer.ggml.pre it takes the default, and does not read SentencePiece."""
    trained = small.byte_level("gpt-2" if pre == "default" else pre)
    file, keys = tmp_path / "model.gguf", small.byte_level_vocabulary(trained, pre)
    small.write(file, "llama", small.network("llama", VOCABULARY), keys)
    gguf.to_transformers(file, tmp_path / "converted")
    built, theirs = AutoTokenizer.from_pretrained(tmp_path / "converted"), openvino_genai.Tokenizer(str(file))
    for text in TEXTS:
        if pre != "qwen2" or unicodedata.is_normalized("NFC", text):  # GenAI does not compose characters, as Qwen2 does
            assert theirs.encode(text).input_ids.data.tolist() == [built(text)["input_ids"]], text


# --- What cannot be read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("split.count", 3, r"is one of 3 parts \(split.count\).*llama-gguf-split --merge"),
        ("general.type", "adapter", "general.type is 'adapter', not a model"),
        ("general.architecture", "bert", "general.architecture is 'bert', an encoder"),
        ("general.architecture", "rwkv7", "general.architecture is 'rwkv7'. Known are: llama, qwen2"),
        (
            "llama.attention.sliding_window",
            16,
            "llama.attention.sliding_window is 16, which transformers does not read",
        ),
        ("llama.logit_scale", 0.5, "llama.logit_scale is 0.5"),
        ("llama.rope.dimension_count", 8, "rope.dimension_count is 8 of 16"),
        ("llama.attention.value_length", 32, "attention.value_length differ from 16"),
        ("llama.rope.scaling.type", "longrope", "rope.scaling.type is 'longrope'. Known are: none, linear, yarn"),
    ],
)
def test_a_key_that_transformers_would_drop_is_an_error(key, value, message, vocabulary, tmp_path, monkeypatch):
    small.write(tmp_path / "model.gguf", "llama", small.network("llama", VOCABULARY), vocabulary)
    opened = gguf.open_gguf(tmp_path / "model.gguf")

    class Field:
        def contents(self):
            return value

    opened.fields[key] = Field()
    monkeypatch.setattr(gguf, "open_gguf", lambda file: opened)
    with pytest.raises(ValueError, match=f"model.gguf.*{message}"):
        gguf.to_transformers(tmp_path / "model.gguf", tmp_path / "converted")
    assert not (tmp_path / "converted").exists()


def test_a_sliding_window_as_long_as_the_context_changes_nothing(vocabulary, tmp_path):
    made = small.network("llama", VOCABULARY)
    read, _ = convert(tmp_path, "llama", made, vocabulary, extra=lambda writer: writer.add_sliding_window(256))
    assert_same_logits(logits(read), logits(made))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blk.0.attn_q.bias", "transformers does not read blk.0.attn_q.bias of 'llama'"),
        ("blk.1.ffn_gate_exps.weight", "transformers does not read blk.1.ffn_gate_exps.weight"),
    ],
)
def test_a_tensor_that_transformers_would_drop_is_an_error(name, message, vocabulary, tmp_path):
    made = small.network("llama", VOCABULARY)
    with pytest.raises(ValueError, match=f"model.gguf.*{message}"):
        convert(
            tmp_path, "llama", made, vocabulary,
            extra=lambda writer: writer.add_tensor(name, np.zeros((64, 64), np.float32)),
        )  # fmt: skip


def test_weights_that_are_missing_too_large_or_of_another_vocabulary_are_an_error(vocabulary, tmp_path, monkeypatch):
    made = small.network("llama", VOCABULARY)
    with monkeypatch.context() as patch:
        whole = small.tensors("llama", made)
        del whole["blk.1.ffn_up.weight"]
        patch.setattr(small, "tensors", lambda *_: whole)
        with pytest.raises(ValueError, match="model.gguf has no weights for model.layers.1.mlp.up_proj.weight"):
            convert(tmp_path, "llama", made, vocabulary)
        whole["blk.1.ffn_up.weight"] = np.zeros((100, 64), np.float32)
        with pytest.raises(ValueError, match=r"layers.1.mlp.up_proj.weight has the shape \[100, 64\], .* \[128, 64\]"):
            convert(tmp_path, "llama", made, vocabulary)
    with torch.no_grad():
        made.model.layers[0].mlp.up_proj.weight[0, 0] = 1e6
    with pytest.raises(ValueError, match="model.layers.0.mlp.up_proj.weight has numbers that FP16 cannot hold"):
        convert(tmp_path, "llama", made, vocabulary)
    with pytest.raises(ValueError, match="token_embd.weight has 424 rows, but tokenizer.ggml.tokens has 420"):
        convert(tmp_path, "llama", small.network("llama", 424), vocabulary)


def test_a_type_without_dequantization_is_an_error(vocabulary, tmp_path, monkeypatch):
    def refuse(data, kind):
        raise NotImplementedError

    made = small.network("llama", VOCABULARY)
    small.write(tmp_path / "model.gguf", "llama", made, vocabulary)
    monkeypatch.setattr(gguf_package, "dequantize", refuse)
    with pytest.raises(ValueError, match="has the type F32, which cannot be dequantized. Take a file of another type"):
        gguf.to_transformers(tmp_path / "model.gguf", tmp_path / "converted")


def test_a_damaged_file_is_an_error(vocabulary, tmp_path):
    file = tmp_path / "model.gguf"
    small.write(file, "llama", small.network("llama", VOCABULARY), vocabulary)
    whole = file.read_bytes()
    for length in (3, 2000, len(whole) // 2, len(whole) - 100):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="model.gguf cannot be read as GGUF .*Download or convert it again"):
            gguf.to_transformers(file, tmp_path / "converted")
    file.write_bytes(b"not GGUF at all")
    with pytest.raises(ValueError, match="cannot be read as GGUF"):
        gguf.to_transformers(file, tmp_path / "converted")
