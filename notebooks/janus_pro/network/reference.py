"""The unquantised network with the interface of `pipeline.Janus`: the baseline of all quality numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.cache_utils import DynamicCache

from notebooks.janus_pro.network.checkpoint import PADDING, encode_pictures, guidance, load, system_prompt
from notebooks.janus_pro.pipeline import IMAGE_TOKENS, preprocess, to_rgb


class Reference:
    """The unquantised network of a checkpoint folder in PyTorch.

    `understand` and `draw_tokens` are those of `pipeline.Janus` with the same random numbers. It shares with the
    pipeline only the way from a picture to pixel values and back.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.model = load(checkpoint, dtype=torch.float32)
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
        self.image_ids = self.tokenizer.convert_tokens_to_ids(list(IMAGE_TOKENS))  # placeholder, begin, end
        self.padding = self.tokenizer.convert_tokens_to_ids(self.tokenizer.pad_token or PADDING)
        self.system_prompt = system_prompt(checkpoint)
        self.guidance = guidance(checkpoint)
        self.rows = self.model.config.vq_config.num_patches

    @torch.inference_mode()
    def understand(self, image: Image.Image, prompt: str, max_new_tokens: int) -> str:
        """What the model writes about an RGB picture, decoded greedily: `Answer.text`."""
        # Embeddings of the prompt, those of the picture in place of the placeholder
        placeholder, begin, end = self.image_ids
        picture = self._encode_picture(image)  # [1, T, D]
        ids = self._token_ids(f"{self.system_prompt}<|User|>: {IMAGE_TOKENS[0]}\n{prompt}\n\n<|Assistant|>:")
        place, count = ids.index(placeholder), picture.shape[1]
        ids[place : place + 1] = [begin, *[placeholder] * count, end]
        embeddings = self.model.get_input_embeddings()(torch.tensor([ids]))  # [1, prompt, D]
        embeddings[:, place + 1 : place + 1 + count] = picture
        # Greedy decoding
        tokens, cache = [], DynamicCache(config=self.model.config.text_config)
        while len(tokens) < max_new_tokens:
            token = self.model.lm_head(self._read(embeddings, cache)).argmax(-1)  # [1]
            if token == self.tokenizer.eos_token_id:
                break
            tokens.append(int(token))
            embeddings = self.model.get_input_embeddings()(token[None])  # [1, 1, D]
        return self.tokenizer.decode(tokens, skip_special_tokens=True).strip()

    @torch.inference_mode()
    def draw_tokens(
        self, prompt: str, seed: int = 0, guidance: float | None = None, n: int = 1, temperature: float = 1.0
    ) -> np.ndarray:
        """[n, rows * rows]: the tokens of `n` drawings."""
        strength = self.guidance if guidance is None else guidance
        ids = [*self._token_ids(f"<|User|>: {prompt}\n\n<|Assistant|>:"), self.image_ids[1]]
        unconditional = [ids[0], *[self.padding] * (len(ids) - 2), ids[-1]]
        embeddings = self.model.get_input_embeddings()(torch.tensor([ids, unconditional]))  # [2, prompt, D]
        embeddings = embeddings.repeat(n, 1, 1)  # [2n, prompt, D]
        generators = [np.random.default_rng((seed, i)) for i in range(n)]
        tokens, cache = [], DynamicCache(config=self.model.config.text_config)
        while len(tokens) < self.rows**2:
            logits = self.model.model.generation_head(self._read(embeddings, cache)).unflatten(0, (n, 2))
            conditional, unconditional = logits.unbind(1)  # [n, codes]
            noise = torch.from_numpy(np.stack([rng.gumbel(size=logits.shape[-1]) for rng in generators]))
            guided = unconditional + strength * (conditional - unconditional)
            tokens.append((guided + temperature * noise.float()).argmax(-1))  # [n]
            twice = tokens[-1].repeat_interleave(2)[:, None]  # [2n, 1]
            embeddings = self.model.prepare_embeddings_for_image_generation(twice)  # [2n, 1, D]
        return torch.stack(tokens, 1).numpy()

    def draw(self, prompt: str, seed: int = 0, guidance: float | None = None, n: int = 1) -> list[Image.Image]:
        """`n` drawings of what the prompt says."""
        return self.decode(self.draw_tokens(prompt, seed, guidance, n))

    @torch.inference_mode()
    def decode(self, tokens: np.ndarray) -> list[Image.Image]:
        """The pictures of tokens [n, rows * rows]."""
        pixels = self.model.model.vqmodel.decode(torch.from_numpy(tokens)).numpy()  # [n, 3, S, S]
        return [Image.fromarray(to_rgb(picture)) for picture in pixels]

    @torch.inference_mode()
    def encode(self, pictures: Sequence[Image.Image]) -> np.ndarray:
        """[n, rows * rows]: the tokens of RGB pictures, which `decode` decodes to pictures again."""
        size = self.model.config.vision_config.image_size
        pixels = np.concatenate([preprocess(picture, size) for picture in pictures])  # [n, 3, S, S]
        return encode_pictures(self.model, torch.from_numpy(pixels)).numpy()

    def _encode_picture(self, image: Image.Image) -> Tensor:
        """[1, T, D]: the embeddings of a picture."""
        network = self.model.model
        pixels = torch.from_numpy(preprocess(image, self.model.config.vision_config.image_size))  # [1, 3, S, S]
        return network.aligner(network.vision_model(pixels).last_hidden_state)

    def _token_ids(self, text: str) -> list[int]:
        return [self.tokenizer.bos_token_id, *self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def _read(self, embeddings: Tensor, cache: DynamicCache) -> Tensor:
        """[B, D]: the hidden states of the last position of embeddings [B, T, D]."""
        return self.model.model.language_model(inputs_embeds=embeddings, past_key_values=cache).last_hidden_state[:, -1]
