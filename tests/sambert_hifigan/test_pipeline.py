"""The pipeline says what the networks say in PyTorch, sentence after sentence, in the voice that is asked for."""

import shutil
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from notebooks.sambert_hifigan.network import acoustic
from notebooks.sambert_hifigan.network.acoustic import load_acoustic
from notebooks.sambert_hifigan.network.vocoder import load_vocoder
from notebooks.sambert_hifigan.pipeline import Synthesizer
from notebooks.sambert_hifigan.pipeline import synthesizer as pipeline
from tests.sambert_hifigan.small import KINDS, NAMES, RATE, embedding

TEXT = "今天天气很好，我们去公园吧。你好！"
every_kind = pytest.mark.parametrize("kind", KINDS)


@torch.inference_mode()
def in_pytorch(folder: Path, frontend, sentence: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """mel [M, F] and samples of a sentence by the voice named first."""
    network, vocoder = load_acoustic(folder / "am"), load_vocoder(folder / "voc")
    ids = frontend.ids(frontend.symbols(sentence, NAMES[0]))
    ling = torch.tensor([ids[stream] for stream in ("sy", "tone", "syllable_flag", "word_segment")]).T[None]
    speaker = torch.tensor(ids["speaker"])[None]
    if not hasattr(network, "spk_tokenizer"):
        speaker = torch.from_numpy(embedding(0)).expand(1, ling.shape[1], -1)
    decoded = network(ling, torch.tensor(ids["emotion"])[None], speaker).decoded
    mel, source, rng = network.finish(decoded), [], np.random.default_rng(seed)
    if vocoder.nsf:
        phase = rng.uniform(-np.pi, np.pi, (1, vocoder.sines, 1)).astype(np.float32)
        phase[:, 0] = 0
        noise = rng.standard_normal((1, vocoder.sines, mel.shape[2] * vocoder.hop), np.float32)
        source = [torch.from_numpy(phase), torch.from_numpy(noise)]
    return mel[0].numpy(), vocoder(mel, *source)[0, 0].numpy()


@every_kind
def test_a_sentence_is_said_as_in_pytorch(kind, checkpoints, synthesizers):
    synthesizer = synthesizers[kind]
    (spoken,) = synthesizer.stream("今天天气很好。", NAMES[0])
    mel, samples = in_pytorch(checkpoints[kind], synthesizer.frontend, "今天天气很好。")
    assert spoken.mel.shape == mel.shape and np.abs(spoken.mel - mel).max() < 1e-3 * np.abs(mel).max()
    assert spoken.samples.shape == samples.shape and np.abs(spoken.samples - samples).max() < 2e-3
    assert spoken.samples.dtype == np.float32 and samples.std() > 0.01


def test_sines_are_exact_where_the_vocoder_is_not(irs, synthesizers):
    exact, rough = synthesizers["nsf"], Synthesizer(irs["nsf"], INFERENCE_PRECISION_HINT="bf16", PERF_COUNT=True)
    given = {part for part, x in rough._requests.items() if x.get_compiled_model().get_property("PERF_COUNT") == "YES"}
    assert given == {"vocoder"}  # on processors that know no BF16, and round nothing, too
    mel = next(exact.stream(TEXT, NAMES[0])).mel.repeat(20, 1)  # rounding adds up
    ours, theirs = (x.vocoder_inputs(mel, np.random.default_rng(0))["source"] for x in (rough, exact))
    assert np.abs(ours - theirs).max() < 1e-6 < theirs.std()


def test_durations_become_frames_as_in_pytorch():
    logs = np.random.default_rng(0).uniform(0, 2.5, (40, 9)).astype(np.float32)
    for row in logs:
        durations, given = np.exp(row) - 1, torch.from_numpy(row[None])
        frames = pipeline.frames_of(durations)
        assert (frames == acoustic.frames_of(given)[0].numpy()).all()
        assert pipeline.band_of(durations, 3) == acoustic.band_of(given, 3)
        for ours, theirs in zip(
            pipeline.stretch(frames, 3), acoustic.stretch(acoustic.frames_of(given), 3), strict=True
        ):
            assert (ours == theirs[0].numpy()).all() and len(ours) % 3 == 0


@every_kind
def test_a_sentence_does_not_remember_the_one_before(kind, synthesizers):
    """Also not how long its sounds were: both have state of their own."""
    synthesizer = synthesizers[kind]
    first, second = synthesizer.stream(TEXT, NAMES[0])
    (alone,) = synthesizer.stream(second.text, NAMES[0])
    assert [first.text, second.text] == ["今天天气很好，我们去公园吧。", "你好！"]
    assert alone.durations == second.durations
    assert alone.mel.shape == second.mel.shape and np.abs(alone.mel - second.mel).max() < 1e-5


def test_the_whole_is_its_sentences(synthesizers):
    samples, rate = synthesizers["nsf"](TEXT, NAMES[0], seed=3)
    pieces = [spoken.samples for spoken in synthesizers["nsf"].stream(TEXT, NAMES[0], seed=3)]
    assert rate == RATE and len(pieces) == 2 and (samples == np.concatenate(pieces)).all()
    assert samples.ndim == 1 and samples.dtype == np.float32


def test_the_seed_is_that_of_the_noise(synthesizers):
    same, again, other = (synthesizers["nsf"]("你好", NAMES[0], seed=seed)[0] for seed in (1, 1, 2))
    assert (same == again).all() and np.abs(same - other).max() > 1e-3
    assert (synthesizers["plain"]("你好", NAMES[0], seed=1)[0] == synthesizers["plain"]("你好", NAMES[0])[0]).all()


def test_every_character_tells_its_frames(synthesizers):
    (spoken,) = synthesizers["plain"].stream("花儿开了，来看Wi!", NAMES[0])
    texts = [text for text, _ in spoken.durations if text not in ("#1", "#3", "#4")]
    assert texts == ["花儿", "开", "了", "来", "看", "W", "", "", "I"]  # the letter W has three syllables
    assert [text for text, _ in spoken.durations if text in ("#3", "#4")] == ["#3", "#4"]
    assert sum(frames for _, frames in spoken.durations) == spoken.mel.shape[1]
    assert len(spoken.samples) == spoken.mel.shape[1] * 24 and spoken.seconds == len(spoken.samples) / RATE


def test_a_character_lasts_as_long_as_its_two_sounds(synthesizers, monkeypatch):
    monkeypatch.setattr(pipeline, "frames_of", lambda durations: np.arange(1, len(durations) + 1))
    (spoken,) = synthesizers["plain"].stream("你好", NAMES[0])
    assert spoken.durations == [("你", 1 + 2), ("好", 3 + 4), ("#4", 5)]


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_speed_is_that_of_the_speech(speed, synthesizers):
    frames = [next(synthesizers["plain"].stream(TEXT, NAMES[0], x)).mel.shape[1] for x in (1.0, speed)]
    assert frames[0] / frames[1] == pytest.approx(speed, rel=0.15)


@every_kind
def test_another_speaker_sounds_different(kind, synthesizers):
    assert synthesizers[kind].speakers == NAMES
    one, two = (next(synthesizers[kind].stream("你好", name)).mel[:, :5] for name in NAMES)
    assert np.abs(one - two).max() > 1e-2


def test_a_speaker_is_a_name_a_file_or_an_embedding(synthesizers, tmp_path):
    path = tmp_path / "mine.npy"
    np.save(path, embedding(1)[None])
    given = [NAMES[1], str(path), path, embedding(1), embedding(1).tolist()]
    said = [synthesizers["se"]("你好", speaker)[0] for speaker in given]
    assert all((samples == said[0]).all() for samples in said[1:])


def test_a_novel_is_said_from_its_beginning(synthesizers):
    sentences = synthesizers["plain"].stream("今天天气很好，我们去公园吧。" * 8000, NAMES[0])
    assert [spoken.text for spoken in islice(sentences, 2)] == ["今天天气很好，我们去公园吧。"] * 2


def test_threads_may_share_it(synthesizers):
    texts, said = [TEXT, "大家早上好。谢谢！", "我爱北京。再见。"], {}
    expected = {text: synthesizers["plain"](text, NAMES[0])[0] for text in texts}

    def say(text: str) -> None:
        said[text] = synthesizers["plain"](text, NAMES[0])[0]

    threads = [threading.Thread(target=say, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(said[text], expected[text]) for text in texts)


def test_the_copied_folder_works_without_pytorch_and_the_repository(irs, tmp_path):
    shutil.copytree(Path(pipeline.__file__).parent, tmp_path / "speech", ignore=shutil.ignore_patterns("__pycache__"))
    program = (
        "import sys\nsys.path.insert(0, '.')\nfor name in ('torch', 'utils', 'notebooks'): sys.modules[name] = None\n"
        "from speech import Synthesizer\n"
        f"samples, rate = Synthesizer(sys.argv[1])('你好', {NAMES[0]!r})\nprint(len(samples), rate)"
    )
    command = [sys.executable, "-c", program, str(irs["plain"])]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    count, rate = map(int, run.stdout.split())
    assert rate == RATE and count > 0 and count % 24 == 0


@every_kind
def test_it_runs_on_every_device(kind, irs, device):
    Synthesizer(irs[kind], device)
