"""A GGUF file of a Llama-type language model to a transformers folder."""

from pathlib import Path

CONTROL_TOKEN = 3  # GGUF's token type for special tokens such as <|im_start|>
SPECIAL_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # name in transformers: in GGUF


def to_transformers(gguf: Path, folder: Path) -> None:
    """Write a GGUF file as a transformers folder: FP16 safetensors, configuration, tokenizer.

    transformers reads the weights exactly: they are 4-bit numbers times FP16 scales. Its tokenizer is not the one that
    the file describes. This function builds the byte-level BPE from the file's vocabulary and merges (keys
    tokenizer.ggml.* of the GGUF specification).
    """
    import torch
    from gguf import GGUFReader
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields

    def read(key: str):
        return fields[f"tokenizer.{key}"].contents()

    tokens, merges = read("ggml.tokens"), [tuple(merge.split(" ")) for merge in read("ggml.merges")]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    split_digits = pre_tokenizers.Digits(individual_digits=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split_digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    bpe.decoder = decoders.ByteLevel()
    special = {f"{name}_token_id": read(f"ggml.{key}_token_id") for name, key in SPECIAL_TOKENS.items()}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        additional_special_tokens=[
            t for t, kind in zip(tokens, read("ggml.token_type"), strict=True) if kind == CONTROL_TOKEN
        ],
        **{key.removesuffix("_id"): tokens[number] for key, number in special.items()},
    )
    tokenizer.chat_template = read("chat_template")
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float16)
    model.generation_config.update(**special)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
