"""Results on disk: a file for each cell as it is finished, then one file for all. A killed run loses no cell."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from avcg.bench.protocol import plain_name
from avcg.errors import DataError
from avcg.space.images import Pixels

_DIGITS = "%.5g"
KEYS = ["dataset", "seed", "method", "epsilon"]
Key = tuple[str, int, str, float | None]  # the values of KEYS for a cell; None: the method does not depend on epsilon


class Store:
    """The results of one protocol: ``rows.csv.gz``, ``manifest.json`` and, while a run lasts, ``cells/``.

    Args:
        folder: Folder of the results; it is created when something is written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._cells = self.folder / "cells"

    def finished(self) -> set[Key]:
        """Keys of the stored cells, including failed ones."""
        rows = self._read(self._files())
        return set() if rows is None else set(keys_of(rows))

    def about(self) -> dict[str, Any]:
        """Details of each cell, such as its device and duration, by `file_name`."""
        details = dict(self.manifest().get("cells", {}))
        details.update({path.stem: json.loads(path.read_text()) for path in sorted(self._cells.glob("*.json"))})
        return details

    def write(self, key: Key, rows: pd.DataFrame, about: Mapping[str, Any]) -> None:
        """Write a finished cell with its details, completely or not at all.

        Args:
            key: Key of the cell.
            rows: Metrics, one line for each answer.
            about: Details of the cell, as values of JSON.
        """
        self._cells.mkdir(parents=True, exist_ok=True)
        keyed = rows.assign(**{name: np.nan if value is None else value for name, value in zip(KEYS, key, strict=True)})
        ordered = keyed[[*KEYS, *(name for name in rows if name not in KEYS)]]
        _replace(self._cells / f"{file_name(key)}.json", json.dumps(dict(about)))
        partial = self._cells / f"{file_name(key)}.partial"
        ordered.to_csv(partial, index=False, float_format=_DIGITS, compression="gzip")
        partial.replace(self._cells / f"{file_name(key)}.csv.gz")

    def write_pictures(self, name: str, heading: str, factuals: Pixels, answers: Pixels, titles: Sequence[str]) -> None:
        """Write images and their answers for a figure.

        Args:
            name: Name of the file, without its suffix.
            heading: Title of the figure.
            factuals: (N, H, W) or (N, H, W, 3) images.
            answers: Answers of the same shape.
            titles: Title of each image.
        """
        folder = self.folder / "pictures"
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{name}.partial"
        with partial.open("wb") as file:
            np.savez_compressed(
                file, factuals=factuals, answers=answers, titles=np.array(titles), heading=np.array(heading)
            )
        partial.replace(folder / f"{name}.npz")

    def pictures(self) -> Iterator[tuple[str, str, Pixels, Pixels, list[str]]]:
        """Name, heading, factuals, answers and titles of each stored figure; see `write_pictures`."""
        for path in sorted(self.folder.glob("pictures/*.npz")):
            with np.load(path, allow_pickle=False) as stored:
                titles = [str(title) for title in stored["titles"]]
                yield path.stem, str(stored["heading"]), stored["factuals"], stored["answers"], titles

    def compact(self, manifest: Mapping[str, Any]) -> None:
        """Combine all cells into one file, and write the manifest with their details.

        Args:
            manifest: Details of the run, as values of JSON.
        """
        files = self._files()
        rows = self._read(files)
        if rows is not None:
            self._combine(rows, {**manifest, "cells": self.about()}, files)

    def forget(self, keys: Iterable[Key]) -> None:
        """Remove cells, so that they are run again.

        Args:
            keys: Keys of the cells.
        """
        files, removed = self._files(), set(keys)
        rows = self._read(files)
        if rows is None or not removed:
            return
        names = {file_name(key) for key in removed}
        cells = {name: about for name, about in self.about().items() if name not in names}
        kept = rows[[key not in removed for key in keys_of(rows)]]
        self._combine(kept, {**self.manifest(), "cells": cells}, files)

    def rows(self) -> pd.DataFrame:
        """All results, one line for each answer.

        Raises:
            DataError: If there are no results.
        """
        rows = self._read(self._files())
        if rows is None:
            raise DataError(f"There are no results in {self.folder}. Run the protocol first: avcg bench run FILE.")
        return rows

    def manifest(self) -> dict[str, Any]:
        """Details of the last run; empty if there was none."""
        path = self.folder / "manifest.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def _files(self) -> list[Path]:
        combined = self.folder / "rows.csv.gz"
        return [*sorted(self._cells.glob("*.csv.gz")), *([combined] if combined.exists() else [])]

    def _read(self, files: Sequence[Path]) -> pd.DataFrame | None:
        if not files:
            return None
        rows = pd.concat([pd.read_csv(path) for path in files], ignore_index=True)
        # A metric whose values are all whole numbers in one file is read as integers, and must be floats as in others.
        measured = [name for name in rows.select_dtypes("number") if name not in ("seed", "row", "answer")]
        return rows.astype(dict.fromkeys(measured, float)).drop_duplicates([*KEYS, "reading", "row", "answer"])

    def _combine(self, rows: pd.DataFrame, manifest: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Write all rows to one file, and only then remove the files of the cells that were read."""
        partial = self.folder / "rows.partial"
        ordered = rows.sort_values([*KEYS, "reading", "row", "answer"], kind="stable")
        ordered.to_csv(partial, index=False, float_format=_DIGITS, compression={"method": "gzip", "mtime": 0})
        partial.replace(self.folder / "rows.csv.gz")
        _replace(self.folder / "manifest.json", json.dumps(dict(manifest), indent=1, sort_keys=True))
        for path in files:
            if path.parent == self._cells:
                path.unlink(missing_ok=True)
                path.with_name(path.name.removesuffix(".csv.gz") + ".json").unlink(missing_ok=True)


def keys_of(rows: pd.DataFrame) -> list[Key]:
    """The key of the cell that each line belongs to."""
    return [
        (str(dataset), int(seed), str(method), None if pd.isna(epsilon) else float(epsilon))
        for dataset, seed, method, epsilon in rows[KEYS].itertuples(index=False)
    ]


def file_name(key: Key) -> str:
    """The name of the files of a cell, without suffix; it is valid in every file system."""
    dataset, seed, method, epsilon = key
    return f"{plain_name(dataset)}-{seed}-{plain_name(method)}" + ("" if epsilon is None else f"-{epsilon:g}")


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial-json")
    partial.write_text(text)
    partial.replace(path)
