"""The shape of the mouth for speech whose phonemes have known times (`utils.speech.espeak`), as training data.

The mouth follows a table of poses by phoneme.
"""

from __future__ import annotations

import numpy as np

from utils.speech.espeak import PAUSE

# Voices and variants of espeak-ng, for `synthesise(text, *voice)`: American, not muffled
VOICES = tuple(
    ("en-us", variant)
    for variant in (
        "m1 m2 m3 m4 m6 m7 m8 f1 f2 f3 f4 Alicia Andrea Andy Annie Denis Gene Jacky Lee Mario Michael adam anika aunty "
        "belinda benjamin boris david ed edward grandma grandpa iven john klatt klatt2 klatt4 klatt5 linda max mike2 "
        "norbert pablo paul quincy rob robert steph travis victor zac"
    ).split()
)
HELD_OUT_VOICES = tuple(("en-us", variant) for variant in "m5 shelby klatt3 Alex".split())  # never trained on

FORMANTS = range(9)  # that a voice file numbers; 1 to 3 tell vowels apart

LEAD_S = 0.06  # by which the lips are ahead of the sound
SMOOTHING_S = 0.12  # length of the window over the poses
CLOSING_S = 0.06  # from open to closed lips
MIN_CLOSURE_S = 0.04  # one frame at 25 frames a second, so that no closure falls between two frames
GRID_STEP_S = 0.005  # of the grid on which poses are smoothed

# (opening, width, visibility): opening 0 closed .. 1 wide; width -1 rounded .. 1 spread; visibility of teeth or tongue
# 0 .. 1. Two poses: the first half of the phoneme and the second.
_REST = (0.03, 0.0, 0.0)
_LIPS, _LIP_TEETH = (0.0, 0.0, 0.0), (0.06, 0.1, 0.7)
_TONGUE_TIP, _TONGUE_BACK, _DENTAL = (0.22, 0.1, 0.5), (0.3, 0.0, 0.2), (0.2, 0.1, 0.9)
_SIBILANT, _HUSHING = (0.14, 0.35, 1.0), (0.22, -0.4, 0.9)
_R, _W, _J, _H, _DARK_L = (0.25, -0.4, 0.3), (0.1, -0.95, 0.0), (0.22, 0.5, 0.5), (0.35, 0.0, 0.2), (0.28, -0.1, 0.5)
_SCHWA, _ER = (0.35, 0.0, 0.2), (0.38, -0.3, 0.3)
_WIDE, _A, _UH, _E = (1.0, 0.1, 0.2), (0.9, 0.35, 0.4), (0.68, 0.1, 0.2), (0.6, 0.4, 0.4)
_I_LAX, _I = (0.4, 0.5, 0.5), (0.3, 0.85, 0.6)
_O_OPEN, _O, _U_LAX, _U = (0.62, -0.55, 0.1), (0.45, -0.75, 0.0), (0.28, -0.65, 0.0), (0.18, -0.9, 0.0)

POSES: dict[str, tuple[tuple[float, float, float], ...]] = {
    PAUSE: (_REST,),
    **dict.fromkeys(["p", "b", "m", "m-"], (_LIPS,)),
    **dict.fromkeys(["f", "v"], (_LIP_TEETH,)),
    **dict.fromkeys(["t", "t#", "t2", "d", "n", "n-", "l"], (_TONGUE_TIP,)),
    **dict.fromkeys(["k", "g", "N", "x"], (_TONGUE_BACK,)),
    **dict.fromkeys(["T", "D"], (_DENTAL,)),
    **dict.fromkeys(["s", "z"], (_SIBILANT,)),
    **dict.fromkeys(["S", "Z", "tS", "dZ"], (_HUSHING,)),
    **dict.fromkeys(["r", "r-"], (_R,)),
    **dict.fromkeys(["h", "?"], (_H,)),
    **dict.fromkeys(["j", ";"], (_J,)),  # ; is the glide of "few"
    "w": (_W,),
    **dict.fromkeys(["@", "@-", "@2"], (_SCHWA,)),
    **dict.fromkeys(["3", "3:"], (_ER,)),
    **dict.fromkeys(["A:", "0", "aa"], (_WIDE,)),
    **dict.fromkeys(["a", "a#"], (_A,)),
    "V": (_UH,),
    "E": (_E,),
    **dict.fromkeys(["I", "I2", "I#"], (_I_LAX,)),
    **dict.fromkeys(["i", "i:"], (_I,)),
    **dict.fromkeys(["O:", "O2"], (_O_OPEN,)),
    "U": (_U_LAX,),
    "u:": (_U,),
    "aI": (_WIDE, _I_LAX),
    "aI3": (_WIDE, _ER),
    "aU": (_WIDE, _U_LAX),
    "eI": (_E, _I),
    "OI": (_O_OPEN, _I_LAX),
    "oU": (_O, _U),
    "A@": (_WIDE, _R),
    "O@": (_O_OPEN, _R),
    "o@": (_O, _R),
    "e@": (_E, _R),
    "U@": (_U_LAX, _R),
    **dict.fromkeys(["i@", "i@3"], (_I, _R)),
    "@L": (_DARK_L,),
}


def composed_voice(rng: np.random.Generator) -> str:
    """Settings of a random voice for `synthesise`: resonances, pitch, and loudness of voiced sounds and consonants.

    Frequencies, heights and widths of formants are in percent of the default voice's, and so are the loudnesses;
    pitches are in Hz. A fifth of the voices come from Klatt's formant synthesizer.
    """
    vocal_tract = rng.uniform(85, 120)
    lines = []
    for number in FORMANTS:
        frequency = np.clip(rng.normal(vocal_tract, 12), 60, 150) if number else 100
        lines.append(f"formant {number} {frequency:.0f} {rng.integers(70, 150)} {rng.integers(80, 180)}")
    lowest = rng.integers(60, 200)
    lines += [
        f"pitch {lowest} {lowest + rng.integers(10, 110)}",
        f"voicing {rng.integers(40, 200)}",
        f"consonants {rng.integers(60, 190)} {rng.integers(60, 190)}",
        f"flutter {rng.integers(9)}",
        f"roughness {rng.integers(4)}",
    ]
    if rng.random() < 0.2:
        lines.append(f"klatt {rng.choice([1, 2, 4, 5])}")  # 3 is held out
    return "\n".join(lines)


def articulation(phonemes: list[tuple[str, float, float]], times: np.ndarray) -> np.ndarray:
    """The mouth at `times` (s, [n]): float32 [n, 3] = opening 0..1, width -1 rounded..1 spread, visibility 0..1.

    A Hann window of 120 ms smooths the poses, because neighbouring phonemes share the lips (coarticulation: Cohen and
    Massaro 1993, "Modeling coarticulation in synthetic visual speech"). Closed lips stay closed. The mouth is 60 ms
    AHEAD of the sound: in running speech the lips lead the audible phoneme by -40 to 200 ms (Schwartz and Savariaux
    2014, doi:10.1371/journal.pcbi.1003743). Before and after the speech the lips rest. Raises ValueError for a phoneme
    that is not in POSES.
    """
    if not phonemes:
        raise ValueError("There are no phonemes: give those of a Speech.")
    start, end = phonemes[0][1] - 2 * SMOOTHING_S, phonemes[-1][2] + 2 * SMOOTHING_S
    grid = np.arange(start, end, GRID_STEP_S)
    targets = np.tile(np.float64(_REST), (len(grid), 1))  # [points, 3]
    for symbol, begin, stop in phonemes:
        poses = _poses(symbol)
        edges = np.linspace(begin, stop, len(poses) + 1)
        for pose, left, right in zip(poses, edges, edges[1:], strict=False):
            targets[(grid >= left) & (grid < right)] = pose
    window = np.hanning(round(SMOOTHING_S / GRID_STEP_S) + 1)
    padded = np.pad(targets, ((len(window) // 2,) * 2, (0, 0)), mode="edge")
    mouth = np.stack([np.convolve(channel, window / window.sum(), "valid") for channel in padded.T], 1)  # [points, 3]
    for target, begin, stop in sorted(_closures(phonemes), reverse=True):  # closed lips last: they override f and v
        half = max(stop - begin, MIN_CLOSURE_S) / 2
        away = np.clip((np.abs(grid - (begin + stop) / 2) - half) / CLOSING_S, 0, 1)  # 0 in the closure, 1 outside
        share = (1 + np.cos(np.pi * away)) / 2
        mouth[:, 0] += share * (target - mouth[:, 0])
    ahead = np.asarray(times) + LEAD_S
    return np.stack([np.interp(ahead, grid, channel) for channel in mouth.T], 1).astype(np.float32)


def phoneme_class(symbol: str) -> str:
    """ "closed" (lips together), "round", "open" or "other", by the phoneme's poses. ValueError if it is unknown."""
    poses = _poses(symbol)
    if all(opening == 0 for opening, _, _ in poses):
        return "closed"
    if all(width <= -0.5 for _, width, _ in poses):
        return "round"
    return "open" if all(opening >= 0.6 for opening, _, _ in poses) else "other"


def phoneme_classes(phonemes: list[tuple[str, float, float]], times: np.ndarray) -> list[str]:
    """The class of the phoneme that shapes the mouth at each of `times` (s, [n]); that of a pause outside speech."""
    symbols = [PAUSE, *(symbol for symbol, _, _ in phonemes), PAUSE]
    bounds = [begin for _, begin, _ in phonemes] + [phonemes[-1][2]]
    return [phoneme_class(symbols[place]) for place in np.searchsorted(bounds, np.asarray(times) + LEAD_S, "right")]


def _poses(symbol: str) -> tuple[tuple[float, float, float], ...]:
    if symbol not in POSES:
        raise ValueError(f"The phoneme {symbol!r} has no pose: add one to POSES in speech.py, or use an English voice.")
    return POSES[symbol]


def _closures(phonemes: list[tuple[str, float, float]]) -> list[tuple[float, float, float]]:
    """(opening, start, end) of the phonemes that close the lips, or nearly."""
    closing = [(POSES[symbol][0], begin, end) for symbol, begin, end in phonemes]
    return [(pose[0], begin, end) for pose, begin, end in closing if pose in (_LIPS, _LIP_TEETH)]
