"""Made-up loans, a model of them with its retrains, and who is denied; trained once."""

from functools import cache

from avcg import Classifier, Recipe, retrains, toys

SHORT = Recipe(steps=400, layers=(64, 64), batch_size=128)
TOY = toys.loans(n=500)


@cache
def loan_model():
    return Classifier(hidden=(16,), epochs=150, patience=None, schema=TOY.schema).fit(TOY.X, TOY.y)


@cache
def loan_retrains():
    return retrains(loan_model(), TOY.X, TOY.y, n=12, resampling="bootstrap")


@cache
def denied():
    return TOY.X[loan_model().predict(TOY.X) == 0].head(40)
