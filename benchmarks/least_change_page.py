from pathlib import Path
RESULTS = Path(__file__).parent / "results" / "least_change"
DATASETS = {
    "adult": "Adult",
    "breast_cancer": "Breast cancer",
    "heart": "Heart",
    "spambase": "Spambase",
    "sba:2004": "SBA, 2004",
}
MODELS = {
    "network": "a network",
    "logistic": "logistic regression",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
    "random_forest": "random forest",
    "hist_gradient_boosting": "HistGradientBoosting",
    "catboost": "CatBoost",
}
PROBABILITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
