"""Answers about pictures and drawings from words: `Janus(folder).understand("photo.jpg", "What is this?")`, and
`Janus(folder).draw("a red ball")`.

Needs openvino, openvino-genai (for the tokenizer), numpy and Pillow. To use it elsewhere copy this one file.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from threading import RLock
from time import perf_counter

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import openvino_genai as genai
from PIL import Image, ImageOps

SUBMODELS = (
    "vision",
    "aligner",
    "text_embeddings",
    "language",
    "text_head",
    "image_head",
    "generation_embeddings",
    "image_decoder",
)
PLACEHOLDER = "<image_placeholder>"  # each is replaced by one embedding of a picture
IMAGE_TOKENS = (PLACEHOLDER, "<begin_of_image>", "<end_of_image>")
BORDER_COLOUR = (127, 127, 127)  # what is added to make a picture square
MIN_SIDE_PX = 14  # of the shorter side of a picture made small
MAX_PIXELS = 80_000_000
MAX_ASPECT_RATIO = 100  # of the longer side to the shorter one
ON_ARM = platform.machine().lower() in ("aarch64", "arm64")
FP32_ON_ARM = {"vision": {"INFERENCE_PRECISION_HINT": "f32"}}  # whose products OpenVINO 2026.4 cannot compile in FP16
Picture = Image.Image | str | Path


@dataclass(frozen=True)
class Answer:
    """What the model wrote about a picture. `str(answer)` is the answer without the reasoning.

    separator: what stands between reasoning and answer, where the checkpoint was trained to reason first; the released
    ones were not, and theirs is empty.
    """

    text: str
    separator: str = ""

    @property
    def answer(self) -> str:
        """The answer: what follows the last separator, or the whole text where there is none."""
        return self._split()[1]

    @property
    def reasoning(self) -> str:
        """What the model wrote before the answer, or nothing."""
        return self._split()[0]

    def __str__(self) -> str:
        return self.answer

    def _split(self) -> tuple[str, str]:
        reasoning, _, answer = self.text.rpartition(self.separator) if self.separator else ("", "", self.text)
        return reasoning.strip(), answer.strip()


@dataclass
class Timings:
    """Timings and token counts of an answer or a drawing. Seconds count from the call."""

    image_s: float = 0.0  # an answer: encoding the picture; a drawing: decoding its tokens to pixels
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    total_s: float = 0.0
    prompt_tokens: int = 0  # tokens of the prompt and embeddings of the picture
    generated_tokens: int = 0  # tokens of the answer, or of one drawing
    finish_reason: str = ""  # of an answer: "stop", "length" (max_new_tokens or context) or "stopped" (by `stream`)
    notes: list[str] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float | None:
        """The rate after the first token; None for less than two tokens."""
        duration = self.last_token_s - self.first_token_s
        if self.generated_tokens < 2 or duration <= 0:
            return None
        return (self.generated_tokens - 1) / duration


class Janus:
    """Janus-Pro on OpenVINO: one language model that answers questions about pictures and draws.

    folder: the IR folder that `convert.py` writes. device: OpenVINO's name. cache_gb: memory that the KV cache of a
    batch of drawings may take. properties: OpenVINO's, for all sub-models; by default the device chooses its precision
    (INFERENCE_PRECISION_HINT="f32", KV_CACHE_PRECISION="f32" are exact). On ARM processors, the vision tower computes
    in FP32. Raises ValueError for a folder that is not one of these, or damaged.

    `understand`, `draw`, `draw_tokens` and `decode` may be called by several threads, which wait for each other. Their
    single steps, `encode_picture`, `embed`, `read`, `sample_image_tokens` and `run`, share one KV cache and are for one
    thread.
    """

    def __init__(self, folder: str | Path, device: str = "CPU", cache_gb: float = 4.0, **properties) -> None:
        folder = Path(folder)
        names = [f"openvino_{part}_model" for part in SUBMODELS] + ["openvino_tokenizer", "openvino_detokenizer"]
        needed = [f"{name}.{kind}" for name in names for kind in ("xml", "bin")] + ["janus.json"]
        if missing := [name for name in needed if not (folder / name).is_file()]:
            raise ValueError(f"{folder} has no {', '.join(missing)}. Give the folder that the conversion wrote.")
        core = ov.Core()
        try:
            settings = json.loads((folder / "janus.json").read_text(encoding="utf-8"))
            self.image_size = settings["image_size"]  # pixels, of the square that the vision tower reads
            self.rows = settings["rows"]  # of a drawing's tokens, and columns
            self.context = settings["context"]  # tokens that a conversation or a drawing may have
            self.guidance = settings["guidance"]  # the default for drawings
            self.answer_separator = settings.get("answer_separator", "")  # see `Answer`
            self._system_prompt = settings["system_prompt"]
            self._special_ids = settings["tokens"]
            models = {part: core.read_model(folder / f"openvino_{part}_model.xml") for part in SUBMODELS}
            self.tokenizer = genai.Tokenizer(folder)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
            raise ValueError(f"{folder} holds a damaged file ({reason}). Convert the model again.") from error
        self.codes = models["image_head"].output(0).get_partial_shape()[-1].get_length()
        self.cache_gb = cache_gb
        self._cache_bytes = cache_bytes_per_token(models["language"])
        head, embeddings = models.pop("image_head"), models.pop("generation_embeddings")
        models["drawing_step"] = drawing_step(head, embeddings)
        exceptions = FP32_ON_ARM if ON_ARM and device in ("CPU", "AUTO") else {}  # AUTO has nothing else there
        self._requests = {
            part: core.compile_model(model, device, properties | exceptions.get(part, {})).create_infer_request()
            for part, model in models.items()
        }
        self.timings = Timings()
        self._lock = RLock()
        self._past = 0  # tokens in the KV cache

    def understand(
        self,
        image: Picture,
        prompt: str,
        stream: Callable[[str], object] | None = None,
        max_new_tokens: int = 512,
    ) -> Answer:
        """The answer to a question about a picture, decoded greedily; `timings` has what it took.

        image: a PIL image or a file's name. stream: is called with the text in pieces as it comes, reasoning included,
        and may end it by returning True. Raises ValueError for a picture that cannot be read, and a question that is
        empty or too long.
        """
        _check_text(prompt, "question", "Ask something.")
        if not _is_whole(max_new_tokens, 1):
            raise ValueError(f"max_new_tokens is {max_new_tokens!r}: an answer takes 1 or more.")
        opened, notes = open_picture(image)
        with self._lock:
            self.timings = Timings(notes=notes)
            return self._answer(opened, prompt, max_new_tokens, stream, self.timings)

    def draw(
        self,
        prompt: str,
        seed: int = 0,
        guidance: float | None = None,
        n: int = 1,
        progress: Callable[[np.ndarray], object] | None = None,
        temperature: float = 1.0,
    ) -> list[Image.Image]:
        """`n` drawings of what the prompt says; the arguments and errors are those of `draw_tokens`."""
        with self._lock:
            tokens = self.draw_tokens(prompt, seed, guidance, n, progress, temperature)
            begin = perf_counter()
            pictures = self.decode(tokens)
            self.timings.image_s = perf_counter() - begin
            self.timings.total_s += self.timings.image_s
            return pictures

    def draw_tokens(
        self,
        prompt: str,
        seed: int = 0,
        guidance: float | None = None,
        n: int = 1,
        progress: Callable[[np.ndarray], object] | None = None,
        temperature: float = 1.0,
    ) -> np.ndarray:
        """[n, rows * rows] int64: the tokens of `n` drawings; `decode` makes pictures of them.

        seed: drawing i of a seed is the same whatever `n` is, within the device's arithmetic. guidance: the scale of
        classifier-free guidance; at 1 there is none, at 0 the prompt is ignored; None takes the checkpoint's own, which
        is 5 for the released ones. progress: is called with the tokens so far, [n, t], after each; an exception that it
        raises ends the drawing. temperature: of sampling; 0 takes the most probable token. Raises ValueError for
        numbers that make no sense, a prompt that is empty or too long, and more drawings than `cache_gb` allows.
        """
        _check_text(prompt, "prompt", "Say what to draw.")
        guidance = self.guidance if guidance is None else guidance
        for name, value in (("guidance", guidance), ("temperature", temperature)):
            if not isinstance(value, Real) or not 0 <= value <= 100:  # NaN is nowhere between
                raise ValueError(f"{name} is {value!r}: give a number from 0 to 100.")
        if not _is_whole(seed, 0):
            raise ValueError(f"seed is {seed!r}: give a whole number from 0 on.")
        if not _is_whole(n, 1):
            raise ValueError(f"n is {n!r}: give the number of drawings, 1 or more.")
        ids = [
            self._special_ids["bos"],
            *self._token_ids(f"<|User|>: {prompt}\n\n<|Assistant|>:"),
            self._special_ids["begin_of_image"],
        ]
        count = self.rows**2
        self._check_context(len(ids) + count - 1, "the prompt and the drawing")
        needed_gb = 2 * n * (len(ids) + count - 1) * self._cache_bytes / 1e9
        if needed_gb > self.cache_gb:
            raise ValueError(
                f"{n} drawings side by side take up to {needed_gb:.2g} GB for the KV cache, and cache_gb is "
                f"{self.cache_gb}. Draw fewer at a time, or open the model with a larger cache_gb if there is memory."
            )
        with self._lock:
            self.timings = Timings(prompt_tokens=len(ids))
            unconditional = [ids[0], *[self._special_ids["padding"]] * (len(ids) - 2), ids[-1]]
            return self.sample_image_tokens(
                ids,
                unconditional,
                n=n,
                seed=seed,
                guidance=guidance,
                temperature=temperature,
                progress=progress,
                timings=self.timings,
            )

    def decode(self, tokens: np.ndarray) -> list[Image.Image]:
        """The pictures of tokens [n, t]; rows of tokens that are not complete yet are grey."""
        tokens = np.asarray(tokens)
        count = self.rows**2
        if tokens.ndim != 2 or tokens.shape[1] > count or not np.isin(tokens, np.arange(self.codes)).all():
            raise ValueError(f"Tokens are n rows of up to {count} whole numbers from 0 to {self.codes - 1}.")
        padded = np.zeros((len(tokens), count), np.int64)
        padded[:, : tokens.shape[1]] = tokens
        complete_rows = tokens.shape[1] // self.rows
        pictures = []
        for row in padded:  # one at a time: memory does not grow with their number
            with self._lock:
                pixels = to_rgb(self.run("image_decoder", {"tokens": row[None]})[0])  # [S, S, 3]
            pixels[pixels.shape[0] * complete_rows // self.rows :] = BORDER_COLOUR
            pictures.append(Image.fromarray(pixels))
        return pictures

    def _answer(
        self, image: Image.Image, prompt: str, max_new_tokens: int, stream: Callable | None, timings: Timings
    ) -> Answer:
        begin = perf_counter()
        text = f"{self._system_prompt}<|User|>: {PLACEHOLDER}\n{prompt}\n\n<|Assistant|>:"
        ids = [self._special_ids["bos"], *self._token_ids(text)]
        if ids.count(self._special_ids["placeholder"]) != 1:
            raise ValueError(f"The tokenizer makes other tokens of {PLACEHOLDER}: the folder's files do not match.")
        picture = self.encode_picture(image)  # [1, T, D]
        timings.image_s = perf_counter() - begin
        # One placeholder becomes as many as the picture has embeddings, between the tokens that begin and end it.
        place, count = ids.index(self._special_ids["placeholder"]), picture.shape[1]
        placeholders = [self._special_ids["placeholder"]] * count
        ids[place : place + 1] = [
            self._special_ids["begin_of_image"],
            *placeholders,
            self._special_ids["end_of_image"],
        ]
        self._check_context(len(ids), "the question and its picture")
        timings.prompt_tokens = len(ids)
        limit = min(max_new_tokens, self.context - len(ids) + 1)
        embeddings = self.embed(ids)  # [1, prompt, D]
        embeddings[:, place + 1 : place + 1 + count] = picture

        tokens, pieces = [], []

        def on_piece(piece: str) -> genai.StreamingStatus:
            if not pieces:
                piece = piece.lstrip()  # the first token often begins with a blank
            if piece:
                pieces.append(piece)
            if piece and stream is not None and timings.finish_reason != "stopped" and stream(piece) is True:
                return genai.StreamingStatus.STOP
            return genai.StreamingStatus.RUNNING

        streamer = genai.TextStreamer(self.tokenizer, on_piece)
        self.reset_cache()
        while not timings.finish_reason:
            hidden = self.read(embeddings)  # [1, T, D]
            token = int(self.run("text_head", {"hidden": hidden[:, -1]}).argmax())
            timings.last_token_s = perf_counter() - begin
            timings.first_token_s = timings.first_token_s or timings.last_token_s
            if token == self._special_ids["eos"]:
                timings.finish_reason = "stop"
                break
            tokens.append(token)
            if streamer.write(token) != genai.StreamingStatus.RUNNING:
                timings.finish_reason = "stopped"
            elif len(tokens) == limit:
                timings.finish_reason = "length"
            else:
                embeddings = self.embed([token])
        streamer.end()
        timings.generated_tokens = len(tokens)
        timings.total_s = perf_counter() - begin
        return Answer("".join(pieces).rstrip(), self.answer_separator)

    def sample_image_tokens(
        self,
        conditional: list[int],
        unconditional: list[int],
        *,
        n: int = 1,
        seed: int = 0,
        guidance: float = 1.0,
        temperature: float = 1.0,
        count: int | None = None,
        progress: Callable[[np.ndarray], object] | None = None,
        timings: Timings | None = None,
    ) -> np.ndarray:
        """[n, count] int64: the first `count` tokens of `n` drawings, by default all of them.

        conditional, unconditional: token ids of the prompt and of as many tokens without it. timings: is filled in. The
        other arguments are those of `draw_tokens`.
        """
        begin = perf_counter()
        timings = Timings() if timings is None else timings
        generators = [np.random.default_rng((seed, i)) for i in range(n)]
        tokens = np.zeros((n, self.rows**2 if count is None else count), np.int64)
        step = self._requests["drawing_step"]
        self.reset_cache()
        # The prompt is read once, in a batch of two. Drawing i is rows 2i and 2i + 1, with copies of the two caches.
        hidden = self.read(self.embed(conditional, unconditional))  # [2, prompt, D]
        hidden = np.tile(hidden[:, -1:], (n, 1, 1))  # [2n, 1, D]
        beams = np.tile(np.int32([0, 1]), n)  # [2n]
        for place in range(tokens.shape[1]):
            noise = np.stack([generator.gumbel(size=self.codes) for generator in generators])  # [n, codes]
            inputs = {"guidance": np.float32(guidance), "noise": np.float32(temperature * noise)}
            step.infer({"hidden": hidden} | inputs)
            tokens[:, place] = step.get_tensor("tokens").data[:, 0]
            timings.generated_tokens = place + 1
            timings.last_token_s = perf_counter() - begin
            timings.first_token_s = timings.first_token_s or timings.last_token_s
            if progress is not None:
                progress(tokens[:, : place + 1].copy())
            if place + 1 < tokens.shape[1]:
                hidden = self.read(step.get_tensor("inputs_embeds").data, beams)  # [2n, 1, D]
                beams = np.arange(2 * n, dtype=np.int32)
        timings.total_s = perf_counter() - begin
        return tokens

    def encode_picture(self, image: Image.Image) -> np.ndarray:
        """[1, T, D]: the embeddings of an RGB picture for the language model."""
        pixels = preprocess(image, self.image_size)  # [1, 3, S, S]
        features = self.run("vision", {"pixel_values": pixels})  # [1, T, C]
        return self.run("aligner", {"last_hidden_state": features})

    def _token_ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()

    def embed(self, *rows: list[int]) -> np.ndarray:
        """[rows, T, D]: the embeddings of rows of token ids."""
        return self.run("text_embeddings", {"input": np.array(rows, np.int64)})

    def _check_context(self, tokens: int, what: str) -> None:
        if tokens > self.context:
            raise ValueError(f"There are {tokens} tokens in {what}; the model reads {self.context}. Say it shorter.")

    def reset_cache(self) -> None:
        """Empty the KV cache."""
        # A new request: in one that is used again, OpenVINO 2026.4 damages a cache of 8 bits when the batch grows.
        self._requests["language"] = self._requests["language"].get_compiled_model().create_infer_request()
        self._past = 0

    def read(self, embeddings: np.ndarray, beams: np.ndarray | None = None) -> np.ndarray:
        """Read embeddings [B, T, D] into the KV cache; returns their hidden states [B, T, D].

        beams: [B] int32, the row of the cache that each row goes on from; its own by default.
        """
        rows, new = embeddings.shape[:2]
        past = self._past
        self._past = past + new
        inputs = {
            "inputs_embeds": embeddings,
            "attention_mask": np.ones((rows, self._past), np.int64),  # [B, cached + T]
            "position_ids": np.arange(past, self._past, dtype=np.int64)[None].repeat(rows, 0),  # [B, T]
            "beam_idx": np.arange(rows, dtype=np.int32) if beams is None else beams,
        }
        return self.run("language", inputs)

    def run(self, part: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """The output of a sub-model, one of SUBMODELS without "image_head" and "generation_embeddings".

        These two are inside "drawing_step", see `drawing_step`.
        """
        request = self._requests[part]
        request.infer(inputs)
        return request.get_output_tensor(0).data.copy()


def drawing_step(head: ov.Model, embeddings: ov.Model) -> ov.Model:
    """From hidden states to the next tokens and their embeddings in one graph, so that the logits never leave it.

    Inputs: `hidden` [2n, T, D], of which the last position is used; `guidance`, a number; `noise` [n, codes]. Outputs:
    `tokens` [n, 1] int64, the largest of u + guidance * (c - u) + noise where c and u are rows 2i and 2i + 1 of the
    logits; `inputs_embeds` [2n, 1, D], each token twice. Noise of the Gumbel distribution times a temperature samples
    from the softmax at that temperature.
    """
    axis = ops.constant(np.int64(1))
    width = head.input(0).get_partial_shape()[1].get_length()
    codes = head.output(0).get_partial_shape()[1].get_length()
    hidden = ops.parameter([-1, -1, width], np.float32, "hidden")
    guidance = ops.parameter([], np.float32, "guidance")
    noise = ops.parameter([-1, codes], np.float32, "noise")
    last = ops.gather(hidden, ops.constant(np.int64(-1)), axis)  # [2n, D]
    head.input(0).get_node().output(0).replace(last.output(0))
    logits = head.output(0).get_node().input_value(0)  # [2n, codes]
    pairs = ops.reshape(logits, ops.constant(np.int64([-1, 2, codes])), False)  # [n, 2, codes]
    conditional, unconditional = (ops.gather(pairs, ops.constant(np.int64(row)), axis) for row in (0, 1))  # [n, codes]
    guided = unconditional + guidance * (conditional - unconditional)  # [n, codes]
    best = ops.topk(guided + noise, ops.constant(np.int64(1)), -1, "max", "none", "i64").output(1)  # [n, 1]
    twice = ops.reshape(ops.concat([best, best], 1), ops.constant(np.int64([-1, 1])), False)  # [2n, 1]
    embeddings.input(0).get_node().output(0).replace(twice.output(0))
    embedded = embeddings.output(0).get_node().input_value(0)  # [2n, 1, D]
    results = [ops.result(best), ops.result(embedded)]
    model = ov.Model(results, [hidden, guidance, noise], "drawing_step")
    names = "hidden", "guidance", "noise", "tokens", "inputs_embeds"
    for port, name in zip([*model.inputs, *model.outputs], names, strict=True):
        port.get_tensor().set_names({name})
    return model


def cache_bytes_per_token(language: ov.Model) -> int:
    """Bytes of KV cache for a token of a row, at most: keys and values of 4 bytes in all layers."""
    states = (node for node in language.get_ops() if node.get_type_name() == "ReadValue")
    shapes = (node.get_output_partial_shape(0) for node in states)  # [B, heads, cached, head]
    return sum(4 * shape[1].get_length() * shape[3].get_length() for shape in shapes)


def preprocess(image: Image.Image, size: int) -> np.ndarray:
    """[1, 3, size, size] float32 in -1..1: an RGB picture resized and centred on a grey square."""
    longest = max(image.size)
    sides = [max(int(side / longest * size), MIN_SIDE_PX) for side in image.size]
    small = image.resize(sides, Image.Resampling.BICUBIC)
    square = Image.new("RGB", (size, size), BORDER_COLOUR)
    square.paste(small, ((size - small.width) // 2, (size - small.height) // 2))
    pixels = np.asarray(square, np.float32).transpose(2, 0, 1)[None] / 255
    return (pixels - 0.5) / 0.5


def to_rgb(pixels: np.ndarray) -> np.ndarray:
    """[H, W, 3] uint8 for the decoder's pixels [3, H, W] in about -1..1."""
    return ((pixels.transpose(1, 2, 0) + 1) / 2 * 255).clip(0, 255).astype(np.uint8)


def _is_whole(number: object, minimum: int) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool) and number >= minimum


def _check_text(text: object, what: str, advice: str) -> None:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"The {what} is empty. {advice}")
    if token := next((token for token in IMAGE_TOKENS if token in text), None):
        raise ValueError(f"The {what} holds {token}, by which the model knows pictures. Write it without.")


def open_picture(image: Picture) -> tuple[Image.Image, list[str]]:
    """A picture as upright RGB with 8 bits a channel, and what a viewer should know about it.

    Transparency becomes white, 16 bits become 8, of an animation the first frame is taken. Raises ValueError for what
    cannot be read, is too large or too long.
    """
    if not isinstance(image, Picture):
        raise ValueError(f"A picture is a PIL image or the name of a file, not a {type(image).__name__}.")
    file = getattr(image, "filename", "") if isinstance(image, Image.Image) else image
    name = Path(file).name if file else "The picture"
    notes: list[str] = []
    try:
        if not isinstance(image, Image.Image):
            image = Image.open(image)
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ValueError(_too_large(name, f"{width} x {height}"))
        if max(width, height) > MAX_ASPECT_RATIO * max(1, min(width, height)):
            raise ValueError(f"{name} has {width} x {height} pixels: that is too long and thin. Cut out a part of it.")
        if (frames := getattr(image, "n_frames", 1)) > 1:
            image.seek(0)
            notes.append(f"{name} is animated: of its {frames} frames the first one is taken.")
        image.load()
        return _rgb(ImageOps.exif_transpose(image), name), notes
    except FileNotFoundError as error:
        raise ValueError(f"{name} is not there. Correct its name.") from error
    except Image.DecompressionBombError as error:
        raise ValueError(_too_large(name, "far too many")) from error
    except (OSError, SyntaxError, EOFError) as error:
        raise ValueError(f"{name} cannot be read as a picture. Is it whole? Give a PNG, JPEG or WebP file.") from error


def _too_large(name: str, pixels: str) -> str:
    return f"{name} has {pixels} pixels; up to {MAX_PIXELS // 10**6} million are read. Make it smaller."


def _rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "F":
        raise ValueError(f"{name} holds floating-point numbers. Save it with 8 or 16 bits a channel.")
    if image.mode.startswith("I"):  # 16 bits; Pillow would cut them off at 255
        return Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
