"""The sounds that the notebook shows are understood by the speech recogniser."""

import numpy as np
import pytest

from notebooks.sambert_hifigan.measuring.quality import characters
from notebooks.sambert_hifigan.training import samples
from utils.speech import sound
from utils.speech.listening import Recogniser, prepare_recogniser

SOUND = np.zeros(16_000, np.float32)


def test_punctuation_does_not_count_but_homophones_do():
    assert samples.check(SOUND, "你好，世界！", lambda sound: "你好世界") == "你好世界"
    with pytest.raises(ValueError, match="The recogniser writes '你号世界' for '你好，世界！'"):
        samples.check(SOUND, "你好，世界！", lambda sound: "你号世界")


@pytest.mark.parametrize("arithmetic", ["int8", "float32"])
def test_the_committed_sound_says_its_sentences(arithmetic):
    recognise = Recogniser(prepare_recogniser(), arithmetic=arithmetic)
    speech = sound.read(samples.NOTEBOOK / "result.mp3", 16_000)
    said = "".join(text for text, _ in samples.SHOWCASE)
    assert characters(recognise(speech)) == characters(said)
    assert characters(recognise(speech[::-1].copy())) != characters(said)  # played backwards
