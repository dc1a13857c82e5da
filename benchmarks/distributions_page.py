import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "distributions" / "records.jsonl"


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
