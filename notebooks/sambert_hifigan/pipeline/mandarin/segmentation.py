"""Words of a Mandarin text, by jieba.

jieba's dictionary of frequencies is read from its package. The cache that jieba keeps in the temporary folder is
neither written nor read, since any user of the machine could have put a file there.
"""

from __future__ import annotations

import re
import warnings
from itertools import pairwise

from .syllables import Word

with warnings.catch_warnings():  # of its regular expressions, and of pkg_resources where that still exists
    warnings.simplefilter("ignore")
    import jieba


class Segmenter(jieba.Tokenizer):
    """jieba without its cache file and its messages."""

    def initialize(self, dictionary: str | None = None) -> None:
        """Read the dictionary of 350,000 words once, which takes about a second."""
        with self.lock:
            if not self.initialized:
                self.FREQ, self.total = self.gen_pfdict(self.get_dict_file())
                self.initialized = True

    def words(self, text: str) -> list[str]:
        """The words of a text. A Latin letter is a word of its own; spaces are left out."""
        pieces = re.findall(r"[A-Z]|[^A-Z\s]+", text)
        return [word for piece in pieces for word in self.cut(piece)]

    def halves(self, word: Word) -> list:
        """A word as a tree of its parts, such as 展览|馆 or 小|老虎; longer words are cut into pairs of syllables."""
        if len(word) < 3:
            return word
        texts = [syllable.text for syllable in word]
        frequency = self.FREQ.get
        later = len(word) == 3 and frequency("".join(texts[1:]), 0) > 2 * frequency("".join(texts[:2]), 0)
        cuts = [0, 1 if later else 2, *range(4, len(word), 2), len(word)]
        return [word[begin:end] for begin, end in pairwise(cuts)]
