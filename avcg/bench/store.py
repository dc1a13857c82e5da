"""Results on disk: cells as they are finished, then all in one file. A killed run loses none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from avcg.errors import DataError
from avcg.images import Pixels

_DIGITS = "%.5g"
KEYS = ["dataset", "seed", "method", "epsilon"]


class Store:
    """The results of one protocol: ``rows.csv.gz``, ``manifest.json`` and, while a run lasts, ``cells/``.

    Args:
        folder: Where they lie; made when something is written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._cells = self.folder / "cells"

    def finished(self) -> set[tuple[str, int, str, float | None]]:
        """The cells there are, failed ones included."""
        if not self.folder.exists():
            return set()
        rows = self._read()
        if rows is None:
            return set()
        keys = rows[KEYS].drop_duplicates().itertuples(index=False)
        return {(str(d), int(s), str(m), None if pd.isna(e) else float(e)) for d, s, m, e in keys}

    def write(self, rows: pd.DataFrame, about: Mapping[str, Any]) -> None:
        """One finished cell, whole or not at all, with what the manifest says of it."""
        self._cells.mkdir(parents=True, exist_ok=True)
        first = rows.iloc[0]
        name = file_name(first["dataset"], first["seed"], first["method"], first["epsilon"])
        _replace(self._cells / f"{name}.json", json.dumps(dict(about)))
        partial = self._cells / f"{name}.partial"
        rows.to_csv(partial, index=False, float_format=_DIGITS, compression="gzip")
        partial.replace(self._cells / f"{name}.csv.gz")

    def write_pictures(self, name: str, factuals: Pixels, answers: Pixels, titles: Sequence[str]) -> None:
        """A few pictures and their answers, to be drawn later."""
        folder = self.folder / "pictures"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.partial").open("wb") as file:
            np.savez_compressed(file, factuals=factuals, answers=answers, titles=np.array(titles))
        (folder / f"{name}.partial").replace(folder / f"{name}.npz")

    def pictures(self) -> Iterator[tuple[str, Pixels, Pixels, list[str]]]:
        """Name, factuals, answers and titles of what was stored to be drawn."""
        for path in sorted(self.folder.glob("pictures/*.npz")):
            with np.load(path, allow_pickle=False) as stored:
                yield path.stem, stored["factuals"], stored["answers"], [str(title) for title in stored["titles"]]

    def compact(self, manifest: Mapping[str, Any]) -> None:
        """All cells into one file, and what is known of the run beside it."""
        rows = self._read()
        if rows is None:
            return
        cells = dict(self.manifest().get("cells", {}))
        cells.update({path.stem: json.loads(path.read_text()) for path in sorted(self._cells.glob("*.json"))})
        partial = self.folder / "rows.partial"
        order = rows.sort_values([*KEYS, "reading", "row"], kind="stable")
        order.to_csv(partial, index=False, float_format=_DIGITS, compression={"method": "gzip", "mtime": 0})
        partial.replace(self.folder / "rows.csv.gz")
        _replace(self.folder / "manifest.json", json.dumps({**manifest, "cells": cells}, indent=1, sort_keys=True))
        for path in self._cells.glob("*"):
            path.unlink()
        if self._cells.exists():
            self._cells.rmdir()

    def forget(self, keys: set[tuple[str, int, str, float | None]]) -> None:
        """Drop cells, so that they are run again."""
        rows = self._read()
        if rows is None:
            return
        found = [
            (str(d), int(s), str(m), None if pd.isna(e) else float(e)) in keys
            for d, s, m, e in rows[KEYS].itertuples(index=False)
        ]
        kept = rows[[not one for one in found]]
        partial = self.folder / "rows.partial"
        kept.to_csv(partial, index=False, float_format=_DIGITS, compression="gzip")
        partial.replace(self.folder / "rows.csv.gz")
        for path in self._cells.glob("*"):
            path.unlink()

    def rows(self) -> pd.DataFrame:
        """All results.

        Raises:
            DataError: If there are none.
        """
        found = self._read() if self.folder.exists() else None
        if found is None:
            raise DataError(f"There are no results in {self.folder}. Run the protocol first: avcg bench run FILE.")
        return found

    def manifest(self) -> dict[str, Any]:
        """What is known of the run."""
        path = self.folder / "manifest.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def _read(self) -> pd.DataFrame | None:
        whole = self.folder / "rows.csv.gz"
        paths = [*([whole] if whole.exists() else []), *sorted(self._cells.glob("*.csv.gz"))]
        if not paths:
            return None
        rows = pd.concat([pd.read_csv(path) for path in paths], ignore_index=True)
        # A column of ones reads as whole numbers where another run has fractions.
        measured = [name for name in rows.select_dtypes("number") if name not in ("seed", "row", "answer")]
        rows = rows.astype(dict.fromkeys(measured, float))
        return rows.drop_duplicates([*KEYS, "reading", "row", "answer"])


def file_name(dataset: str, seed: int, method: str, epsilon: float | None) -> str:
    """Of a cell, in letters that every file system takes."""
    plain = "".join(letter if letter.isalnum() else "_" for letter in method)
    return f"{dataset}-{seed}-{plain}" + ("" if epsilon is None or pd.isna(epsilon) else f"-{epsilon:g}")


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial-json")
    partial.write_text(text)
    partial.replace(path)
