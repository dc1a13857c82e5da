"""Speed figures, each beside what it is compared to, in the same run.

    python benchmarks/speed.py space
    python benchmarks/speed.py hypotheses [--device cuda]
    python benchmarks/speed.py retraining
    python benchmarks/speed.py train [--device cuda]
    python benchmarks/speed.py fit [--artifact DIR, to store it]
    python benchmarks/speed.py gpu --device cuda
    python benchmarks/speed.py generate [--artifact DIR]
    python benchmarks/speed.py certify [--artifact DIR]
    python benchmarks/speed.py scale [--artifact DIR] [--picture FILE.png]
    python benchmarks/speed.py stream [--artifact DIR] [--rows 1000000]
    python benchmarks/speed.py alone
    python benchmarks/speed.py searches
    python benchmarks/speed.py onnx [--artifact DIR]
    python benchmarks/speed.py serve [--artifact DIR] [--seconds 60]

Machines are noisy: every figure is a median of repeats, and the ratio is the one to quote.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable

import numpy as np
import torch
from speeds import answers, growth, models, pictures, rows, served, steps


def main() -> None:
    """Run what is named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs: dict[str, Callable[[argparse.Namespace], None]] = {
        "space": lambda o: rows.space(o.rows, o.repeats),
        "hypotheses": lambda o: models.hypotheses(o.device, o.repeats),
        "retraining": lambda o: models.retraining(o.device, o.repeats),
        "train": lambda o: steps.train(o.device, o.repeats),
        "fit": lambda o: steps.fit(o.artifact),
        "gpu": lambda o: pictures.gpu(o.device, o.repeats),
        "generate": lambda o: answers.generate(o.repeats, o.artifact),
        "certify": lambda o: answers.certify(o.repeats, o.artifact),
        "scale": lambda o: growth.scale(o.repeats, o.artifact, o.picture),
        "stream": lambda o: growth.stream(o.rows, o.artifact),
        "alone": lambda o: answers.alone(o.repeats),
        "searches": lambda o: answers.searches(o.repeats),
        "onnx": lambda o: served.onnx(o.repeats, o.artifact),
        "serve": lambda o: served.serve(o.seconds, o.artifact),
    }
    parser.add_argument("what", choices=list(runs))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=None, help="of torch; default: its own choice")
    parser.add_argument("--seconds", type=float, default=60.0, help="of asking the service")
    parser.add_argument("--artifact", default=None, help="an explainer of Adult saved with graphs; default: fit one")
    parser.add_argument("--picture", default=None, help="where to draw how cost grows")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    versions = f"Python {platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}"
    print(f"{versions}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    runs[options.what](options)


if __name__ == "__main__":
    main()
