"""What cannot be said, by whom, how fast and from which folder: a sentence for each, at once, and nothing is broken."""

import json
import shutil

import numpy as np
import pytest

from notebooks.sambert_hifigan.pipeline import FP32_PROPERTIES, Synthesizer, synthesizer
from notebooks.sambert_hifigan.pipeline.frontend import Unspeakable
from tests.sambert_hifigan.small import NAMES, embedding


@pytest.mark.parametrize("text", ["", "   \n", "。，！", "……", "“”"])
def test_nothing_to_say(text, synthesizers):
    with pytest.raises(ValueError, match="There is nothing to say in"):
        synthesizers["plain"].stream(text, NAMES[0])


@pytest.mark.parametrize(("text", "name"), [("你好😀", "GRINNING FACE"), ("今日はいい天気", "HIRAGANA LETTER HA")])
def test_what_cannot_be_said_is_named(text, name, synthesizers):
    with pytest.raises(Unspeakable, match=name):
        synthesizers["plain"].stream(text, NAMES[0])


@pytest.mark.parametrize("text", [None, 3, b"abc", ["你好"]])
def test_no_text(text, synthesizers):
    with pytest.raises(ValueError, match=f"The text is {type(text).__name__}, not str"):
        synthesizers["plain"].stream(text, NAMES[0])


@pytest.mark.parametrize("speaker", ["Carl", "", "anna", "_", "mine.npy", None, embedding(0)], ids=str)
def test_an_unknown_speaker_is_told_the_names(speaker, synthesizers):
    with pytest.raises(ValueError, match="There is no speaker .* Choose one of: Anna, Bao.$"):
        synthesizers["plain"].stream("你好", speaker)


def test_an_unknown_speaker_of_embeddings(synthesizers):
    with pytest.raises(ValueError, match="no speaker 'Carl'. Choose one of: Anna, Bao; or give the .npy file of one."):
        synthesizers["se"].stream("你好", "Carl")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros(5), "has 5 numbers. A speaker's embedding of this voice has 6"),
        (np.ones((2, 6)), "has 12 numbers"),
        ([], "has 0 numbers"),
        (np.array([1, 2, np.nan, 4, 5, 6]), "not finite"),
        (np.array([1, 2, np.inf, 4, 5, 6]), "not finite"),
        (np.full(6, 1e300), "not finite"),
        (np.zeros(6), "only zeros"),
        (["a"] * 6, "holds no numbers"),
        (None, "has 1 numbers"),
    ],
    ids=str,
)
def test_an_embedding_that_is_none(given, message, synthesizers):
    with pytest.raises(ValueError, match=f"^The speaker's embedding .*{message}"):
        synthesizers["se"].stream("你好", given)


def test_a_file_that_holds_no_embedding(synthesizers, tmp_path):
    path = tmp_path / "mine.npy"
    with pytest.raises(ValueError, match="mine.npy cannot be read"):
        synthesizers["se"].stream("你好", path)
    for content in (b"", b"RIFF", b"\x93NUMPY\x01\x00"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="mine.npy cannot be read"):
            synthesizers["se"].stream("你好", path)
    np.save(path, np.array([{"a": 1}] * 6))  # objects: what numpy would have to unpickle is not opened
    with pytest.raises(ValueError, match="mine.npy cannot be read"):
        synthesizers["se"].stream("你好", path)
    np.save(path, np.ones(192))
    with pytest.raises(ValueError, match="mine.npy has 192 numbers"):
        synthesizers["se"].stream("你好", path)


@pytest.mark.parametrize("speed", [0, -1, 0.49, 2.01, float("nan"), float("inf"), "1", None])
def test_another_speed(speed, synthesizers):
    with pytest.raises(ValueError, match="The speed is .* Choose one from 0.5 to 2.0"):
        synthesizers["plain"].stream("你好", NAMES[0], speed)


@pytest.mark.parametrize("seed", [-1, 1.5, "a"])
def test_another_seed(seed, synthesizers):
    with pytest.raises(ValueError, match="The seed is .* Choose a whole number from 0"):
        synthesizers["plain"].stream("你好", NAMES[0], seed=seed)


def test_a_sentence_longer_than_the_model_has_positions_for(synthesizers):
    long = synthesizers["plain"].stream("你好。" + "好" * 80, NAMES[0])
    assert next(long).text == "你好。"
    with pytest.raises(ValueError, match="symbols, and the model positions for 120. Cut it into shorter ones"):
        next(long)
    assert len(synthesizers["plain"]("你好", NAMES[0])[0])  # it goes on


@pytest.mark.parametrize("value", [np.nan, -9, 1e9])
def test_lengths_that_make_no_sense(value, synthesizers, monkeypatch):
    monkeypatch.setattr(Synthesizer, "durations", lambda self, condition: np.full(condition.shape[1], value))
    with pytest.raises(ValueError, match="gives symbols no sensible lengths"):
        synthesizers["plain"]("你好", NAMES[0])


def test_a_folder_that_is_not_whole(irs, tmp_path):
    with pytest.raises(ValueError, match="voice.json cannot be read .* Name the folder of a converted voice"):
        Synthesizer(tmp_path)
    folder = shutil.copytree(irs["plain"], tmp_path / "voice")
    (folder / "decoder.bin").unlink()
    with pytest.raises(ValueError, match="decoder.xml is missing or damaged"):
        Synthesizer(folder)
    (folder / "encoder.xml").write_text("<net", encoding="utf-8")
    with pytest.raises(ValueError, match="encoder.xml is missing or damaged"):
        Synthesizer(folder)
    config = json.loads((folder / "voice.json").read_text(encoding="utf-8"))
    del config["hop"], config["tables"]
    (folder / "voice.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match="voice.json lacks hop, tables"):
        Synthesizer(folder)
    for content in ("{", "3", "[]"):
        (folder / "voice.json").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match="voice.json"):
            Synthesizer(folder)


def test_a_device_that_is_not_there(irs):
    with pytest.raises(ValueError, match="does not run on 'TPU'. There are: .*CPU"):
        Synthesizer(irs["plain"], "TPU", **FP32_PROPERTIES)


def test_what_a_thread_failed_at_does_not_stop_the_others(synthesizers, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(synthesizer, "stretch", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            synthesizers["plain"]("你好", NAMES[0])
    assert len(synthesizers["plain"]("你好", NAMES[0])[0])
