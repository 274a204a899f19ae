"""Trains the tiny checkpoint: `python -m notebooks.janus_pro.training`.

Six stages, each kept in models/janus_pro-training, so that a run that was stopped goes on where it was:
  vq       the autoencoder learns pictures as 36 tokens and back
  seeing   vision tower and aligner learn what is where: shape and colour at sixteen points of every patch
  judging  the language model learns, by words alone, what follows from the places of two things
  naming   the aligner learns to pass things on by the language model's own embeddings of their names and places
  both     aligner and language model learn to answer questions, and language model and image head to draw
  twins    the same goes on, with more questions, and some about things that are alike
Scenes come from data.py, questions from utils.drawn_world.questions; both are drawn as training goes. Seeded.
Writes FP16 safetensors, configuration, processor and tokenizer to tiny/. Prints the share of right answers and
drawings.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import JanusConfig, JanusForConditionalGeneration, PreTrainedTokenizerFast

from notebooks.janus_pro import data as pictures
from notebooks.janus_pro.convert import PADDING, TAGS
from notebooks.janus_pro.measuring import quality
from notebooks.janus_pro.network import encode_pictures, save_tiny
from utils import paths
from utils.drawn_world import questions
from utils.drawn_world.scenes import COLOURS, PLACES, SHAPES, Scene, draw, label_maps
from utils.training.loop import half, matrices, optimise
from utils.training.vision_language import FP32_ATTENTION, byte_level_bpe, padded, pointed

TINY = paths.notebook_dir(__package__) / "tiny"
WORK = paths.training_dir(__package__)
SEEDS = {"vq": 1, "seeing": 2, "judging": 3, "naming": 4, "both": 5, "twins": 6}
STEPS = {"vq": 1500, "seeing": 1000, "judging": 300, "naming": 400, "both": 2400, "twins": 900}
RATES = {"vq": 1e-3, "seeing": 2e-3, "judging": 1e-3, "naming": 1e-3, "both": 1.5e-3, "twins": 1e-3}
DESCRIBED, PORTRAYED = 0.1, 0.4  # shares of conversations that only describe a picture, or one thing after another
TURNS = 6  # questions of the others, at most
UNPROMPTED = 0.1  # share of drawings whose words are padding: guidance sets the two against each other
WISHED = {"thing": 0.1, "place": 0.1, "count": 0.2, "several": 0.25, "relation": 0.25, "half": 0.1}  # shares of kinds
CLASSES = (len(SHAPES) + 1, len(COLOURS) + 1)  # of a point: 0 is none of them
HARD = 3.0  # weight of yes and of no among the tokens of answers
DRAWING = 4.0  # weight of a drawing's tokens, most of which are white
THINGS = 2.0  # weight of those that are not, where it is given that they are not
NAMED = 4.0  # a name is there where the output reaches this far along its embedding
EDGES = 2.0  # how much more the autoencoder's errors count where black meets white
MISREAD = 0.2  # weight of colours that cannot be read from the autoencoder's codes
FREE = 300  # steps of the autoencoder without codes
REVIVED = 50  # steps after which codes that nothing took begin anew
ALIKE = 0.98  # codes whose cosine is larger become one
PATCH = 16  # pixels
POINTS = 4  # of a patch, in a row and in a column, where is known what is there
SETTINGS = {"processor_config.json": {"system_prompt": ""}, "generation_config.json": {"guidance_scale": 1.2}}
ROWS = pictures.SIDE // PATCH
TOKENS = ROWS**2  # of a picture that is seen, and of one that is drawn
PLACE_WORDS = tuple(dict.fromkeys(" ".join(PLACES).split()))

VOCABULARY = 512
BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<|User|>", "<|Assistant|>"
SPECIAL = [BEGIN, END, PADDING, USER, ASSISTANT, *TAGS]
PLACEHOLDER, BEGIN_OF_IMAGE, END_OF_IMAGE = map(SPECIAL.index, TAGS)
PAD = SPECIAL.index(PADDING)
WIDTH = 256
WIDE = {"projection_dim": WIDTH}
CONFIG = {
    "image_token_id": PLACEHOLDER,
    "text_config": {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 320,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": SPECIAL.index(BEGIN),
        "eos_token_id": SPECIAL.index(END),
        "pad_token_id": PAD,
    },
    "vision_config": {
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "mlp_ratio": 2.0,
        "image_size": pictures.SIDE,
        "patch_size": PATCH,
        "num_image_tokens": TOKENS,
        **WIDE,
    },
    "vq_config": {
        "embed_dim": 8,
        "num_embeddings": 512,
        "latent_channels": 32,
        "base_channels": 32,
        "channel_multiplier": [1, 1, 2, 2, 2],
        "num_res_blocks": 1,
        "image_token_embed_dim": WIDTH,
        **WIDE,
    },
}


def untrained() -> JanusForConditionalGeneration:
    """The network as training begins, seeded."""
    torch.manual_seed(0)
    model = JanusForConditionalGeneration(JanusConfig(**deepcopy(CONFIG)))
    with torch.no_grad():  # words of a length of about one: names are found by them
        model.get_input_embeddings().weight.normal_(std=WIDTH**-0.5)
    return model


def make_tokenizer():
    """Byte-level BPE, as DeepSeek's, made from the questions and the sentences that ask for drawings."""
    texts = [*questions.corpus(), *pictures.corpus()]
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(texts, VOCABULARY, SPECIAL),
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PADDING,
        additional_special_tokens=[USER, ASSISTANT, *TAGS],
    )


def conversation(rng: np.random.Generator, twins: float = 0.0) -> tuple[Image.Image, list[questions.Question]]:
    """A picture and the questions that follow it; twins: share of pictures with things that are alike."""
    scene = pictures.twins(rng) if twins and rng.random() < twins else pictures.any_scene(rng)
    share, asked = rng.random(), []
    if share >= DESCRIBED + PORTRAYED:
        asked = questions.questions(scene, rng, TURNS)
    elif share >= DESCRIBED:
        asked = questions.portraits(scene, rng)
    return draw(scene), asked or [questions.describe(scene, rng)]  # things all alike have no names to ask for


class Batches:
    """Drawn scenes as tensors; every draw is a function of the generator that is passed in."""

    def __init__(self, tokenizer):
        self.encode = lambda text: tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

    def talk(self, asked: list[questions.Question], seen: bool = True) -> tuple[list[int], list[int]]:
        """A conversation's token ids, and for each whether it is to be learned (1) or given (0).

        seen: whether it begins with a picture. Later questions have the form of the first one, without it.
        """
        picture = [BEGIN_OF_IMAGE, *[PLACEHOLDER] * TOKENS, END_OF_IMAGE]
        ids, learned = [SPECIAL.index(BEGIN)], [0]
        for number, question in enumerate(asked):
            given = self.encode(f"{USER}: ")
            given += (picture if seen and number == 0 else []) + self.encode(self.turn(question.text))
            answer = [*self.encode(f" {question.said}"), SPECIAL.index(END)]
            ids += given + answer
            learned += [0] * len(given) + [1] * len(answer)
        return ids, learned

    @staticmethod
    def turn(text: str) -> str:
        """What is said after a picture, up to where the answer begins."""
        return f"\n{text}\n\n{ASSISTANT}:"

    def questions(self, count: int, rng: np.random.Generator, twins: float = 0.0) -> list[dict[str, Tensor]]:
        """Conversations with their pictures, the shorter half and the longer one: each is what `answers` takes."""
        talks = [conversation(rng, twins) for _ in range(count)]
        rows = [self.talk(asked) for _, asked in talks]
        halves = np.array_split(np.argsort([len(ids) for ids, _ in rows]), 2)  # padding is computed, too
        return [{"pixels": pixels([talks[i][0] for i in x])} | padded([rows[i] for i in x], PAD) for x in halves]

    def judgements(self, count: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """Questions about how two things lie, without a picture: their places are given, what follows is learned."""
        rows: list[tuple[list[int], list[int]]] = []
        while len(rows) < count:
            question = questions.ask(pictures.any_scene(rng), "relation", rng)
            if question:
                ids, learned = self.talk([question], seen=False)
                first, second, *_ = question.said.split(", ")
                begun = learned.index(1) + len(self.encode(f" {first}, {second}"))
                rows.append((ids, [int(place >= begun) for place in range(len(ids))]))
        return padded(rows, PAD)

    def wishes(self, count: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """Sentences with pictures that fulfil them, some without their words: what `drawn` takes."""
        scenes, rows = [], []
        for _ in range(count):
            kind, prompted = str(rng.choice(list(WISHED), p=list(WISHED.values()))), rng.random() >= UNPROMPTED
            if kind == "half":
                scene, wish = pictures.half_told(rng)
            else:  # to ask for new pairs is for tests
                pairs = pictures.KNOWN_PAIRS if prompted else pictures.ALL_PAIRS
                scene, wish = pictures.wish(rng, kind, pairs=pairs)
            words = self.encode(f"{USER}: {wish.text}\n\n{ASSISTANT}:")
            before = [SPECIAL.index(BEGIN), *(words if prompted else [PAD] * len(words))]
            drawn = [BEGIN_OF_IMAGE, *[PLACEHOLDER] * (TOKENS - 1)]  # each tells the next; the last one is never read
            rows.append((before + drawn, [0] * len(before) + [1] * len(drawn)))
            scenes.append(scene)
        return {"pixels": pixels([draw(scene) for scene in scenes])} | padded(rows, PAD)

    def names(self) -> list[Tensor]:
        """Token ids of the names of all shapes, of all colours, and of places' parts, as words within a text."""
        aspects = SHAPES, list(COLOURS), PLACE_WORDS
        return [torch.tensor([self.encode(f" {name}") for name in names])[:, 0] for names in aspects]

    def points(self, count: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """Pictures, and what is at the points of each patch [n, patches, p, 2]."""
        scenes = [pictures.any_scene(rng) for _ in range(count)]
        return {"pixels": pixels([draw(x) for x in scenes]), "truth": torch.stack([at_points(x) for x in scenes])}


def pixels(drawn: list[Image.Image]) -> Tensor:
    """Pictures as [n, 3, SIDE, SIDE] in -1..1."""
    return torch.from_numpy(np.stack([np.asarray(x) for x in drawn])).permute(0, 3, 1, 2).float() / 127.5 - 1


def at_points(scene: Scene) -> Tensor:
    """Shape and colour at the points of each patch of a scene [patches, p, 2], as `label_maps` numbers them."""
    step = PATCH // POINTS
    points = label_maps(scene)[:2, step // 2 :: step, step // 2 :: step].astype(np.int64)
    apart = points.reshape(2, ROWS, POINTS, ROWS, POINTS).transpose(1, 3, 2, 4, 0)
    return torch.from_numpy(apart.reshape(TOKENS, POINTS**2, 2))


def named_at(truth: Tensor) -> list[Tensor]:
    """Which shapes, colours and PLACE_WORDS [n, patches, names] name what is at patches' points [n, patches, p, 2]
    and the ninth where it is."""
    there = [F.one_hot(x, c).amax(-2)[..., 1:].float() for x, c in zip(truth.unbind(-1), CLASSES, strict=True)]
    ninth = torch.arange(ROWS) * 3 // ROWS
    places = [PLACES[3 * row + column].split() for row in ninth for column in ninth]
    where = torch.tensor([[float(word in place) for word in PLACE_WORDS] for place in places])
    return [*there, where * there[0].amax(-1, keepdim=True)]


def settings(stage: str) -> dict[str, float]:
    """Of a stage, for `optimise`."""
    return {"steps": STEPS[stage], "rate": RATES[stage], "seed": SEEDS[stage]}


# --- pictures to tokens and back ----------------------------------------------------------------------------------


class Autoencoder(nn.Module):
    """The VQ autoencoder as it is trained, with a count of how often each code was taken of late, and a small head that
    reads colours from codes: by pixels alone, dark ones share a code, and come back all alike."""

    def __init__(self, model: JanusForConditionalGeneration):
        super().__init__()
        self.vq = model.model.vqmodel
        width, colours = self.vq.config.embed_dim, POINTS**2 * CLASSES[1]
        self.colours = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, colours))
        self.register_buffer("taken", torch.zeros(self.vq.quantize.num_embeddings))

    def forward(self, pixels: Tensor, free: bool = False, revive: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Pictures [N, 3, S, S] as they come back, logits of the colours at the points of every token [N, T, p, c],
        and how far latents of bare paper are from each other, and all from their codes.

        free: pictures are made of the latents themselves, and codes do not matter. revive: codes that nothing took
        since the last time become latents of these pictures.
        """
        vq = self.vq
        latent = vq.quant_conv(vq.encoder(pixels)).float()
        flat = F.normalize(latent.flatten(2).transpose(1, 2), dim=-1)
        if revive:
            self.revive(flat.detach())
        codes = F.normalize(vq.quantize.embedding.weight, dim=-1)
        with torch.autocast("cpu", enabled=False):  # rounded angles would choose among neighbours by chance
            tokens = (flat.detach() @ codes.detach().T).argmax(-1)
        self.taken += torch.bincount(tokens.flatten(), minlength=len(codes))
        chosen = codes[tokens]
        apart = bare(pixels, flat)
        if not free:
            apart = apart + distance(flat.detach(), chosen) + 0.25 * distance(flat, chosen.detach())
        passed = flat if free else flat + (chosen - flat).detach()  # the gradient goes past the choice
        made = vq.decoder(vq.post_quant_conv(passed.transpose(1, 2).reshape(latent.shape)))
        return made.float(), self.colours(passed).float().unflatten(-1, (POINTS**2, -1)), apart

    @torch.no_grad()
    def revive(self, latents: Tensor) -> None:
        """Put codes that were not taken where latents [N, T, C] are, each at the one that is farthest from all codes:
        most latents are of white paper, and have one."""
        codes, found = self.vq.quantize.embedding.weight, latents.flatten(0, 1)
        alive = F.normalize(codes[self.taken > 0], dim=-1)
        near = (found @ alive.T).amax(1) if len(alive) else found @ found[0]
        for code in (self.taken == 0).nonzero()[:, 0]:
            farthest = found[near.argmin()]
            codes[code] = farthest
            near = torch.maximum(near, found @ farthest)
        self.taken.zero_()


def distance(ours: Tensor, wanted: Tensor) -> Tensor:
    """Mean squared distance of vectors [..., C]."""
    return (ours - wanted).square().sum(-1).mean()


def bare(pixels: Tensor, latents: Tensor) -> Tensor:
    """How far the latents [N, T, C] of tokens that are nothing but paper are from their mean, of pictures [N, 3, S, S].

    Left alone, they tell what is elsewhere on the picture, take a third of all codes, and whoever is to draw such
    tokens learns hardly anything else.
    """
    paper = latents[(F.avg_pool2d(pixels, PATCH) == 1).all(1).flatten(1)]
    return distance(paper, paper.mean(0)) if len(paper) else latents.new_zeros(())


def unlike(made: Tensor, true: Tensor) -> Tensor:
    """How far pictures [N, 3, S, S] are from the true ones, seen sharp and at two smaller sizes; edges count more."""
    total = made.new_zeros(())
    for scale in (1, 2, 4):
        ours, wanted = (F.avg_pool2d(x, scale) for x in (made, true))
        contrast = F.max_pool2d(wanted, 3, 1, 1) + F.max_pool2d(-wanted, 3, 1, 1)  # largest less smallest around it
        weight = 1 + EDGES * contrast.amax(1, keepdim=True)
        total = total + ((ours - wanted).abs() * weight).mean()
    return total


def merged(codes: Tensor, taken: Tensor) -> Tensor:
    """Codes [n, C] of length 1, those alike replaced by the one that was `taken` [n] most often.

    Pictures lose nothing by it, and who is to draw need not guess which of several equals an encoder would take.
    """
    fewer, kept = codes.clone(), []
    for code in taken.argsort(descending=True, stable=True).tolist():
        near = codes[kept] @ codes[code]
        if (near > ALIKE).any():
            fewer[code] = codes[kept[int(near.argmax())]]
        else:
            kept.append(code)
    return fewer


def learn_to_encode(model: JanusForConditionalGeneration) -> None:
    """Teach the autoencoder pictures as they are drawn for sentences, some with more things."""
    network = Autoencoder(model).to(memory_format=torch.channels_last)

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        scenes = [pictures.anything(rng) for _ in range(8)]
        true, colours = pixels([draw(x) for x in scenes]), torch.stack([at_points(x)[..., 1:] for x in scenes])
        revive = step % REVIVED == 0 and FREE <= step < 0.8 * STEPS["vq"]
        used = (network.taken > 0).float().mean()
        if step == FREE:
            network.taken.zero_()  # all codes begin
        with half():
            made, read, apart = network(true.contiguous(memory_format=torch.channels_last), step < FREE, revive)
        wrong, misread = unlike(made, true), pointed(read, colours, CLASSES[1:])
        noise = F.mse_loss(made.clamp(-1, 1), true)
        parts = {"wrong": wrong, "misread": misread, "apart": apart, "codes used": used}
        parts["dB"] = 10 * torch.log10(4 / noise)
        return {"loss": wrong + MISREAD * misread + apart} | parts

    encoder, decoder = network.vq.encoder, network.vq.decoder
    kernels = matrices(encoder.down, encoder.mid, decoder.mid, decoder.up)
    optimise(WORK / "vq.pt", network, loss, **settings("vq"), muon=kernels)
    with torch.no_grad():  # the language model begins with the codes themselves, as long as noise would be
        codes = F.normalize(network.vq.quantize.embedding.weight, dim=-1)
        codes = merged(codes, network.taken)
        network.vq.quantize.embedding.weight.copy_(codes)
        model.model.generation_embeddings.weight.copy_(codes * codes.shape[1] ** 0.5)


# --- pictures to words --------------------------------------------------------------------------------------------


class Seeing(nn.Module):
    """Vision tower and aligner, and lines that read what is where from the output of either."""

    def __init__(self, model: JanusForConditionalGeneration):
        super().__init__()
        self.tower, self.aligner = model.model.vision_model, model.model.aligner
        widths = self.tower.config.hidden_size, WIDTH
        self.patch, self.aligned = (nn.Linear(width, POINTS**2 * sum(CLASSES)) for width in widths)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of shape and colour at points [n, patches, p, c] from the tower and from the aligner, and the
        aligner's output [n, patches, D]."""
        seen = self.tower(pixels).last_hidden_state
        told = self.aligner(seen)
        read = (self.patch(seen), self.aligned(told))
        return *(x.float().unflatten(-1, (POINTS**2, -1)) for x in read), told.float()


def learn_to_see(network: Seeing, model: JanusForConditionalGeneration, batches: Batches, stage: str) -> None:
    """Teach the vision tower what is where, and the aligner to pass it on; in stage "naming" by names, too, while the
    tower stays as it is."""
    network.tower.requires_grad_(stage != "naming")
    words = F.normalize(model.get_input_embeddings().weight.detach(), dim=-1)
    names = batches.names()

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        batch = batches.points(48, rng)
        with half(), sdpa_kernel(SDPBackend.MATH):  # for few patches the fused kernel's way back takes longer
            seen, told, output = network(batch["pixels"])
        parts = {"seen wrong": seen, "told wrong": told}
        parts = {name: pointed(logits, batch["truth"], CLASSES) for name, logits in parts.items()}
        if stage == "naming":
            parts["named wrong"] = 2 * named(output, batch["truth"], words, names)
        return {"loss": sum(parts.values())} | parts

    hidden = matrices(network.tower.encoder, network.aligner)
    optimise(WORK / f"{stage}.pt", network, loss, **settings(stage), muon=hidden)


def named(output: Tensor, truth: Tensor, words: Tensor, names: list[Tensor]) -> Tensor:
    """How badly the embeddings of the names of what is at a patch's points [n, patches, p, 2], and of no others, can be
    found in the aligner's output [n, patches, D]. words: embeddings of length 1; names: as `Batches.names`."""
    total = output.new_zeros(())
    for ids, there in zip(names, named_at(truth), strict=True):
        more = output.new_tensor(4.0)  # most names are not there
        total = total + F.binary_cross_entropy_with_logits(output @ words[ids].T - NAMED, there, pos_weight=more)
    return total


def learn_to_judge(model: JanusForConditionalGeneration, batches: Batches) -> None:
    """Teach the language model, by words alone, to say which of two words fits and whether that means yes or no.

    Learned with pictures only, yes and no stay at chance for thousands of steps.
    """
    network = nn.ModuleList([model.model.language_model, model.lm_head])

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        batch = batches.judgements(48, rng)
        with half():
            logits, tokens = said(model, model.get_input_embeddings()(batch["ids"]), batch)
        verdicts = torch.roll(tokens == SPECIAL.index(END), -1)  # the token before the end
        return {"loss": F.cross_entropy(logits, tokens), "right": share(logits, tokens, verdicts)}

    hidden = matrices(model.model.language_model.layers)
    optimise(WORK / "judging.pt", network, loss, **settings("judging"), muon=hidden)


# --- both tasks ---------------------------------------------------------------------------------------------------


def answers(model: JanusForConditionalGeneration, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits of the words to be learned [k, vocabulary] of `Batches.questions`, and their tokens [k]."""
    seen = model.model.aligner(model.model.vision_model(batch["pixels"]).last_hidden_state)
    return said(model, filled(model, batch["ids"], seen), batch)


def said(model: JanusForConditionalGeneration, embeds: Tensor, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits of the words to be learned [k, vocabulary], and their tokens [k], of embeddings [n, tokens, D]."""
    later = batch["learned"][:, 1:]
    hidden = model.model.language_model(inputs_embeds=embeds, use_cache=False).last_hidden_state
    return model.lm_head(hidden[:, :-1][later]).float(), batch["ids"][:, 1:][later]


def drawn(model: JanusForConditionalGeneration, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits of the image tokens of `Batches.wishes` [k, codes], and those tokens [k]."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False):  # as it is done outside of training
        tokens = encode_pictures(model, batch["pixels"])
    read = model.prepare_embeddings_for_image_generation(tokens[:, :-1])
    embeds = filled(model, batch["ids"], read)
    hidden = model.model.language_model(inputs_embeds=embeds, use_cache=False).last_hidden_state
    return model.model.generation_head(hidden[batch["learned"]]).float(), tokens.flatten()


def filled(model: JanusForConditionalGeneration, ids: Tensor, pictures: Tensor) -> Tensor:
    """Embeddings of token ids [n, tokens], where the placeholders are those of the pictures [n, T, D]."""
    embeds = model.get_input_embeddings()(ids).to(pictures.dtype)
    return embeds.masked_scatter((ids == PLACEHOLDER)[..., None], pictures.flatten(0, 1))


def share(logits: Tensor, tokens: Tensor, which: Tensor) -> Tensor:
    """Share of right tokens among some of them."""
    return (logits.argmax(-1) == tokens)[which].float().mean()


class Mix(NamedTuple):
    """What a step of learning both has."""

    questions: int  # pictures that are asked about
    wishes: int  # and that are drawn
    drawing: float  # weight of those beside answers
    twins: float  # share of the pictures asked about that have things which are alike


MIXES = {"both": Mix(10, 32, 1.0, 0.0), "twins": Mix(20, 12, 0.2, 0.2)}


def learn_both(model: JanusForConditionalGeneration, batches: Batches, stage: str) -> None:
    """Teach aligner and language model to answer, and the language model with its image parts to draw, as a stage of
    MIXES has it."""
    network, mix = model.model, MIXES[stage]
    network.vision_model.requires_grad_(False)
    network.vqmodel.requires_grad_(False)
    network.language_model.set_attn_implementation(FP32_ATTENTION)
    verdicts = torch.tensor([batches.encode(f" {word}")[0] for word in ("yes", "no")])
    weight = torch.ones(VOCABULARY)
    weight[verdicts] = HARD  # judging takes longest to learn

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        with half():
            asked = batches.questions(mix.questions, rng, mix.twins)
            words, tokens = (torch.cat(x) for x in zip(*(answers(model, batch) for batch in asked), strict=True))
            codes, painted = drawn(model, batches.wishes(mix.wishes, rng))
        said_wrong, drawn_wrong = F.cross_entropy(words, tokens, weight), F.cross_entropy(codes, painted)
        found = {"answers wrong": said_wrong, "drawings wrong": drawn_wrong}
        found["words right"] = share(words, tokens, torch.ones_like(tokens, dtype=torch.bool))
        if (judged := torch.isin(tokens, verdicts)).any():
            found["verdicts right"] = share(words, tokens, judged)
        white = painted.mode().values  # the most frequent token
        things = painted != white
        which = F.cross_entropy(codes[things].index_fill(-1, white, float("-inf")), painted[things])
        found |= {"things wrong": which, "things right": share(codes, painted, things)}
        return {"loss": said_wrong + mix.drawing * (DRAWING * drawn_wrong + THINGS * which)} | found

    parts = [network.language_model.layers, network.aligner, network.generation_aligner, network.generation_head]
    optimise(WORK / f"{stage}.pt", model, loss, **settings(stage), muon=matrices(*parts))


def main() -> None:
    """Train, save, and print the quality."""
    model, tokenizer = untrained(), make_tokenizer()
    batches = Batches(tokenizer)
    learn_to_encode(model)
    network = Seeing(model)
    learn_to_see(network, model, batches, "seeing")
    learn_to_judge(model, batches)
    learn_to_see(network, model, batches, "naming")
    for stage in MIXES:
        learn_both(model, batches, stage)
    save_tiny(TINY, model)
    tokenizer.save_pretrained(TINY)
    for name, settings in SETTINGS.items():
        (TINY / name).write_text(json.dumps(settings) + "\n", encoding="utf-8")
    print(quality.summary(quality.Reference(TINY)))


if __name__ == "__main__":
    main()
