"""Answers about pictures and drawings from words: `Janus(folder).understand("photo.jpg", "What is this?")`, and
`Janus(folder).draw("a red ball")`.

Needs openvino, openvino-genai (for the tokenizer), numpy and Pillow. To use it elsewhere copy this one file.
"""

from __future__ import annotations

import json
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

PARTS = (
    "vision",
    "aligner",
    "text_embeddings",
    "language",
    "text_head",
    "image_head",
    "generation_embeddings",
    "image_decoder",
)
PLACEHOLDER = "<image_placeholder>"  # stands for one embedding of a picture
TAGS = (PLACEHOLDER, "<begin_of_image>", "<end_of_image>")
BORDER = (127, 127, 127)  # what is added to make a picture square
THINNEST = 14  # pixels, of the shorter side of a picture made small
MOST_PIXELS = 80_000_000
MOST_RATIO = 100  # of the longer side to the shorter one
Picture = Image.Image | str | Path


@dataclass
class Figures:
    """What an answer or a drawing took. Seconds count from the call; tokens a second are those after the first."""

    image_s: float = 0.0  # an answer: seeing the picture; a drawing: making pictures of tokens
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    seconds: float = 0.0
    read: int = 0  # tokens of the prompt and embeddings of the picture
    generated: int = 0  # tokens of the answer, or of one drawing
    ended: str = ""  # an answer: "stop": all was said; "length": max_new_tokens or context; "stopped": by `stream`
    notes: list[str] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float | None:
        """None for less than two tokens."""
        spent = self.last_token_s - self.first_token_s
        return (self.generated - 1) / spent if self.generated > 1 and spent > 0 else None


class Janus:
    """Janus-Pro on OpenVINO: one language model that answers questions about pictures and draws.

    folder: the IR folder that `convert.py` writes. device: OpenVINO's name. cache_gb: memory that the KV cache of
    drawings side by side may take. properties: OpenVINO's, for all sub-models; by default the device chooses its
    arithmetic (INFERENCE_PRECISION_HINT="f32", KV_CACHE_PRECISION="f32" are exact). Threads may share it: they wait for
    each other. Raises ValueError for a folder that is not one of these, or damaged.
    """

    def __init__(self, folder: str | Path, device: str = "CPU", cache_gb: float = 4.0, **properties) -> None:
        folder = Path(folder)
        names = [f"openvino_{part}_model" for part in PARTS] + ["openvino_tokenizer", "openvino_detokenizer"]
        needed = [f"{name}.{kind}" for name in names for kind in ("xml", "bin")] + ["janus.json"]
        if missing := [name for name in needed if not (folder / name).is_file()]:
            raise ValueError(f"{folder} has no {', '.join(missing)}. Give the folder that the conversion wrote.")
        core = ov.Core()
        try:
            settings = json.loads((folder / "janus.json").read_text(encoding="utf-8"))
            self.image_size, self.rows = settings["image_size"], settings["rows"]
            self.context = settings["context"]  # tokens that a conversation or a drawing may have
            self._system, self._ids = settings["system_prompt"], settings["tokens"]
            self.guidance = settings["guidance"]  # of drawings, where none is given
            models = {part: core.read_model(folder / f"openvino_{part}_model.xml") for part in PARTS}
            self.tokenizer = genai.Tokenizer(folder)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
            raise ValueError(f"{folder} holds a damaged file ({reason}). Convert the model again.") from error
        self.codes = models["image_head"].output(0).get_partial_shape()[-1].get_length()
        self.cache_gb, self._cache_bytes = cache_gb, cache_bytes(models["language"])
        head, embeddings = models.pop("image_head"), models.pop("generation_embeddings")
        models["drawing_step"] = drawing_step(head, embeddings)
        self._run = {
            part: core.compile_model(model, device, properties).create_infer_request() for part, model in models.items()
        }
        self._lock, self._past, self.figures = RLock(), 0, Figures()

    def understand(
        self,
        image: Picture,
        prompt: str,
        stream: Callable[[str], object] | None = None,
        max_new_tokens: int = 512,
    ) -> str:
        """The answer to a question about a picture, of its most probable tokens; `figures` tells what it took.

        image: a PIL image or a file's name. stream: is given the answer in pieces as it comes, and may end it by
        returning True. Raises ValueError for a picture that cannot be read, and a question that is empty or too long.
        """
        _check_text(prompt, "question", "Ask something.")
        if not _whole(max_new_tokens, 1):
            raise ValueError(f"max_new_tokens is {max_new_tokens!r}: an answer takes 1 or more.")
        opened, notes = open_picture(image)
        with self._lock:
            self.figures = Figures(notes=notes)
            return self._answer(opened, prompt, max_new_tokens, stream, self.figures)

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
            self.figures.image_s = perf_counter() - begin
            self.figures.seconds += self.figures.image_s
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

        seed: drawing i of a seed is the same whatever `n` is, as far as the device's arithmetic is. guidance: how much
        more the drawing follows the prompt than it would without it; at 1 it just follows, at 0 the prompt means
        nothing; None takes the checkpoint's own, which is 5 for the released ones. progress: is given the tokens so
        far, [n, t], after each; what it raises ends the drawing. temperature: of sampling; 0 always takes the most
        probable token. Raises ValueError for numbers that make no sense, a prompt that is empty or too long, and more
        drawings than `cache_gb` allows.
        """
        _check_text(prompt, "prompt", "Say what to draw.")
        guidance = self.guidance if guidance is None else guidance
        for name, value in (("guidance", guidance), ("temperature", temperature)):
            if not isinstance(value, Real) or not 0 <= value <= 100:  # NaN is nowhere between
                raise ValueError(f"{name} is {value!r}: give a number from 0 to 100.")
        if not _whole(seed, 0):
            raise ValueError(f"seed is {seed!r}: give a whole number from 0 on.")
        if not _whole(n, 1):
            raise ValueError(f"n is {n!r}: give the number of drawings, 1 or more.")
        ids = [self._ids["bos"], *self._encode(f"<|User|>: {prompt}\n\n<|Assistant|>:"), self._ids["begin_of_image"]]
        count = self.rows**2
        self._check_room(len(ids) + count - 1, "the prompt and the drawing")
        need = 2 * n * (len(ids) + count - 1) * self._cache_bytes / 1e9
        if need > self.cache_gb:
            raise ValueError(
                f"{n} drawings side by side take up to {need:.2g} GB for the KV cache, and cache_gb is {self.cache_gb}."
                " Draw fewer at a time, or open the model with a larger cache_gb if there is memory."
            )
        with self._lock:
            self.figures = Figures(read=len(ids))
            return self._draw(ids, n, seed, guidance, temperature, progress, self.figures)

    def decode(self, tokens: np.ndarray) -> list[Image.Image]:
        """The pictures of tokens [n, t]; what is not drawn yet, in whole rows of tokens, is grey."""
        given = np.asarray(tokens)
        count = self.rows**2
        if given.ndim != 2 or given.shape[1] > count or not np.isin(given, np.arange(self.codes)).all():
            raise ValueError(f"Tokens are n rows of up to {count} whole numbers from 0 to {self.codes - 1}.")
        whole = np.zeros((len(given), count), np.int64)
        whole[:, : given.shape[1]] = given
        drawn = given.shape[1] // self.rows
        pictures = []
        for row in whole:  # one at a time, so that their number takes no memory
            with self._lock:
                pixels = painted(_infer(self._run["image_decoder"], {"tokens": row[None]})[0])
            pixels[pixels.shape[0] * drawn // self.rows :] = BORDER
            pictures.append(Image.fromarray(pixels))
        return pictures

    def _answer(self, image: Image.Image, prompt: str, most: int, stream: Callable | None, figures: Figures) -> str:
        begin = perf_counter()
        text = f"{self._system}<|User|>: {PLACEHOLDER}\n{prompt}\n\n<|Assistant|>:"
        ids = [self._ids["bos"], *self._encode(text)]
        if ids.count(self._ids["placeholder"]) != 1:
            raise ValueError(f"The tokenizer makes other tokens of {PLACEHOLDER}: the folder's files do not match.")
        seen = self._see(image)
        figures.image_s = perf_counter() - begin
        place = ids.index(self._ids["placeholder"])
        ids[place : place + 1] = [self._ids["begin_of_image"], *ids[place : place + 1] * seen.shape[1]]
        ids.insert(place + 1 + seen.shape[1], self._ids["end_of_image"])
        self._check_room(len(ids), "the question and its picture")
        figures.read, room = len(ids), self.context - len(ids) + 1
        embeddings = self._embed(ids)
        embeddings[:, place + 1 : place + 1 + seen.shape[1]] = seen

        tokens, said = [], []

        def hear(piece: str) -> genai.StreamingStatus:
            said.append(piece)
            if stream is not None and figures.ended != "stopped" and stream(piece) is True:
                return genai.StreamingStatus.STOP
            return genai.StreamingStatus.RUNNING

        streamer = genai.TextStreamer(self.tokenizer, hear)
        self._forget()
        while not figures.ended:
            hidden = self._read(embeddings)
            token = int(_infer(self._run["text_head"], {"hidden": hidden[:, -1]}).argmax())
            figures.last_token_s = perf_counter() - begin
            figures.first_token_s = figures.first_token_s or figures.last_token_s
            if token == self._ids["eos"]:
                figures.ended = "stop"
                break
            tokens.append(token)
            if streamer.write(token) != genai.StreamingStatus.RUNNING:
                figures.ended = "stopped"
            elif len(tokens) == min(most, room):
                figures.ended = "length"
            else:
                embeddings = self._embed([token])
        streamer.end()
        figures.generated, figures.seconds = len(tokens), perf_counter() - begin
        return "".join(said)

    def _draw(
        self,
        ids: list[int],
        n: int,
        seed: int,
        guidance: float,
        temperature: float,
        progress: Callable | None,
        figures: Figures,
    ) -> np.ndarray:
        """Row 2i of the batch follows the prompt and row 2i + 1 does not: its words are padding."""
        begin = perf_counter()
        generators = [np.random.default_rng((seed, i)) for i in range(n)]
        tokens = np.zeros((n, self.rows**2), np.int64)
        unprompted = [ids[0], *[self._ids["padding"]] * (len(ids) - 2), ids[-1]]
        step = self._run["drawing_step"]
        self._forget()
        hidden = self._read(self._embed(ids, unprompted))  # once for all drawings, whose caches are copies
        hidden, beams = np.tile(hidden[:, -1:], (n, 1, 1)), np.tile(np.int32([0, 1]), n)
        for place in range(tokens.shape[1]):
            noise = np.stack([generator.gumbel(size=self.codes) for generator in generators])
            inputs = {"guidance": np.float32(guidance), "noise": np.float32(temperature * noise)}
            step.infer({"hidden": hidden} | inputs)
            tokens[:, place] = step.get_tensor("tokens").data[:, 0]
            figures.generated, figures.last_token_s = place + 1, perf_counter() - begin
            figures.first_token_s = figures.first_token_s or figures.last_token_s
            if progress is not None:
                progress(tokens[:, : place + 1].copy())
            if place + 1 < tokens.shape[1]:
                hidden = self._read(step.get_tensor("inputs_embeds").data, beams)
                beams = np.arange(2 * n, dtype=np.int32)
        figures.seconds = perf_counter() - begin
        return tokens

    def _see(self, image: Image.Image) -> np.ndarray:
        """[1, T, D]: what the language model reads of a picture."""
        seen = _infer(self._run["vision"], {"pixel_values": normalised(image, self.image_size)})
        return _infer(self._run["aligner"], {"last_hidden_state": seen})

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()

    def _embed(self, *rows: list[int]) -> np.ndarray:
        """[rows, T, D] of token ids."""
        return _infer(self._run["text_embeddings"], {"input": np.array(rows, np.int64)})

    def _check_room(self, tokens: int, what: str) -> None:
        if tokens > self.context:
            raise ValueError(f"There are {tokens} tokens in {what}; the model reads {self.context}. Say it shorter.")

    def _forget(self) -> None:
        """Empty the KV cache."""
        self._run["language"].reset_state()
        self._past = 0

    def _read(self, embeddings: np.ndarray, beams: np.ndarray | None = None) -> np.ndarray:
        """Read embeddings [B, T, D] into the KV cache; their hidden states [B, T, D].

        beams: [B] int32, the row of the cache that each row goes on from; its own by default.
        """
        rows, new = embeddings.shape[:2]
        past, self._past = self._past, self._past + new
        inputs = {
            "inputs_embeds": embeddings,
            "attention_mask": np.ones((rows, self._past), np.int64),
            "position_ids": np.arange(past, self._past, dtype=np.int64)[None].repeat(rows, 0),
            "beam_idx": np.arange(rows, dtype=np.int32) if beams is None else beams,
        }
        return _infer(self._run["language"], inputs)


def drawing_step(head: ov.Model, embeddings: ov.Model) -> ov.Model:
    """From hidden states to the next tokens and their embeddings in one graph, without the logits leaving it.

    Inputs: `hidden` [2n, T, D], of which the last is looked at; `guidance`, a number; `noise` [n, codes]. Outputs:
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
    last = ops.gather(hidden, ops.constant(np.int64(-1)), axis)
    head.input(0).get_node().output(0).replace(last.output(0))
    logits = head.output(0).get_node().input_value(0)
    pairs = ops.reshape(logits, ops.constant(np.int64([-1, 2, codes])), False)
    conditional, unconditional = (ops.gather(pairs, ops.constant(np.int64(row)), axis) for row in (0, 1))
    guided = unconditional + guidance * (conditional - unconditional)
    best = ops.topk(guided + noise, ops.constant(np.int64(1)), -1, "max", "none", "i64").output(1)
    twice = ops.reshape(ops.concat([best, best], 1), ops.constant(np.int64([-1, 1])), False)
    embeddings.input(0).get_node().output(0).replace(twice.output(0))
    embedded = embeddings.output(0).get_node().input_value(0)
    results = [ops.result(best), ops.result(embedded)]
    model = ov.Model(results, [hidden, guidance, noise], "drawing_step")
    names = "hidden", "guidance", "noise", "tokens", "inputs_embeds"
    for port, name in zip([*model.inputs, *model.outputs], names, strict=True):
        port.get_tensor().set_names({name})
    return model


def cache_bytes(language: ov.Model) -> int:
    """Bytes of KV cache for a token of a row, at most: keys and values of 4 bytes in all layers."""
    states = (node for node in language.get_ops() if node.get_type_name() == "ReadValue")
    shapes = (node.get_output_partial_shape(0) for node in states)
    return sum(4 * shape[1].get_length() * shape[3].get_length() for shape in shapes)


def normalised(image: Image.Image, size: int) -> np.ndarray:
    """[1, 3, size, size] float32 in -1..1: an RGB picture made small, in the middle of a grey square."""
    longest = max(image.size)
    small = image.resize([max(int(side / longest * size), THINNEST) for side in image.size], Image.Resampling.BICUBIC)
    square = Image.new("RGB", (size, size), BORDER)
    square.paste(small, ((size - small.width) // 2, (size - small.height) // 2))
    pixels = np.asarray(square, np.float32).transpose(2, 0, 1)[None] / 255
    return (pixels - 0.5) / 0.5


def painted(pixels: np.ndarray) -> np.ndarray:
    """[H, W, 3] uint8 of a decoder's pixels [3, H, W] in about -1..1."""
    return ((pixels.transpose(1, 2, 0) + 1) / 2 * 255).clip(0, 255).astype(np.uint8)


def _infer(request: ov.InferRequest, inputs: dict[str, np.ndarray]) -> np.ndarray:
    request.infer(inputs)
    return request.get_output_tensor(0).data.copy()


def _whole(number: object, least: int) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool) and number >= least


def _check_text(text: object, what: str, way_out: str) -> None:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"The {what} is empty. {way_out}")
    if mark := next((mark for mark in TAGS if mark in text), None):
        raise ValueError(f"The {what} holds {mark}, by which the model knows pictures. Write it without.")


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
        if width * height > MOST_PIXELS:
            raise ValueError(_too_large(name, f"{width} x {height}"))
        if max(width, height) > MOST_RATIO * max(1, min(width, height)):
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
    return f"{name} has {pixels} pixels; up to {MOST_PIXELS // 10**6} million are read. Make it smaller."


def _rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "F":
        raise ValueError(f"{name} holds floating-point numbers. Save it with 8 or 16 bits a channel.")
    if image.mode.startswith("I"):  # 16 bits; Pillow would cut them off at 255
        return Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
