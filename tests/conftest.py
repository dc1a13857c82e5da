"""Rules for every test: nothing global is touched, and what was skipped for want of data is said."""

import os
import random

import numpy as np
import pytest
import sklearn.model_selection  # noqa: F401  importing it draws from Python's global stream, which is not our doing
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "avcg", deadline=None, derandomize=True, print_blob=False, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("avcg")


@pytest.fixture(autouse=True)
def _nothing_global_is_touched():
    """A test fails if the code under it draws from a global random stream or changes a global setting of torch."""
    before = _global_state()
    yield
    after = _global_state()
    touched = [name for name in before if before[name] != after[name]]
    assert not touched, f"touched global state: {touched}"


def _global_state():
    return {
        "random": hash(random.getstate()),
        "numpy": hash((np.random.get_state()[1].tobytes(), *np.random.get_state()[2:])),  # noqa: NPY002
        "torch": hash(torch.get_rng_state().numpy().tobytes()),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "environment": dict(os.environ).get("AVCG_DATA"),
    }


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.stats.get("passed", []):
        for key, value in report.user_properties:
            if key == "say":  # what a test was asked to show, from whichever worker it ran in
                terminalreporter.write_line(value)
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "AVCG_DATA" in str(report.longrepr)]
    terminalreporter.write_line(f"{len(skipped)} tests skipped for want of the original data files (set AVCG_DATA)")
