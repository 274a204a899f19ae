"""The unquantised network of 2.6 with the interface of `pipeline.VisionChat`: the baseline of all accuracies."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from transformers import PreTrainedTokenizerFast

from notebooks.minicpm_v.network.checkpoint import load
from notebooks.minicpm_v.pipeline import Answer
from notebooks.minicpm_v.pipeline.slicing import batch, cut, placeholder, plan


class Reference:
    """The unquantised network of a checkpoint folder of 2.6 in PyTorch.

    It shares only the slicing with the pipeline: tokenizer, chat template and generation are those of transformers.
    Raises ValueError for a checkpoint of 2.0.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.model = load(checkpoint, dtype=torch.float32)
        if self.model.version != 2.6:
            raise ValueError(f"{checkpoint} is MiniCPM-V {self.model.version}. Give one of 2.6.")
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)

    @torch.inference_mode()
    def ask(self, picture: Image.Image, text: str, max_new_tokens: int, slicing: bool) -> Answer:
        """The answer to a question about an RGB picture, decoded greedily."""
        model, config, tokenizer = self.model, self.model.config, self.tokenizer

        # Slice the picture, and write the prompt with its placeholders
        slices = config["slice_config"]
        planned = plan(picture.size, slices["max_slice_nums"] if slicing else 1, slices["scale_resolution"])
        content = f"{placeholder(planned.grid, config['query_num'])}\n{text}"
        template = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
        ids = tokenizer.apply_chat_template([{"role": "user", "content": content}], **template)["input_ids"]  # [1, T]

        # Put the embeddings of the slices in place of the placeholders
        inputs = batch(cut(picture, planned), model.vpm.config.image_size // model.vpm.config.patch_size)
        arrays = inputs.pixel_values, inputs.patch_attention_mask, inputs.position_ids, inputs.sizes
        pictures = model.encode_images(*map(torch.from_numpy, arrays))  # [slices, queries, D]
        embeddings = model.llm.get_input_embeddings()(ids)  # [1, T, D]
        embeddings = embeddings.masked_scatter((ids == tokenizer.unk_token_id)[..., None], pictures)

        # Decode greedily
        tokens = model.llm.generate(
            inputs_embeds=embeddings,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )
        return Answer(tokenizer.decode(tokens[0], skip_special_tokens=True), config.get("answer_separator", ""))

    def token_ids(self, text: str) -> list[int]:
        """A text's token ids."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]
