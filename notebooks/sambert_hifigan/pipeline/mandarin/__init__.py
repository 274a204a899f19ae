"""Reads Mandarin: `normalise` writes a text as it is said, and `Reader` finds its syllables with their spoken tones.

The pipelines that need it hold identical copies of this folder, which `python -m utils.speech.mandarin_copies` writes.
It needs pypinyin, jieba and cn2an.
"""

from .lexicon import LETTERS
from .normalise import normalise
from .readings import Reader, readable
from .syllables import Foot, Syllable, Word
