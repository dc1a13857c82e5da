"""Tried by `make dist` where only what was built is installed: fit, save, load, answer, serve, without the sources."""

import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import avcg
from avcg import AVCG, Classifier, Recipe, load, retrains, toys
from avcg.io.scorer import Scorer


def main() -> None:
    assert "site-packages" in avcg.__file__, avcg.__file__
    loans = toys.loans(n=300)
    model = Classifier(hidden=(8,), epochs=10).fit(loans.X, loans.y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        recourse = AVCG(retrains(model, loans.X, loans.y, n=6), recipe=Recipe(steps=60)).fit(loans.X)
    answers = recourse.generate(loans.X.head(5))
    with tempfile.TemporaryDirectory() as folder:
        recourse.save(folder, graphs=True)
        assert load(folder).generate(loans.X.head(5)).to_json() == answers.to_json()
        rows = loans.X.head(5).astype(object).to_dict("records")
        assert len(Scorer(folder).answer(rows)) == len(rows)
        from avcg.serve.app import create_app
        from avcg.serve.engine import open_engine

        assert create_app(open_engine(folder)[0]).title
    said = subprocess.run([Path(sys.executable).with_name("avcg"), "--version"], capture_output=True, text=True)
    assert said.stdout.strip() == f"avcg {avcg.__version__}", said
    subprocess.run([Path(sys.executable).with_name("avcg"), "--help"], check=True, stdout=subprocess.DEVNULL)
    print(f"avcg {avcg.__version__} from {Path(avcg.__file__).parent} works")


if __name__ == "__main__":
    main()
