import numpy as np
import pytest

from keras_vit.data.table import read_table


@pytest.mark.parametrize(
    "text", ["path,age\na.jpg, 41\n\nsub/b.jpg,38.5\n", "\ufeffpath;age\na.jpg;41\nsub/b.jpg;38.5"]
)
def test_text_with_commas_and_semicolons(text, tmp_path):
    file = tmp_path / "people.csv"
    file.write_text(text, encoding="utf-8")
    table = read_table(file)
    assert table.paths == (tmp_path / "a.jpg", tmp_path / "sub" / "b.jpg")
    assert table.columns == {"age": ["41", "38.5"]}
    assert table.numbers("age") == [41, 38.5]


def test_parquet(tmp_path):
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    file = tmp_path / "people.parquet"
    parquet.write_table(pyarrow.table({"path": ["a.jpg", "/b.jpg"], "age": [41, 38]}), file)
    table = read_table(file)
    assert [str(path) for path in table.paths] == [str(tmp_path / "a.jpg"), "/b.jpg"]
    assert table.numbers("age") == [41, 38]
    file.write_text("no table")
    with pytest.raises(ValueError, match="cannot be read as a Parquet file"):
        read_table(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty. The first line must have the names of the columns"),
        ("file,age\na.jpg,1\n", "has no column 'path'. Name the column of the images so. Columns: file, age"),
        ("path,age\n", "has no rows"),
        ("path,age\na.jpg,1,2\n", r"row 1 \(a\.jpg\) has 3 cells, but there are 2 columns. A cell that contains ','"),
        ("path,age\n,1\n", "row 1: there is no path"),
        ("path,path\na,b\n", "names of the columns must be different"),
        (b"path,age\n\xff,1\n", "is not a table of text in UTF-8"),
    ],
)
def test_what_is_no_table_is_refused(text, message, tmp_path):
    file = tmp_path / "people.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        read_table(file)


@pytest.mark.parametrize("value", ["old", "", "nan", "inf"])
def test_what_is_no_finite_number_is_nan(value, tmp_path):
    (tmp_path / "people.csv").write_text(f"path,age\na.jpg,41\nb.jpg,{value}\n")
    table = read_table(tmp_path / "people.csv")
    np.testing.assert_array_equal(table.numbers("age"), [41, np.nan])
    assert table.place(1) == f"{tmp_path / 'people.csv'}, row 2 (b.jpg)"
    with pytest.raises(ValueError, match=r"has no column 'ages'\. Did you mean 'age'"):
        table.column("ages")
