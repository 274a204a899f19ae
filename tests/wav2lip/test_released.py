"""MODEL=released: files of the authors' layout, nearly empty, come from a server and speak.

The generator is narrow here, which takes less time; test_network.py has it at its full size.
"""

import dataclasses
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from notebooks.wav2lip import convert
from notebooks.wav2lip.network import S3FD, Wav2Lip
from notebooks.wav2lip.pipeline import LipSync, lip_sync
from notebooks.wav2lip.pipeline.detection import FaceDetector, overlap
from tests.servers import FaultServer
from tests.wav2lip.files import hopper, sound, tone
from tests.wav2lip.small import WIDTH
from utils import weights

COLOUR = 60, 120, 200  # what the generator draws


def empty(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A state dict of zeros (variances: ones) that takes no room in a file."""
    return {
        key: torch.full((), float(key.endswith("running_var")), dtype=x.dtype, device="cpu").expand(x.shape)
        for key, x in network.state_dict().items()
    }


def generator() -> dict:
    """As the authors save it: beside the weights, what training needs to go on."""
    with torch.device("meta"):
        state = empty(Wav2Lip(WIDTH))
    state["output_block.1.bias"] = torch.logit(torch.tensor(COLOUR) / 255 + 0.001)
    prefixed = {f"module.{key}": x for key, x in state.items()}
    return {"state_dict": prefixed, "optimizer": {"state": {}}, "global_step": 7, "global_epoch": 1}


def detector() -> dict:
    """Sees a face at every place of the finest scale."""
    with torch.device("meta"):
        state = empty(S3FD())
    for name in S3FD.HEADS:
        state[f"{name}_mbox_conf.bias"] = torch.tensor([9.0, 0.0])
    state["conv3_3_norm_mbox_conf.bias"] = torch.tensor([0.0, 0.0, 0.0, 5.0])
    return state


@pytest.fixture(scope="module")
def blazeface() -> Path:
    """The packaged detector, out of the usual folder of models."""
    return convert.prepare("face_detection")


@pytest.fixture(scope="module")
def served(blazeface, tmp_path_factory):
    """The declared checkpoints, at a local server instead of their own, and a folder of models of their own."""
    folder = tmp_path_factory.mktemp("released")
    files = {}
    for name, content in (("wav2lip_gan", generator()), ("s3fd", detector())):
        torch.save(content, folder / name)
        files[f"/{name}.pth"] = (folder / name).read_bytes()
    declared = weights.sources()
    with FaultServer(files) as server, pytest.MonkeyPatch.context() as patch:
        moved = {
            name: dataclasses.replace(declared[name], url=server.url(f"/{name}.pth"), sha256="", folder=folder)
            for name in ("wav2lip_gan", "s3fd")
        }
        patch.setattr(weights, "sources", lambda: declared | moved)
        patch.setattr(convert, "Wav2Lip", lambda: Wav2Lip(WIDTH))
        patch.setenv("MODELS_DIR", str(folder / "models"))
        patch.delenv("CHECKPOINT", raising=False)
        yield server


def test_every_checkpoint_is_declared_and_cannot_change():
    declared = weights.sources()
    names = {name for models in convert.CHECKPOINTS.values() for name in models.values()}
    for name in {*names, "wav2lip", "face_mesh"}:
        source = declared[name]
        assert source.folder.name == "wav2lip" and source.licence
        assert source.source == "committed" or re.fullmatch("[0-9a-f]{64}", source.sha256)
        assert "/main/" not in source.url


def test_the_released_generator_speaks(served, blazeface, tmp_path, monkeypatch):
    made = LipSync(convert.prepare("wav2lip", "released"), blazeface, INFERENCE_PRECISION_HINT="f32", batch=1)
    frames = []
    monkeypatch.setattr(lip_sync.Writer, "write", lambda self, picture: frames.append(picture))
    cv2.imwrite(str(tmp_path / "face.png"), hopper(120))
    made(tmp_path / "face.png", sound(tmp_path / "voice.wav", tone(0.2)), tmp_path / "result.mp4", paste="rectangle")
    drawn = (frames[0] == COLOUR).all(-1)
    assert len(frames) == 5 and 0.1 < drawn.mean() < 0.3
    assert (frames[0][~drawn] == hopper(120)[~drawn]).all()


def test_the_released_detector_sees(served):
    faces = FaceDetector(convert.prepare("face_detection", "released"))(np.zeros((32, 32, 3), np.uint8))
    assert faces[0] == pytest.approx([-6, -6, 10, 10, 1 / (1 + np.exp(-5))], abs=1e-3)
    assert len(faces) > 4 and all((overlap(face, faces, pixel=1) > 0.3).sum() == 1 for face in faces)
