"""Training never sees what the model is examined on."""

from notebooks.new_case import data


def test_no_picture_is_in_both_sets():
    seen = {picture.tobytes() for picture in data.training_set().pictures}
    assert len(data.held_out().labels) == data.HELD_OUT
    assert not seen & {picture.tobytes() for picture in data.held_out().pictures}


def test_values_are_ink_from_0_to_1():
    pictures = data.training_set().pictures
    assert (pictures.min(), pictures.max()) == (0, 1)
