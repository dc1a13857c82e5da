"""Rows to try, read from a file."""

import pandas as pd
import pytest
from served import TOY, denied, to_json

from avcg import Schema
from avcg.errors import DataError
from avcg.serve.examples import read_examples


class TestExamples:
    def test_a_file_is_read_as_the_schema_has_it(self, tmp_path):
        path = tmp_path / "rows.csv"
        denied().head(3).assign(name="x")[["name", "rating", "owns", "income", "months", "housing"]].to_csv(path)
        assert read_examples(path, TOY.schema) == to_json(denied().head(3))
        assert len(read_examples(path, TOY.schema, limit=2)) == 2

    def test_gaps_and_lower_case_are_understood(self, tmp_path):
        path = tmp_path / "rows.csv"
        path.write_text("income,months,owns,housing,rating\n,NA,true,,fair\n")
        found = read_examples(path, TOY.schema.allow_missing("income", "months", "housing"))
        assert found == [{"income": None, "months": None, "owns": True, "housing": None, "rating": "fair"}]

    def test_a_category_that_looks_like_a_gap_is_none(self, tmp_path):
        X = pd.DataFrame({"degree": ["None", "BA", None], "grade": pd.Series([1, 2, None], dtype=object), "x": 1.5})
        schema = Schema.infer(X).allow_missing("degree", "grade")
        X.to_csv(tmp_path / "rows.csv", index=False)
        X.astype({"grade": "Int64"}).to_parquet(tmp_path / "rows.parquet")
        for kind in ("csv", "parquet"):
            found = read_examples(tmp_path / f"rows.{kind}", schema)
            assert found == [
                {"degree": "None", "grade": 1, "x": 1.5},
                {"degree": "BA", "grade": 2, "x": 1.5},
                {"degree": None, "grade": None, "x": 1.5},
            ]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("income,months\n1,2\n", "lack column 'owns'"),
            ("income,months,owns,housing,rating\n", "no rows"),
            ("income,months,owns,housing,rating\nmuch,2,True,own,fair\n", "line 2: column 'income' should be a number"),
            ("income,months,owns,housing,rating\n,2,True,own,fair\n", "line 2: column 'income' is empty"),
            ("income,months,owns,housing,rating\n1,2,True,castle,fair\n", "line 2: column 'housing' is 'castle'"),
            ("income;months;owns;housing;rating\n1;2;True;own;fair\n", "separated by semicolons"),
        ],
    )
    def test_what_cannot_be_read_is_said(self, tmp_path, text, words):
        path = tmp_path / "rows.csv"
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            read_examples(path, TOY.schema)
        with pytest.raises(DataError, match="There is no file"):
            read_examples(tmp_path / "none.csv", TOY.schema)
