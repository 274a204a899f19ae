"""The notebook's comparison with PyTorch: converted networks pass, another generator does not."""

from notebooks.wav2lip.measuring.parity import parity


def test_a_generator_with_other_weights_fails_and_the_other_networks_pass(generator_ir):
    rows = {row["stage"]: row["pass"] for row in parity(generator_ir)}
    assert rows == {"generator": False, "lip-sync expert": True, "face detection (S3FD)": True}
