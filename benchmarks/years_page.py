from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "years"
