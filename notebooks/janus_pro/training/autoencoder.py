"""Stages "vq" and "white": the VQ autoencoder learns to encode pictures as tokens and to decode them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import JanusForConditionalGeneration

from notebooks.janus_pro import data
from notebooks.janus_pro.network import encode_pictures
from notebooks.janus_pro.training import settings
from notebooks.janus_pro.training.batches import at_points, to_pixels
from notebooks.janus_pro.training.settings import CLASSES, PATCH_PX, POINTS
from utils.drawn_world.scenes import draw
from utils.training.loop import autocast, matrices, optimise
from utils.training.vision_language import point_cross_entropy

BATCH = 8
EDGE_WEIGHT = 2.0  # additional weight of errors where black meets white
COLOUR_WEIGHT = 0.2  # of the loss of colours read from the codes
WHITE_WEIGHT = 5.0  # of white pixels that are too dark
WHITE_MARGIN = 0.05  # how far above white they should be, before they are clipped to it
CONTINUOUS_STEPS = 300  # without quantisation
RESTART_INTERVAL = 50  # steps after which unused codes are restarted
MAX_COSINE = 0.98  # codes that are more similar become one


class Autoencoder(nn.Module):
    """The VQ autoencoder during training, with a count of how often each code was used recently.

    An additional head reads colours from codes: with a loss of pixels alone, dark colours share a code, and are decoded
    to the same colour.
    """

    def __init__(self, model: JanusForConditionalGeneration):
        super().__init__()
        self.vq = model.model.vqmodel
        width, colours = self.vq.config.embed_dim, POINTS**2 * CLASSES[1]
        self.colours = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, colours))
        self.register_buffer("taken", torch.zeros(self.vq.quantize.num_embeddings))

    def forward(self, pixels: Tensor, continuous: bool = False, restart: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Decoded pictures [N, 3, S, S] of pictures [N, 3, S, S], logits of the colours at the points of every token
        [N, T, points, colours], and the loss of the latents: of the background, and of their distance to their codes.

        continuous: decode the latents without quantisation. restart: codes that were not used since the last restart
        become latents of these pictures.
        """
        vq = self.vq
        latents = vq.quant_conv(vq.encoder(pixels)).float()  # [N, C, rows, columns]
        flat = F.normalize(latents.flatten(2).transpose(1, 2), dim=-1)  # [N, T, C]
        if restart:
            self.restart_unused(flat.detach())
        codes = F.normalize(vq.quantize.embedding.weight, dim=-1)  # [codes, C]
        with torch.autocast("cpu", enabled=False):  # rounded cosines would choose among neighbours at random
            tokens = (flat.detach() @ codes.detach().T).argmax(-1)  # [N, T]
        self.taken += torch.bincount(tokens.flatten(), minlength=len(codes))
        chosen = codes[tokens]  # [N, T, C]
        latent_loss = background_loss(pixels, flat)
        if not continuous:
            latent_loss = latent_loss + distance(flat.detach(), chosen) + 0.25 * distance(flat, chosen.detach())
        passed = flat if continuous else flat + (chosen - flat).detach()  # straight-through gradient
        decoded = vq.decoder(vq.post_quant_conv(passed.transpose(1, 2).reshape(latents.shape)))  # [N, 3, S, S]
        colours = self.colours(passed).float().unflatten(-1, (POINTS**2, -1))  # [N, T, points, colours]
        return decoded.float(), colours, latent_loss

    @torch.no_grad()
    def restart_unused(self, latents: Tensor) -> None:
        """Move each unused code to the one of the latents [N, T, C] that is farthest from all codes.

        A random one would mostly be background, which has a code.
        """
        codes, candidates = self.vq.quantize.embedding.weight, latents.flatten(0, 1)  # [codes, C], [N * T, C]
        used = F.normalize(codes[self.taken > 0], dim=-1)
        nearest = (candidates @ used.T).amax(1) if len(used) else candidates @ candidates[0]  # [N * T], cosines
        for code in (self.taken == 0).nonzero()[:, 0]:
            farthest = candidates[nearest.argmin()]
            codes[code] = farthest
            nearest = torch.maximum(nearest, candidates @ farthest)
        self.taken.zero_()


def distance(vectors: Tensor, targets: Tensor) -> Tensor:
    """Mean squared distance of vectors [..., C]."""
    return (vectors - targets).square().sum(-1).mean()


def background_loss(pixels: Tensor, latents: Tensor) -> Tensor:
    """How far the latents [N, T, C] of tokens that show background alone are from their mean; pixels: [N, 3, S, S].

    Without this loss they encode what is elsewhere on the picture and use a third of all codes, and a model that draws
    them learns hardly anything else.
    """
    background = latents[(F.avg_pool2d(pixels, PATCH_PX) == 1).all(1).flatten(1)]  # [tokens, C]
    return distance(background, background.mean(0)) if len(background) else latents.new_zeros(())


def reconstruction_loss(decoded: Tensor, true: Tensor) -> Tensor:
    """Absolute error of pictures [N, 3, S, S], at full, half and quarter size; edges have a larger weight."""
    total = decoded.new_zeros(())
    for scale in (1, 2, 4):
        picture, target = F.avg_pool2d(decoded, scale), F.avg_pool2d(true, scale)
        contrast = F.max_pool2d(target, 3, 1, 1) + F.max_pool2d(-target, 3, 1, 1)  # maximum less minimum around it
        weight = 1 + EDGE_WEIGHT * contrast.amax(1, keepdim=True)  # [N, 1, S, S]
        total = total + ((picture - target).abs() * weight).mean()
    return total


def merge_similar_codes(codes: Tensor, taken: Tensor) -> Tensor:
    """Codes [n, C] of length 1, of which each is replaced by a similar one that was used (`taken` [n]) more often.

    Pictures do not change visibly, and a model that draws need not guess which of several similar codes is right.
    """
    merged, distinct = codes.clone(), []
    for code in taken.argsort(descending=True, stable=True).tolist():
        cosines = codes[distinct] @ codes[code]
        if (cosines > MAX_COSINE).any():
            merged[code] = codes[distinct[int(cosines.argmax())]]
        else:
            distinct.append(code)
    return merged


def train_autoencoder(model: JanusForConditionalGeneration) -> None:
    """Train the autoencoder on drawable scenes, some with more things than prompts ask for."""
    network = Autoencoder(model).to(memory_format=torch.channels_last)

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        # Draw a batch
        scenes = [data.any_drawable_scene(rng) for _ in range(BATCH)]
        true = to_pixels([draw(x) for x in scenes])  # [N, 3, S, S]
        colours = torch.stack([at_points(x)[..., 1:] for x in scenes])  # [N, T, points, 1]

        # Forward, quantised after the first steps
        restart = step % RESTART_INTERVAL == 0 and CONTINUOUS_STEPS <= step < 0.8 * settings.STAGES["vq"]["steps"]
        used = (network.taken > 0).float().mean()
        if step == CONTINUOUS_STEPS:
            network.taken.zero_()  # all codes are restarted
        with autocast():
            pixels = true.contiguous(memory_format=torch.channels_last)
            decoded, read, latent_loss = network(pixels, step < CONTINUOUS_STEPS, restart)

        # Losses, and what is printed
        reconstruction = reconstruction_loss(decoded, true)
        colour_loss = point_cross_entropy(read, colours, CLASSES[1:])
        noise = F.mse_loss(decoded.clamp(-1, 1), true)
        return {
            "loss": reconstruction + COLOUR_WEIGHT * colour_loss + latent_loss,
            "reconstruction": reconstruction,
            "colours": colour_loss,
            "latents": latent_loss,
            "codes used": used,
            "dB": 10 * torch.log10(4 / noise),
        }

    encoder, decoder = network.vq.encoder, network.vq.decoder
    kernels = matrices(encoder.down, encoder.mid, decoder.mid, decoder.up)
    optimise(settings.WORK / "vq.pt", network, loss, **settings.STAGES["vq"], muon=kernels)

    # The generation embeddings of the language model start as the codes, scaled to the length of random ones
    with torch.no_grad():
        codes = F.normalize(network.vq.quantize.embedding.weight, dim=-1)
        codes = merge_similar_codes(codes, network.taken)
        network.vq.quantize.embedding.weight.copy_(codes)
        model.model.generation_embeddings.weight.copy_(codes * codes.shape[1] ** 0.5)


def train_decoder(model: JanusForConditionalGeneration) -> None:
    """Train the decoder alone, on the tokens that the encoder has learned, to leave blank areas white.

    Its group normalization carries what is elsewhere on the picture into them. Pictures are clipped to white, so the
    decoder may and should exceed it there.
    """
    vq = model.model.vqmodel.eval()
    network = nn.ModuleList([vq.post_quant_conv, vq.decoder])

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        # Draw a batch, and encode it
        true = to_pixels([draw(data.any_drawable_scene(rng)) for _ in range(BATCH)])  # [N, 3, S, S]
        with torch.no_grad():
            tokens = encode_pictures(model, true)  # [N, T]

        # Forward
        with autocast():
            decoded = vq.decode(tokens).float()  # [N, 3, S, S]

        # Losses, and what is printed
        white = true == 1
        reconstruction = reconstruction_loss(decoded.clamp(max=1), true)
        darkness = F.relu(1 + WHITE_MARGIN - decoded)[white].mean()
        return {
            "loss": reconstruction + WHITE_WEIGHT * darkness,
            "reconstruction": reconstruction,
            "white, off by": 127.5 * F.relu(1 - decoded)[white].mean(),  # of 255
        }

    kernels = matrices(vq.decoder.mid, vq.decoder.up)
    optimise(settings.WORK / "white.pt", network, loss, **settings.STAGES["white"], muon=kernels)
