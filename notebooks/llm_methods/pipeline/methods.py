"""Every method of this guide as data: its real call, how it works in one sentence, and what it needs.

The call of a method is the text that runs. Of weights it returns the compressed model (`compress`); of caches and
activations it is properties of the device; of long prompts it is options of a scheduler; of decoding it is options of
`generate`, or of the pipeline where `where` says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MECHANISMS = {  # what a group of methods has in common
    "8 bits": "Each weight is a number of 8 bits times a scale of its output channel.",
    "4 bits in groups": "Each weight is a number of 4 bits times a scale of its group, which is a run of one row.",
    "mixed precision": "Some layers keep 8 bits, chosen by a measure of sensitivity.",
    "number formats": "Numbers of 4 or 8 bits lie more densely near zero, as weights do.",
    "codebooks": "Each weight is the index of an entry in a table.",
    "scaling before rounding": "Channels that matter are scaled up before rounding, and down again afterwards.",
    "error feedback": "Scales or later weights are chosen so that the error of a layer's output becomes small.",
    "low-rank correction": "A product of two thin matrices repairs a part of the rounding error.",
    "activation quantization": "The inputs of a product are rounded to 8 bits, too, so that it runs on integers.",
    "cache quantization": "Keys and values of earlier tokens are stored in fewer bits.",
    "eviction": "Tokens that later tokens hardly attend to leave the cache.",
    "sparse attention": "While a prompt is read, most pairs of tokens are left out.",
    "caching and serving": "Work that several requests share is done once, or for all of them together.",
    "choosing tokens": "The next token is chosen from the probabilities, under rules.",
    "speculation": "Cheap guesses of several tokens are checked by the model in one step.",
    "adapters": "Two thin matrices for each layer change a model's behaviour at run time.",
    "reading": "A model comes from a file in one of three formats.",
}


@dataclass(frozen=True)
class Method:
    """A row of the guide. kind: "weights", "activations", "cache", "prompt", "decoding" or "reading".

    where: for options of decoding that belong to the pipeline, its argument. needs: what else it takes. slow: minutes
    to compress; trap: what goes wrong in this version, so that it runs in a process of its own. why: for a method that
    this guide has not measured, the reason.
    """

    kind: str
    name: str
    mechanism: str
    call: str
    how: str
    needs: str = ""
    where: str = ""
    slow: bool = False
    trap: bool = False
    why: str = ""


def named(name: str) -> Method:
    """The method of this name. Raises ValueError that lists the known ones."""
    found = [method for method in METHODS if method.name == name]
    if not found:
        known = ", ".join(method.name for method in METHODS)
        raise ValueError(f"There is no method {name!r}. Choose one of: {known}.")
    return found[0]


def of(kinds: str | Iterable[str]) -> list[Method]:
    """The methods of one kind or of several, in the order in which they are measured: the important ones first."""
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    return sorted((method for method in METHODS if method.kind in kinds), key=lambda method: method.slow)


def _weights(name: str, mechanism: str, arguments: str, how: str, needs: str = "", **rest) -> Method:
    return Method("weights", name, mechanism, f"nncf.compress_weights(model, {arguments})", how, needs, **rest)


TEXT = "a page of text"
INT8, INT4, MIXED, FORMATS = "8 bits", "4 bits in groups", "mixed precision", "number formats"
SCALING, FEEDBACK = "scaling before rounding", "error feedback"
CACHE, SPARSE = "cache quantization", "sparse attention"
EVICTION, SERVING, CHOOSING = "eviction", "caching and serving", "choosing tokens"
ASYM, SYM = "mode=Mode.INT4_ASYM, group_size=64", "mode=Mode.INT4_SYM, group_size=64"
BY_METRIC = f"{ASYM}, ratio=0.8, dataset=text,\n    sensitivity_metric=nncf.SensitivityMetric."
OWN = "advanced_parameters=nncf.AdvancedCompressionParameters"

WEIGHTS = (
    Method("weights", "FP16", "reading", "model", "The weights stay as they are."),
    _weights("INT8 asymmetric", INT8, "mode=Mode.INT8_ASYM", "Each channel has a scale and a zero point."),
    _weights("INT4 asymmetric", INT4, ASYM, "64 weights share a scale and a zero point; the head keeps 8 bits."),
    _weights("INT4 symmetric", INT4, SYM, "64 weights share a scale, and zero is zero."),
    _weights("INT4 mixed 80 %", MIXED, f"{ASYM}, ratio=0.8",
             "The 20 % of the weights that 8 bits represent best keep 8 bits."),
    _weights("scale estimation", FEEDBACK, f"{ASYM}, scale_estimation=True, dataset=text",
             "Scales are searched that give the least error of a layer's output.", TEXT),
    _weights("AWQ data-free", SCALING, f"{ASYM}, awq=True",
             "Input channels with large weights are scaled up before rounding."),
    _weights("NF4", FORMATS, "mode=Mode.NF4, group_size=64",
             "The 16 values are quantiles of the normal distribution."),
    _weights("INT8 symmetric", INT8, "mode=Mode.INT8_SYM", "Each channel has a scale, and zero is zero."),
    _weights("INT4 groups of 32", INT4, "mode=Mode.INT4_ASYM, group_size=32", "32 weights share a scale."),
    _weights("INT4 groups of 128", INT4,
             f"mode=Mode.INT4_ASYM, group_size=128, {OWN}(\n"
             "    group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST)",
             "128 weights share a scale; rows that 128 does not divide take smaller groups."),
    _weights("INT4 per channel", INT4, "mode=Mode.INT4_ASYM, group_size=-1", "A whole row shares one scale."),
    _weights("INT4 symmetric groups of 32", INT4, "mode=Mode.INT4_SYM, group_size=32",
             "32 weights share a scale, and zero is zero."),
    _weights("INT4 all layers", INT4, f"{SYM}, all_layers=True", "Embedding and head get 4 bits, too."),
    _weights("INT4 backup none", INT4, f"{ASYM}, backup_mode=nncf.BackupMode.NONE",
             "Embedding and head stay at 16 bits."),
    _weights("INT4 backup FP8", INT4, f"{ASYM}, backup_mode=nncf.BackupMode.FP8_E4M3",
             "Embedding and head are floating-point numbers of 8 bits."),
    _weights("INT4 mixed 50 %", MIXED, f"{ASYM}, ratio=0.5", "Half of the weights keep 8 bits."),
    _weights("INT4 mixed, Hessian", MIXED,
             f"{BY_METRIC}HESSIAN_INPUT_ACTIVATION",
             "Layers keep 8 bits by the curvature of their error.", TEXT),
    _weights("INT4 mixed, mean variance", MIXED,
             f"{BY_METRIC}MEAN_ACTIVATION_VARIANCE",
             "Layers keep 8 bits by the mean variance of their inputs.", TEXT),
    _weights("INT4 mixed, max variance", MIXED,
             f"{BY_METRIC}MAX_ACTIVATION_VARIANCE",
             "Layers keep 8 bits by the largest variance of their inputs.", TEXT),
    _weights("INT4 mixed, mean magnitude", MIXED,
             f"{BY_METRIC}MEAN_ACTIVATION_MAGNITUDE",
             "Layers keep 8 bits by the mean magnitude of their inputs.", TEXT),
    _weights("AWQ", SCALING, f"{ASYM}, awq=True, dataset=text",
             "Input channels with large activations are scaled up before rounding.", TEXT),
    _weights("AWQ and scale estimation", SCALING, f"{ASYM}, awq=True, scale_estimation=True, dataset=text",
             "Channels are scaled first; then the scales of the groups are searched.", TEXT, slow=True),
    _weights("MXFP4", FORMATS, "mode=Mode.MXFP4", "32 floating-point numbers of 4 bits share a power of two."),
    _weights("MXFP4, head INT8", FORMATS, "mode=Mode.MXFP4, backup_mode=nncf.BackupMode.INT8_ASYM",
             "The same, but embedding and head are integers of 8 bits, which the CPU multiplies directly."),
    _weights("FP4", FORMATS, "mode=Mode.FP4, group_size=64", "64 floating-point numbers of 4 bits share a scale."),
    _weights("NVFP4", FORMATS, "mode=Mode.NVFP4", "16 numbers share a scale of 8 bits, all of them one of 32 bits."),
    _weights("MXFP8", FORMATS, "mode=Mode.MXFP8_E4M3", "32 floating-point numbers of 8 bits share a power of two."),
    _weights("FP8", FORMATS, "mode=Mode.FP8_E4M3, group_size=64", "64 floating-point numbers of 8 bits share a scale."),
    _weights("CB4", "codebooks", "mode=Mode.CB4, group_size=64", "A table of 16 fixed values of 8 bits."),
    _weights("Student's t codebook", "codebooks", f"mode=Mode.CODEBOOK, group_size=64, {OWN}(codebook=student_t())",
             "A table of your own: quantiles of Student's t-distribution."),
    _weights("INT3", INT4, "mode=Mode.INT3_SYM, group_size=64", "Eight values, without correction."),
    _weights("INT2", INT4, "mode=Mode.INT2_SYM, group_size=64", "Four values, without correction."),
    Method("weights", "W8A8 static", "activation quantization",
           "nncf.quantize(model, text, model_type=nncf.ModelType.TRANSFORMER,\n    subset_size=24)",
           "Weights and inputs of products get 8 bits with scales fixed in advance; SmoothQuant moves outliers.", TEXT),
    _weights("LoRA correction", "low-rank correction", f"{ASYM}, lora_correction=True, dataset=text",
             "Each layer gets two thin matrices in 8 bits that repair its error.", TEXT, slow=True),
    _weights("GPTQ", FEEDBACK, f"{ASYM}, gptq=True, dataset=text",
             "Weights are rounded one by one; those that follow make up for the error.", TEXT, slow=True),
    _weights("adaptive codebook", "codebooks", "mode=Mode.ADAPTIVE_CODEBOOK, group_size=64, dataset=text",
             "Each layer gets a table of its own, found by clustering.", TEXT, slow=True),
    _weights("GPTQ, AWQ and scale estimation", FEEDBACK,
             f"{ASYM}, gptq=True, awq=True, scale_estimation=True, dataset=text",
             "All three, one after the other.", TEXT, slow=True),
)  # fmt: skip

GROUPS = {0: "off", str(2**64 - 1): "by row"}  # as a text: Python cannot pass such a number to OpenVINO
ACTIVATIONS = tuple(
    Method("activations", f"dynamic quantization {GROUPS.get(group, group)}", "activation quantization",
           f'{{"DYNAMIC_QUANTIZATION_GROUP_SIZE": {group!r}}}', how)
    for group, how in (
        (0, "Inputs of products stay floating-point numbers."),
        (32, "32 inputs share a scale, which is computed while the model runs."),
        (128, "128 inputs share a scale."),
        (str(2**64 - 1), "A whole row of inputs shares a scale."),
    )
)  # fmt: skip


def _cache(name: str, how: str, **properties: str | int) -> Method:
    pairs = ", ".join(f'"{key}": {value!r}'.replace("'", '"') for key, value in properties.items())
    return Method("cache", f"KV {name}", CACHE, f"{{{pairs}}}", how, trap=name == "u4 by channel")


CACHES = (
    _cache("f32", "The reference: nothing is rounded.", KV_CACHE_PRECISION="f32"),
    _cache("f16", "16 bits for each number.", KV_CACHE_PRECISION="f16"),
    _cache("u8", "8 bits; each token of each head has a scale. This is the default.", KV_CACHE_PRECISION="u8"),
    _cache("u8 by channel", "Keys have a scale for each channel over several tokens.", KV_CACHE_PRECISION="u8",
           KEY_CACHE_QUANT_MODE="BY_CHANNEL"),
    _cache("u4", "4 bits for keys and values.", KV_CACHE_PRECISION="u4"),
    _cache("u4 by channel", "4 bits; keys have a scale for each channel.", KV_CACHE_PRECISION="u4",
           KEY_CACHE_QUANT_MODE="BY_CHANNEL"),
    _cache("key u8 value u4", "Values tolerate 4 bits better than keys.", KEY_CACHE_PRECISION="u8",
           VALUE_CACHE_PRECISION="u4"),
    _cache("key u4 value u8", "The reverse, for comparison.", KEY_CACHE_PRECISION="u4", VALUE_CACHE_PRECISION="u8"),
    _cache("u4 groups of 32", "32 numbers share a scale.", KV_CACHE_PRECISION="u4", KEY_CACHE_GROUP_SIZE=32,
           VALUE_CACHE_GROUP_SIZE=32),
    _cache("u4 groups of 16", "16 numbers share a scale.", KV_CACHE_PRECISION="u4", KEY_CACHE_GROUP_SIZE=16,
           VALUE_CACHE_GROUP_SIZE=16),
    *(
        _cache(f"TURBO {bits}", "Heads are rotated first, so that no channel sticks out; then a codebook.",
               KEY_CACHE_PRECISION=bits, VALUE_CACHE_PRECISION=bits, KEY_CACHE_QUANT_ALG="TURBO",
               VALUE_CACHE_QUANT_ALG="TURBO")
        for bits in ("u4", "u3")
    ),
    Method("cache", "SAGE attention", "activation quantization", '{"ENABLE_SAGE_ATTN": True}',
           "Keys are stored in 8 bits and queries rounded to 8, so that their product runs on integers; paged only."),
)  # fmt: skip


AT_ONCE = " max_num_batched_tokens=8192,"  # a prompt is read in one piece


def _prompt(name: str, mechanism: str, call: str, how: str, trap: bool = False) -> Method:
    return Method("prompt", name, mechanism, call, how, where="SchedulerConfig", trap=trap)


def _evicting(options: str) -> str:
    return (f"dict(use_cache_eviction=True, enable_prefix_caching=False,\n"
            f"    cache_eviction_config=genai.CacheEvictionConfig(32, 64, 256, {options}))")  # fmt: skip


def _sparse(options: str, more: str = "") -> str:
    mode = "genai.SparseAttentionMode"
    config = f"genai.SparseAttentionConfig({mode}.{options})"
    return f"dict(use_sparse_attention=True,{more}\n    sparse_attention_config={config})"


PROMPTS = (
    _prompt("full attention", "reading", "dict()", "Every token sees all tokens before it."),
    _prompt("tri-shape", SPARSE, _sparse("TRISHAPE, 32, 32, 256"),
            "Tokens see the first 32 and the last 256 tokens; the last 32 of the prompt see all."),
    _prompt("XAttention 0.8", SPARSE, _sparse("XATTENTION, xattention_threshold=0.8", AT_ONCE),
            "Blocks of pairs are kept until they hold 80 % of the estimated attention."),
    _prompt("XAttention 0.9", SPARSE,
            _sparse("XATTENTION, xattention_threshold=0.9, xattention_block_size=128, xattention_stride=16", AT_ONCE),
            "The same with 90 %, larger blocks and a coarser estimate."),
    _prompt("XAttention in pieces", SPARSE, _sparse("XATTENTION, xattention_threshold=0.8"),
            "The same as 0.8, but the prompt is read in pieces of 256 tokens, as by default.", trap=True),
    _prompt("eviction", EVICTION, _evicting("genai.AggregationMode.NORM_SUM"),
            "256 tokens stay: the first 32, the last 64, and those with the most attention per step (H2O, SnapKV)."),
    _prompt("eviction by sum", EVICTION, _evicting("genai.AggregationMode.SUM"),
            "The same, but attention is summed over all steps, so that old tokens lead."),
    _prompt("eviction with KVCrush", EVICTION,
            _evicting("genai.AggregationMode.NORM_SUM, kvcrush_config=genai.KVCrushConfig(\n"
                      "        2, genai.KVCrushAnchorPointMode.MEAN)"),
            "Two of the blocks that stay are chosen to represent the others."),
    _prompt("eviction without SnapKV", EVICTION, _evicting("genai.AggregationMode.NORM_SUM, snapkv_window_size=0"),
            "All tokens of the prompt vote, and not only the last eight."),
    _prompt("adaptive R-KV", EVICTION, _evicting("genai.AggregationMode.ADAPTIVE_RKV, snapkv_window_size=0"),
            "Tokens that resemble others leave first.", trap=True),
    _prompt("eviction with rotation", EVICTION, _evicting("genai.AggregationMode.NORM_SUM, apply_rotation=True"),
            "Positions of the tokens that stay are closed up.", trap=True),
    _prompt("prefix caching", SERVING, "dict(enable_prefix_caching=True)",
            "Blocks of a prompt that was read before are taken from the cache."),
    _prompt("chunked prefill", SERVING, "dict(dynamic_split_fuse=True, max_num_batched_tokens=64)",
            "A prompt is read in pieces of 64 tokens (256 without it), between the steps of other requests."),
)  # fmt: skip


def _decoding(name: str, mechanism: str, call: str, how: str, where: str = "", needs: str = "", **rest) -> Method:
    return Method("decoding", name, mechanism, call, how, needs, where, **rest)


SCHEMA = ('{"type": "object", "properties": {"city": {"type": "string", "maxLength": 20},\n'
          '    "country": {"type": "string", "maxLength": 20}}, "required": ["city", "country"]}')  # fmt: skip
STRUCTURED = "structured_output_config=genai.StructuredOutputConfig"

DECODINGS = (
    _decoding("greedy", CHOOSING, "dict(do_sample=False)", "The most probable token is taken."),
    _decoding("sampling", CHOOSING, "dict(do_sample=True, temperature=0.7, top_p=0.9, top_k=50, rng_seed=7)",
              "A token is drawn from the most probable ones; the same seed draws the same tokens."),
    _decoding("min-p sampling", CHOOSING, "dict(do_sample=True, temperature=1.0, min_p=0.1, rng_seed=7)",
              "Tokens below a tenth of the best one's probability are left out."),
    _decoding("beam search", CHOOSING, "dict(num_beams=4)", "Four texts grow together; the most probable one wins."),
    _decoding("diverse beam search", CHOOSING, "dict(num_beams=4, num_beam_groups=2, diversity_penalty=1.0)",
              "Two groups of beams are kept apart."),
    _decoding("repetition penalty", CHOOSING, "dict(do_sample=False, repetition_penalty=1.2)",
              "Tokens that occurred before become less probable."),
    _decoding("frequency and presence penalty", CHOOSING,
              "dict(do_sample=False, frequency_penalty=0.5, presence_penalty=0.5)",
              "The more often a token was generated, the less probable it becomes."),
    _decoding("stop string", CHOOSING, 'dict(do_sample=False, stop_strings={"."}, include_stop_str_in_output=True)',
              "The answer ends with a text of your choice."),
    _decoding("prompt lookup", "speculation", "dict(do_sample=False, max_ngram_size=3, num_assistant_tokens=5)",
              "Guesses are what followed the last words where they occurred before.", "prompt_lookup=True"),
    _decoding("speculation, fewer layers", "speculation", "dict(do_sample=False, num_assistant_tokens=3)",
              "A draft model guesses: the same model without the layers that change least.", "draft_model",
              "a draft model"),
    _decoding("speculation, INT4 copy", "speculation", "dict(do_sample=False, num_assistant_tokens=3)",
              "A draft model guesses: the same model at 4 bits.", "draft_model", "a draft model"),
    _decoding("speculation, trained draft", "speculation", "dict(do_sample=False, num_assistant_tokens=3)",
              "A draft model guesses: four layers that were trained on the model's own answers.", "draft_model",
              "a draft model"),
    _decoding("EAGLE-3", "speculation", "dict(do_sample=False, num_assistant_tokens=3)",
              "A draft of one layer guesses from the model's own hidden states.", "draft_model", "an EAGLE-3 draft",
              why="needs a draft that was trained on this model's hidden states; `main_export` writes one from a "
              "checkpoint whose `architectures` names Eagle3, and `genai.draft_model` knows it by `eagle3_mode`"),
    _decoding("JSON schema", CHOOSING, f"dict(do_sample=False, {STRUCTURED}(json_schema=SCHEMA))",
              "Tokens that would break the schema get no probability."),
    _decoding("regular expression", CHOOSING, f'dict(do_sample=False, {STRUCTURED}(regex="(yes|no)[.]"))',
              "The same with a regular expression."),
    _decoding("grammar", CHOOSING,
              f"dict(do_sample=False, {STRUCTURED}(\n    grammar='root ::= \"red\" | \"green\" | \"blue\"'))",
              "The same with an EBNF grammar."),
    _decoding("LoRA adapter", "adapters", "dict(do_sample=False, adapters=genai.AdapterConfig(adapter, 1.0))",
              "The pipeline is built with the adapter; each request switches it on or off.", "adapters", "an adapter"),
    _decoding("chat with cached history", SERVING, "dict(do_sample=False)",
              "The second question of a chat reads only what is new.", "ChatHistory"),
    _decoding("4 requests at once", SERVING, "dict(do_sample=False)", "Each step computes a token of every request.",
              "ContinuousBatchingPipeline"),
    _decoding("16 requests at once", SERVING, "dict(do_sample=False)", "The same with 16 requests.",
              "ContinuousBatchingPipeline"),
)  # fmt: skip

READINGS = (
    Method("reading", "GGUF file", "reading", 'genai.LLMPipeline("model.gguf", "CPU")',
           "The file is read and converted each time the pipeline starts."),
    Method("reading", "safetensors", "reading",
           'main_export(folder, output, task="text-generation-with-past", ov_config=OVConfig(dtype="fp16"))',
           "optimum-intel traces the model in PyTorch once and writes an IR.", "PyTorch"),
    Method("reading", "IR", "reading", 'genai.LLMPipeline("folder", "CPU")', "Graph and weights are compiled."),
    Method("reading", "IR with CACHE_DIR", "reading", 'genai.LLMPipeline("folder", "CPU", CACHE_DIR="cache")',
           "The compiled model is kept in a folder for the next start."),
)  # fmt: skip

METHODS = (*WEIGHTS, *ACTIVATIONS, *CACHES, *PROMPTS, *DECODINGS, *READINGS)
