"""The paper's method: generator, objective, search and calibration."""
