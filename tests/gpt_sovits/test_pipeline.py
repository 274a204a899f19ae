"""The pipeline says what the networks say in PyTorch, piece after piece, in the voice of the recording."""

import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from notebooks.gpt_sovits import convert
from notebooks.gpt_sovits.network import checkpoint as files
from notebooks.gpt_sovits.network.pytorch_cloner import TorchDecoder
from notebooks.gpt_sovits.pipeline import SPARE_TOKENS, SPEAKER_SIZE, TOKENS_PER_PHONEME, VoiceCloner
from notebooks.gpt_sovits.pipeline import cloner as pipeline
from notebooks.gpt_sovits.pipeline.cloner import MAX_TOKENS
from notebooks.gpt_sovits.pipeline.token_decoder import MIN_TOKENS, generate
from tests.gpt_sovits import small, standin
from utils.models import llm

WORDS = "The words that are said in the recording."  # 34 phones
RATE, HOP = 1000, 20
GREEDY = {"top_k": 1}

pytestmark = pytest.mark.usefixtures("frontend")


@pytest.fixture
def cloner(ir) -> VoiceCloner:
    return VoiceCloner(ir, **llm.FP32_PROPERTIES)


@torch.inference_mode()
def in_pytorch(checkpoint: Path, voice: np.ndarray, text: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and samples of one piece. voice: of 16 kHz."""
    network, bert = files.load_sovits(checkpoint / "sovits"), files.load_bert(checkpoint / "bert")
    heard = torch.from_numpy(np.concatenate([voice, np.zeros(9600, np.float32)]))
    states = files.load_hubert(checkpoint / "hubert")(heard[None]).last_hidden_state
    prompts = network.encode(states.transpose(1, 2))[0].numpy()
    features, phones, said = [], [], None
    for sentence in (WORDS, text):
        said = []
        for piece in standin.Frontend("v2").pieces(sentence, "auto"):
            said.append(piece.phones)
            if piece.language == "zh":
                ids = [small.WORDS.index(x) if x in small.WORDS else 1 for x in piece.text]
                made = bert(torch.tensor([[2, *ids, 3]])).last_hidden_state[0, 1:-1]
                features.append(made.repeat_interleave(torch.from_numpy(piece.word2ph), 0).T.numpy())
            else:
                features.append(np.zeros((small.WIDTH, len(piece.phones)), np.float32))
        phones += said
    said, rng = np.concatenate(said), np.random.default_rng((seed, 0))
    decoder, limit = TorchDecoder(files.load_t2s(checkpoint / "t2s")), SPARE_TOKENS + TOKENS_PER_PHONEME * len(said)
    given = np.concatenate(phones), np.concatenate(features, 1), prompts
    tokens = generate(decoder, *given, rng, **GREEDY, limit=limit)
    wav = torch.from_numpy(np.float32(pipeline.audio_io.resample_poly(voice, 1, 16)))[None]
    noise = 0.5 * torch.from_numpy(rng.standard_normal((1, 12, 2 * len(tokens)), np.float32))
    ge = network.style(network.spectrogram(wav))
    inputs = torch.from_numpy(tokens)[None], torch.from_numpy(said)[None], ge, noise
    return tokens, network(*inputs)[0, 0].numpy()


@pytest.mark.parametrize("text", ["Good morning to you.", "你好，今天天气很猫。OK."], ids=["en", "zh"])
def test_a_text_is_said_as_in_pytorch(text, checkpoint, cloner, voice):
    """One character is not known to BERT."""
    (spoken,) = cloner.stream(text, voice, WORDS, "auto", **GREEDY, split="none")
    tokens, samples = in_pytorch(checkpoint, voice[0], text)
    assert spoken.tokens.tolist() == tokens.tolist() and len(set(tokens.tolist())) > 1
    assert spoken.samples.shape == samples.shape and samples.std() > 0.01
    assert np.abs(spoken.samples - samples).max() < 1e-3 * np.abs(samples).max()
    assert spoken.samples.dtype == np.float32 and spoken.sample_rate == RATE


def test_what_was_said_before_does_not_matter(cloner, voice):
    """Neither to the cache of the decoder, nor to the places of its tokens, nor to what is drawn."""
    one, other = (list(cloner.stream(x, voice, WORDS)) for x in ("Yes. My turn now.", "A longer one. My turn now."))
    assert one[0].tokens.tolist() != other[0].tokens.tolist()
    assert one[1].tokens.tolist() == other[1].tokens.tolist()
    assert np.abs(one[1].samples - other[1].samples).max() < 1e-5
    again = list(cloner.stream("Yes. My turn now.", voice, WORDS))
    assert [x.tokens.tolist() for x in again] == [x.tokens.tolist() for x in one]


def test_the_whole_is_its_pieces_with_pauses_between(cloner, voice):
    samples, rate = cloner("Yes it is. … No it is not.", voice, WORDS, seed=3)
    pieces = list(cloner.stream("Yes it is. … No it is not.", voice, WORDS, seed=3))
    assert rate == RATE and (samples == np.concatenate([x.samples for x in pieces])).all()
    assert [x.text.strip(" …") for x in pieces] == ["Yes it is.", "No it is not."]
    first, last = (len(x.samples) - HOP * 2 * len(x.tokens) for x in pieces)
    assert (first, last) == (0.3 * RATE, 0) and not pieces[0].samples[-first:].any() and samples[-first:].any()


def test_the_seed_is_that_of_tokens_and_noise(cloner, voice):
    say = dict(text="Good morning to you.", recording=voice, words=WORDS)
    same, again, other = (next(cloner.stream(**say, seed=seed, top_p=1.0, temperature=1.0)) for seed in (1, 1, 2))
    assert (same.samples == again.samples).all() and same.tokens.tolist() != other.tokens.tolist()
    plain, noisy = (next(cloner.stream(**say, seed=seed, **GREEDY)) for seed in (1, 2))
    assert plain.tokens.tolist() == noisy.tokens.tolist() and np.abs(plain.samples - noisy.samples).max() > 1e-3


@pytest.mark.parametrize("speed", [0.5, 1.3, 2.0])
def test_speed_is_that_of_the_speech(speed, cloner, voice):
    (spoken,) = cloner.stream("Good morning to you.", voice, WORDS, speed=speed)
    assert len(spoken.samples) == HOP * (int(2 * len(spoken.tokens) / speed) + 1)


class Rigged:
    """A decoder of tokens whose logit of the end is another."""

    def __init__(self, decoder, end: float) -> None:
        self.decoder, self.end = decoder, end

    def prefill(self, *inputs) -> np.ndarray:
        return self.rigged(self.decoder.prefill(*inputs))

    def step(self, token: int) -> np.ndarray:
        return self.rigged(self.decoder.step(token))

    def rigged(self, logits: np.ndarray) -> np.ndarray:
        logits[-1] = self.end
        return logits


def test_no_piece_ends_before_it_has_begun(cloner, voice, monkeypatch):
    cloner._decoder = Rigged(cloner._decoder, 1e3)
    monkeypatch.setattr(cloner, "_sound", lambda *given: np.zeros(9, np.float32))
    assert [len(x.tokens) for x in cloner.stream("Yes it is. No.", voice, WORDS)] == [MIN_TOKENS, MIN_TOKENS]
    assert cloner.timings.notes == []


def test_a_voice_that_finds_no_end_is_stopped_and_told(cloner, voice):
    cloner._decoder = Rigged(cloner._decoder, -1e3)
    (spoken,) = cloner.stream("Yes it is.", voice, WORDS)
    limit = SPARE_TOKENS + TOKENS_PER_PHONEME * 8
    assert len(spoken.tokens) == limit < MAX_TOKENS
    (note,) = spoken.timings.notes
    assert note.startswith(f"The voice found no end of 'Yes it is.' and was stopped after {limit / 25:.0f} s.")


def test_timings_of_a_call(cloner, voice):
    samples, rate = cloner("你好你好。 Good morning.", voice, WORDS, "auto")
    timings = cloner.timings
    stages = {"recording", "frontend", "hubert", "style", "bert", "tokens", "synthesizer"}
    assert timings.pieces == 2 and set(timings.busy) == stages and min(timings.busy.values()) > 0
    assert timings.sound_s == len(samples) / rate
    assert timings.real_time_factor == timings.seconds / timings.sound_s
    assert timings.tokens_per_second == timings.tokens / timings.busy["tokens"] > 0
    assert timings.tokens == (len(samples) - 0.3 * rate) / (2 * HOP)


def test_words_that_were_not_said_are_told(cloner, voice):
    cloner._decoder = Rigged(cloner._decoder, 1e3)
    cloner("Good morning.", voice, WORDS * 4)
    (note,) = cloner.timings.notes
    assert note.startswith("The words are too many for 4.0 s of speech")
    cloner("Good morning.", voice, "Hello")
    (note,) = cloner.timings.notes
    assert note.startswith("The words are too few for 4.0 s of speech")


def test_without_bert_chinese_is_said_and_told(ir, cloner, voice, tmp_path):
    folder = tmp_path / "ir"
    shutil.copytree(ir, folder, ignore=shutil.ignore_patterns("*_bert_*", "tokenizer.json"))
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del settings["characters"]
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    plain = VoiceCloner(folder, **llm.FP32_PROPERTIES)
    ours, theirs = (x._features(standin.Frontend("v2").pieces("你好。", "zh")[0]) for x in (plain, cloner))
    assert ours.shape == theirs.shape == (small.WIDTH, 5) and not ours.any() and theirs.all(0).all()
    plain._decoder = Rigged(plain._decoder, 1e3)
    plain("你好你好。", voice, WORDS, "zh")
    assert [x.partition(":")[0] for x in plain.timings.notes] == [f"{folder} has no BERT"]
    plain("Good morning.", voice, WORDS)
    assert plain.timings.notes == []


@torch.inference_mode()
def test_v2pro_hears_the_speaker(ir, voice, tmp_path):
    folder, network = tmp_path / "ir", small.synthesizer(version="v2Pro", gin_channels=28)
    shutil.copytree(ir, folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {"version": "v2Pro", "style": 28}
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    for part in ("style", "synthesizer"):
        model = convert.CONVERT[part][1](network)
        pipeline.ov.save_model(model, folder / convert.xml(part), compress_to_fp16=False)
    cloner = VoiceCloner(folder, **llm.FP32_PROPERTIES)
    for wrong in (None, np.zeros(7), np.full(SPEAKER_SIZE, np.nan), np.zeros(SPEAKER_SIZE, int)):
        with pytest.raises(ValueError, match="v2Pro needs `speaker`, the 20480 numbers that ERes2NetV2 makes"):
            cloner("Good morning.", voice, WORDS, speaker=wrong)
    speakers = [small.drawn(SPEAKER_SIZE).numpy(), -small.drawn(SPEAKER_SIZE).numpy()]
    one, other = (cloner("Good morning.", voice, WORDS, **GREEDY, speaker=speaker)[0] for speaker in speakers)
    assert one.shape == other.shape and np.abs(one - other).max() > 1e-2


def test_what_decides_is_exact_where_the_rest_may_be_rounded(ir):
    rough = VoiceCloner(ir, PERF_COUNT=True)
    given = {part for part, x in rough._requests.items() if x.get_compiled_model().get_property("PERF_COUNT") == "YES"}
    assert given == {"hubert", "bert", "synthesizer"}


def test_threads_may_share_it(cloner, voice):
    texts, said = ["Yes it is. No it is not.", "Good morning to you.", "One two three. Four."], {}
    expected = {text: cloner(text, voice, WORDS)[0] for text in texts}

    def say(text: str) -> None:
        said[text] = cloner(text, voice, WORDS)[0]

    threads = [threading.Thread(target=say, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(said[text], expected[text]) for text in texts)


WRONG = {
    "no text": ({"text": " … "}, "The text has no words. Write what to say."),
    "text of another type": ({"text": None}, "The text has no words."),
    "no words of the recording": ({"words": ""}, "The text of the recording has no words. Write down what is said"),
    "language": ({"language": "fr"}, "Language 'fr' is not known."),
    "language of the recording": ({"recording_language": "fr"}, "Language 'fr' is not known."),
    "split": ({"split": "words"}, "Text is not cut by 'words'."),
    "unspeakable": ({"text": "Good. Look, ☃."}, "Nobody can say ☃."),
    "seed": ({"seed": -1}, "seed is -1: give a whole number from 0 on."),
    "seed of another type": ({"seed": 1.5}, "seed is 1.5"),
    "top_k": ({"top_k": 0}, "top_k is 0: give a whole number from 1 on."),
    "top_p": ({"top_p": 1.1}, "top_p is 1.1: give a number from 0.01 to 1."),
    "temperature": ({"temperature": float("nan")}, "temperature is nan: give a number from 0.01 to 10."),
    "speed": ({"speed": 3}, "speed is 3: give a number from 0.5 to 2.0."),
    "speaker": ({"speaker": np.zeros(SPEAKER_SIZE)}, "v2 takes no speaker's embedding: leave `speaker` out."),
    "recording": ({"recording": "nowhere.wav"}, "nowhere.wav is not there. Correct its name."),
    "positions": (
        {"text": "so " * 2000},
        "'so so so so so so so'... and the words of the recording have 4034 phonemes",
    ),
    "characters": ({"text": "你" * 63}, "is longer than 62 characters. Cut it into shorter sentences."),
}


@pytest.mark.parametrize("given", WRONG)
def test_what_is_wrong_is_told_at_once(given, cloner, voice):
    changes, sentence = WRONG[given]
    known = {"text": "Good morning.", "recording": voice, "words": WORDS} | changes
    with pytest.raises(ValueError, match=re.escape(sentence)):
        cloner.stream(**known)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("openvino_language_model.bin", None, "has no openvino_language_model.bin. Give the folder that"),
        ("tokenizer.json", None, "has no tokenizer.json. Give the folder that the conversion wrote."),
        ("tokenizer.json", "[]", "tokenizer.json cannot be read"),
        ("tokenizer.json", '{"model": {"vocab": {"[UNK]": 0}}}', "tokenizer.json lacks [CLS], [SEP]."),
        ("config.json", "nothing", "config.json cannot be read"),
        ("config.json", None, "cannot be read ([Errno 2] No such file or directory"),
        (
            "config.json",
            '{"version": "v2", "bert": 9}',
            "config.json lacks channels, positions, sample_rate.",
        ),
        ("openvino_style_model.xml", "<net>", "do not run on 'CPU'"),
    ],
)
def test_a_folder_that_is_not_whole_is_told(name, content, sentence, ir, tmp_path):
    folder = tmp_path / "ir"
    shutil.copytree(ir, folder)
    (folder / name).unlink() if content is None else (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(sentence)):
        VoiceCloner(folder)


def test_a_device_that_is_not_there_is_told(ir):
    with pytest.raises(ValueError, match="do not run on 'NPU.7'.*Choose one of: CPU"):
        VoiceCloner(ir, "NPU.7")


def test_copied_files_work_without_pytorch_and_the_repository(ir, voice, tmp_path):
    package = tmp_path / "voices"
    shutil.copytree(Path(pipeline.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(standin.__file__, package / "frontend.py")
    np.save(tmp_path / "voice.npy", voice[0])
    program = (
        "import sys\nsys.path.insert(0, '.')\n"
        "import numpy as np\nfrom voices import VoiceCloner\n"
        f"samples, rate = VoiceCloner(sys.argv[1])('Good day.', (np.load('voice.npy'), 16000), {WORDS!r})\n"
        "assert not {'torch', 'av', 'utils', 'notebooks'} & set(sys.modules)\nprint(len(samples), rate)"
    )
    command = [sys.executable, "-c", program, str(ir)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    count, rate = map(int, run.stdout.split())
    assert rate == RATE and count > 0 and count % (2 * HOP) == 0


def test_memory_does_not_grow_with_every_length_that_is_said(ir, voice):
    """Kernels for 24 more lengths, all kept, would take 150 MB, small as the network is."""
    cloner, speeds = VoiceCloner(ir), np.linspace(0.5, 2, 48)

    def grown(speeds) -> float:
        begin = psutil.Process().memory_info().rss
        for speed in speeds:
            cloner("Hello there.", voice, WORDS, speed=float(speed), **GREEDY)
        return (psutil.Process().memory_info().rss - begin) / 1e6

    grown(speeds[::2])
    assert grown(speeds[1::2]) < 60


def test_it_runs_on_every_device(ir, device):
    VoiceCloner(ir, device)
