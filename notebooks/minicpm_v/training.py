"""Trains the tiny checkpoint: `python -m notebooks.minicpm_v.training`.

Six stages, each kept in models/minicpm_v-training, so that a run that was stopped goes on where it was:
  seeing   vision tower and resampler learn what is where: shape, colour and letter at four points of every patch
  reading  both go on where letters are printed
  judging  the language model learns, by words alone, what follows from the places of two things
  naming   the resampler learns to pass things on by the language model's own embeddings of their names
  small    resampler and language model learn to tell and answer questions about pictures that stay whole
  large    both learn pictures that are sliced, with words that only the slices show, among small ones
Scenes come from data.py, questions from utils.drawn_world.questions; both are drawn as training goes. Seeded.
Writes FP16 safetensors, configuration and tokenizer to tiny/. Prints the share of right answers to
held-out questions.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedTokenizerFast

from notebooks.minicpm_v import data as pictures
from notebooks.minicpm_v.network import MiniCPMV, save_tiny
from notebooks.minicpm_v.pipeline import slicing
from utils import paths
from utils.drawn_world import questions
from utils.drawn_world.scenes import COLOURS, LETTERS, SHAPES, draw, label_maps
from utils.training.loop import half, optimise
from utils.training.vision_language import FP32_ATTENTION, NOWHERE, byte_level_bpe, padded, pointed

TINY = paths.notebook_dir(__package__) / "tiny"
WORK = paths.training_dir(__package__)
SEEDS = {"seeing": 1, "reading": 4, "judging": 5, "naming": 6, "small": 2, "large": 3}
STEPS = {"seeing": 6000, "reading": 2500, "judging": 300, "naming": 300, "small": 3250, "large": 8000}
RATES = {"seeing": 2e-3, "reading": 1e-3, "judging": 1e-3, "naming": 1e-3, "small": 1.5e-3, "large": 1.2e-3}
DESCRIBED, PORTRAYED = 0.1, 0.5  # shares of conversations that only describe a picture, or one thing after another
TURNS = 8  # questions of the others, at most
CLASSES = (len(SHAPES) + 1, len(COLOURS) + 1, len(LETTERS) + 1)  # of a point: 0 is none of them
PATCH = 14
HARD = 3.0  # weight of letters, of yes and of no among the tokens of answers
NAMED = 4.0  # a name is there where the output reaches this far along its embedding
GRID = 8  # queries of the resampler look at this many rows and columns
PLACES = torch.stack([torch.arange(GRID).repeat_interleave(GRID), torch.arange(GRID).repeat(GRID)], 1)  # of queries

VOCABULARY = 512
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>", "<image>", "</image>", "<slice>", "</slice>",
    "<image_id>", "</image_id>",
]  # fmt: skip
PAD = SPECIAL.index("<|endoftext|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "architectures": ["MiniCPMV"],
    "model_type": "minicpmv",
    "version": 2.6,
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "query_num": 64,
    "image_size": 336,
    "patch_size": 14,
    "drop_vision_last_layer": True,
    "slice_mode": True,
    "use_image_id": True,
    "slice_config": {
        "max_slice_nums": 9,
        "patch_size": 14,
        "scale_resolution": pictures.SIDE,
        "model_type": "minicpmv",
    },
    "vision_config": {
        "model_type": "siglip",
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 5,
        "num_attention_heads": 6,
        "image_size": 336,
        "patch_size": 14,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    },
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make_tokenizer():
    """Byte-level BPE, as Qwen2's, made from the questions. Capital letters stay single: printed words are spelled."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(questions.corpus(), VOCABULARY, SPECIAL),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<unk>",
        additional_special_tokens=[token for token in SPECIAL if token not in ("<|im_end|>", "<|endoftext|>", "<unk>")],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def conversation(rng: np.random.Generator, large: bool) -> list[tuple[Image.Image, list[questions.Question]]]:
    """Pictures, each with the questions that follow it: one picture, or now and then two small ones."""
    if large:
        scenes = [pictures.large_scene(rng)]
    else:
        scenes = [pictures.small_scene(rng) for _ in range(1 + (rng.random() < 0.15))]
    share, turns = rng.random(), []
    for scene in scenes:
        asked = []
        if share >= DESCRIBED + PORTRAYED:
            asked = questions.questions(scene, rng, TURNS // len(scenes))
        elif share >= DESCRIBED:
            asked = questions.portraits(scene, rng)
        # things all alike have no names to ask for
        turns.append((draw(scene), asked or [questions.describe(scene, rng)]))
    return turns


class Batches:
    """Drawn scenes as tensors; every draw is a function of the generator that is passed in."""

    def __init__(self, tokenizer):
        self.encode = lambda text: tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

    def talk(self, turns: list[tuple[Image.Image, list[questions.Question]]]) -> tuple[list[Image.Image], list, list]:
        """A conversation's slices, its token ids, and for each token whether it is to be learned (1) or given (0)."""
        slices, ids, learned = [], [], []
        for number, (picture, asked) in enumerate(turns):
            slices += pieces(picture)
            text = slicing.placeholder(plan(picture).grid, CONFIG["query_num"], index=number) + "\n"
            for question in asked:
                given = self.encode(self.turn(text + question.text))
                answer = self.encode(f"{question.said}<|im_end|>")
                after = self.encode("\n")
                ids += given + answer + after
                learned += [0] * len(given) + [1] * len(answer) + [0] * len(after)
                text = ""
        return slices, ids, learned

    @staticmethod
    def turn(text: str) -> str:
        """What is said up to where the answer begins."""
        return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"

    def questions(self, count: int, rng: np.random.Generator, large: bool) -> dict[str, Tensor]:
        """Conversations: what `answers` takes."""
        return self.collate([self.talk(conversation(rng, large)) for _ in range(count)])

    def judgements(self, count: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """Questions about how two things lie, without a picture: their places are given, what follows is learned."""
        rows: list[tuple[list[int], list[bool]]] = []
        while len(rows) < count:
            question = questions.ask(pictures.small_scene(rng), "relation", rng)
            if question:
                first, second, *_ = question.said.split(", ")
                ids = self.encode(self.turn(question.text) + f"{question.said}<|im_end|>")
                given = self.encode(self.turn(question.text) + f"{first}, {second}")
                rows.append((ids, [place >= len(given) for place in range(len(ids))]))
        return padded(rows, PAD)

    def names(self) -> list[list[Tensor]]:
        """Token ids of the names of all shapes, colours and letters; the first two have two spellings, as a word that
        begins a text and as one within it."""
        spellings = [
            [SHAPES, [f" {name}" for name in SHAPES]],
            [list(COLOURS), [f" {name}" for name in COLOURS]],
            [LETTERS],
        ]
        return [[torch.tensor([self.encode(name) for name in names])[:, 0] for names in same] for same in spellings]

    def collate(self, talks: list) -> dict[str, Tensor]:
        """Conversations side by side, with all their slices."""
        slices = tensors([piece for pieces, _, _ in talks for piece in pieces])
        return slices | padded([talk[1:] for talk in talks], PAD)

    def points(self, count: int, rng: np.random.Generator, printed: bool) -> dict[str, Tensor]:
        """Slices, and what is at four points of each patch [n, patches, 4, 3], NOWHERE where nobody asks.

        printed: only slices with letters, most of them small.
        """
        slices, truths = [], []
        while len(slices) < count:
            scene = pictures.large_scene(rng) if rng.random() < (0.7 if printed else 0.4) else pictures.small_scene(rng)
            cuts = pieces(draw(scene))
            maps = [pieces(Image.fromarray(x), Image.Resampling.NEAREST) for x in label_maps(scene)]
            for number in rng.permutation(len(cuts))[: None if printed else 3]:
                truth = np.stack([np.asarray(x[number]) for x in maps]).astype(np.int64)
                if number == 0 and len(cuts) > 1:
                    truth[2][truth[2] > 0] = NOWHERE  # too small to be read in the overview
                if (truth[2] > 0).any() or not printed:
                    slices.append(cuts[number])
                    truths.append(at_points(truth))
        return tensors(slices) | {"truth": nn.utils.rnn.pad_sequence(truths, True, NOWHERE)}


def plan(picture: Image.Image) -> slicing.Plan:
    """How a picture is read."""
    return slicing.plan(picture.size, resolution=pictures.SIDE)


def pieces(picture: Image.Image, resample: int = Image.Resampling.BICUBIC) -> list[Image.Image]:
    """The overview and the slices of a picture."""
    return slicing.cut(picture, plan(picture), resample)


def tensors(slices: list[Image.Image]) -> dict[str, Tensor]:
    """slicing.Batch as tensors."""
    batch = slicing.batch(slices, CONFIG["image_size"] // PATCH)
    return {key: torch.from_numpy(x) for key, x in vars(batch).items()}


def at_points(maps: np.ndarray) -> Tensor:
    """Values of maps [3, height, width] at four points of each patch [patches, 4, 3]."""
    quarter = PATCH // 4
    points = maps[:, quarter :: PATCH // 2, quarter :: PATCH // 2]
    rows, columns = (side // 2 for side in points.shape[1:])
    points = points.reshape(3, rows, 2, columns, 2).transpose(1, 3, 2, 4, 0)
    return torch.from_numpy(np.ascontiguousarray(points.reshape(rows * columns, 4, 3)))


class Seeing(nn.Module):
    """Vision tower and resampler, and lines that read what is where from the output of either."""

    def __init__(self, model: MiniCPMV):
        super().__init__()
        self.model = model
        widths = model.config["vision_config"]["hidden_size"], model.config["hidden_size"]
        self.patch, self.query = (nn.Linear(width, 4 * sum(CLASSES)) for width in widths)
        self.place = nn.Linear(widths[1], 2 * GRID)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits of shape, colour and letter at four points: [n, patches, 4, c] from the tower and [n, queries, 4, c]
        from the resampler, of a query's row and column [n, queries, 2, GRID], and the resampler's output
        [n, queries, D], which the latter two are read from."""
        mask = batch["patch_attention_mask"]
        seen = self.model.vpm(batch["pixel_values"], mask, batch["position_ids"])
        read = self.model.resample(seen, mask, batch["sizes"])
        return (
            self.patch(seen).float().unflatten(-1, (4, -1)),
            self.query(read).float().unflatten(-1, (4, -1)),
            self.place(read).float().unflatten(-1, (2, -1)),
            read.float(),
        )


def at_queries(truth: Tensor, sizes: Tensor) -> Tensor:
    """What is at the place of each query [n, queries, 4, 3] of what is in each patch; NOWHERE beyond the last."""
    down, across = PLACES.T
    rows, columns = (side[:, None] for side in sizes.T)
    inside = (down < rows) & (across < columns)
    patch = torch.where(inside, down * columns + across, 0)
    found = truth[torch.arange(len(truth))[:, None], patch]
    return found.masked_fill(~inside[..., None, None], NOWHERE)


def settings(stage: str) -> dict[str, float]:
    """Of a stage, for `optimise`."""
    return {"steps": STEPS[stage], "rate": RATES[stage], "seed": SEEDS[stage]}


def learn_to_see(network: Seeing, batches: Batches, stage: str) -> None:
    """Teach the vision tower what is where, and the resampler to pass it on.

    Stage "reading" shows letters above all; "naming" leaves the tower as it is and teaches names, too.
    """
    network.model.llm.requires_grad_(False)
    network.model.vpm.requires_grad_(stage != "naming")
    names = batches.names()

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        batch = batches.points(64, rng, printed=stage == "reading" or (stage == "naming" and step % 2 == 0))
        with half(), sdpa_kernel(SDPBackend.MATH):  # for few patches the fused kernel's way back takes longer
            seen, read, place, output = network(batch)
        truths = {"seen": (seen, batch["truth"]), "read": (read, at_queries(batch["truth"], batch["sizes"]))}
        parts = {f"{name} wrong": pointed(*pair, CLASSES) for name, pair in truths.items()}
        parts["place wrong"] = F.cross_entropy(place.flatten(0, 2), PLACES.repeat(len(place), 1, 1).flatten())
        if stage == "naming":
            parts["named wrong"] = 2 * named(output, truths["read"][1], network.model.llm.get_input_embeddings(), names)
        right = {}
        for name, (logits, truth) in truths.items():
            printed = truth[..., 2] > 0
            letters = logits.split(CLASSES, -1)[2].argmax(-1)
            right[f"letters {name}"] = (letters == truth[..., 2])[printed].float().mean()
        return {"loss": sum(parts.values())} | parts | right

    optimise(WORK / f"{stage}.pt", network, loss, **settings(stage))
    network.model.llm.requires_grad_(True)


def named(output: Tensor, truth: Tensor, embeddings: nn.Embedding, names: list[list[Tensor]]) -> Tensor:
    """How badly the embeddings of the names of what is at a query's points [n, queries, 4, 3], and of no others, can be
    found in the resampler's output [n, queries, D]. names: as `Batches.names`."""
    words = F.normalize(embeddings.weight, dim=-1)
    total = output.new_zeros(())
    for aspect, spellings in enumerate(names):
        found = truth[..., aspect]
        asked = (found >= 0).all(-1)
        there = F.one_hot(found.clamp_min(0), CLASSES[aspect]).amax(-2)[..., 1:].float()
        for ids in spellings:
            logits = output @ words[ids].T - NAMED
            more = logits.new_tensor(4.0)  # most names are not there
            total = total + F.binary_cross_entropy_with_logits(logits[asked], there[asked], pos_weight=more)
    return total


def look_everywhere(model: MiniCPMV) -> None:
    """Set the resampler so that the untrained queries look at the places of a grid, one each."""
    width = CONFIG["hidden_size"]
    places = torch.from_numpy(slicing.sincos_positions(GRID, GRID, width)).reshape(-1, width)
    # only quick waves tell neighbours apart; those come first in each quarter: sine and cosine, across and down
    sharp = torch.exp(-torch.arange(width // 4) / 6).repeat(4)
    # a head gets every other wave
    order = torch.cat([torch.arange(width)[head :: width // 128] for head in range(width // 128)])
    attend = torch.diag(sharp * 7)[order]
    with torch.no_grad():
        model.resampler.query.copy_(places)
        model.resampler.attn.in_proj_weight[:width].copy_(attend)
        model.resampler.attn.in_proj_weight[width : 2 * width].copy_(attend)
        model.resampler.ln_kv.weight.fill_(0.2)
        model.resampler.attn.in_proj_weight[2 * width :].mul_(5)


def spread_words(model: MiniCPMV) -> None:
    """Give the untrained embeddings of words a length of about one: names are found by them."""
    with torch.no_grad():
        model.llm.get_input_embeddings().weight.normal_(std=CONFIG["hidden_size"] ** -0.5)


def answers(model: MiniCPMV, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits of the tokens to be learned [k, vocabulary], and those tokens [k]."""
    ids = batch["ids"]
    pictures = model.encode_images(
        batch["pixel_values"], batch["patch_attention_mask"], batch["position_ids"], batch["sizes"]
    )
    embeds = model.llm.model.embed_tokens(ids).to(pictures.dtype)
    embeds = embeds.masked_scatter((ids == SPECIAL.index("<unk>"))[..., None], pictures.flatten(0, 1))
    return said(model, embeds, batch)


def said(model: MiniCPMV, embeds: Tensor, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits of the tokens to be learned [k, vocabulary], and those tokens [k], of embeddings [n, tokens, D]."""
    later = batch["learned"][:, 1:]
    hidden = model.llm.model(inputs_embeds=embeds, use_cache=False).last_hidden_state
    return model.llm.lm_head(hidden[:, :-1][later]).float(), batch["ids"][:, 1:][later]


def learn_to_judge(model: MiniCPMV, batches: Batches) -> None:
    """Teach the language model, by words alone, to say which of two words fits and whether that means yes or no.

    Learned with pictures only, yes and no stay at chance for thousands of steps.
    """

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        batch = batches.judgements(48, rng)
        with half():
            logits, tokens = said(model, model.llm.model.embed_tokens(batch["ids"]), batch)
        verdicts = torch.roll(tokens == SPECIAL.index("<|im_end|>"), -1)  # the token before the end
        right = (logits.argmax(-1) == tokens)[verdicts].float().mean()
        return {"loss": F.cross_entropy(logits, tokens), "right": right}

    optimise(WORK / "judging.pt", model.llm, loss, **settings("judging"))


def learn_to_answer(model: MiniCPMV, batches: Batches, stage: str) -> None:
    """Teach resampler and language model to answer, in stage "large" mostly about sliced pictures."""
    model.vpm.requires_grad_(False)
    model.llm.set_attn_implementation(FP32_ATTENTION)
    model.llm.model.compile(dynamic=True)
    letters, verdicts = batches.names()[2][0], [batches.encode(f" {word}")[0] for word in ("yes", "no")]
    weight = torch.ones(VOCABULARY)
    weight[letters] = weight[verdicts] = HARD  # spelling and judging take longest to learn

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        large = stage == "large" and step % 4 > 0
        with half():
            logits, tokens = answers(model, batches.questions(12 if large else 16, rng, large))
        right = (logits.argmax(-1) == tokens).float().mean()
        kind = "large" if large else "small"
        found = {f"{kind} right": right}
        for what, ids in (("letters", letters), ("verdicts", torch.tensor(verdicts))):
            if (asked := torch.isin(tokens, ids)).any():
                found[f"{kind} {what} right"] = (logits.argmax(-1) == tokens)[asked].float().mean()
        return {"loss": F.cross_entropy(logits, tokens, weight)} | found

    optimise(WORK / f"{stage}.pt", model, loss, **settings(stage))


@torch.inference_mode()
def right_answers(model: MiniCPMV, batches: Batches, kind: str, count: int) -> float:
    """Share of held-out questions of a kind whose every token the network would have said."""
    right = []
    for picture, question in pictures.held_out(kind, count):
        batch = batches.collate([batches.talk([(picture, [question])])])
        logits, tokens = answers(model, batch)
        right.append(bool((logits.argmax(-1) == tokens).all()))
    return float(np.mean(right))


def main() -> None:
    """Train, save, and print the quality."""
    torch.manual_seed(0)
    model, tokenizer = MiniCPMV(CONFIG), make_tokenizer()
    batches = Batches(tokenizer)
    look_everywhere(model)
    spread_words(model)
    network = Seeing(model)
    learn_to_see(network, batches, "seeing")
    learn_to_see(network, batches, "reading")
    learn_to_judge(model, batches)
    learn_to_see(network, batches, "naming")
    learn_to_answer(model, batches, "small")
    learn_to_answer(model, batches, "large")
    save_tiny(TINY, model)
    tokenizer.save_pretrained(TINY)
    shares = {kind: right_answers(model, batches, kind, 100) for kind in questions.KINDS}
    print("Held out, right: " + ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items()))


if __name__ == "__main__":
    main()
