from pathlib import Path

import pytest
from minimalloc import Instance, instance_text, read_instance

from byoc.errors import InputError

TEXT = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "input.12.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_read_and_written_again(tmp_path: Path) -> None:
    instance = read_instance(written(tmp_path, TEXT))

    assert instance.names == ("b1", "b2", "b3", "b4", "b5")
    assert instance.lower == (0, 3, 0, 9, 0)
    assert instance.upper == (3, 9, 9, 21, 21)
    assert instance.pressure == 12
    assert instance_text(instance) == TEXT


def test_offsets_are_a_column_more(tmp_path: Path) -> None:
    instance = Instance(("a",), (0,), (2,), (8,))

    text = instance_text(instance, [16])

    assert text == "id,lower,upper,size,offset\na,0,2,8,16\n"
    assert read_instance(written(tmp_path, text)) == instance


def test_a_file_without_lines_is_an_empty_instance(tmp_path: Path) -> None:
    instance = read_instance(written(tmp_path, "id,lower,upper,size\n"))

    assert instance == Instance((), (), (), ())
    assert instance.pressure == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,lower,size\n", "there is no column upper"),
        ("id,lower,upper,size,gaps\n", "the column gaps is not supported"),
        ("id,lower,upper,size\na,0,x,1\n", ":2: upper is 'x', not a whole number"),
        ("id,lower,upper,size\na,0,1\n", ":2: size is None, not a whole number"),
        ("id,lower,upper,size\na,0,1,1\nb,3,3,1\n", ":3: upper is 3, but has to be above lower"),
        ("id,lower,upper,size\na,0,1,-1\n", "size is -1, but cannot be negative"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        read_instance(written(tmp_path, text))

    assert says in str(refused.value)
    assert "input.12.csv" in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_instance(tmp_path / "none.csv")
