"""SBA loans: whether a small business paid back a loan that the U.S. government guaranteed, by year of approval."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.datasets.base import ReadFile, Specification
from avcg.datasets.fetch import Source
from avcg.schema.schema import Schema

_URL = "https://raw.githubusercontent.com/BirkhoffG/RoCourseNet/HEAD/assets/data/loan"
_SHA256 = {
    1988: "07525ae4f3e513c824409bc4e2ef642f986a7fba662ed67b175f7c773236f2f7",
    1989: "b9d5084c74d53cfd2369af622bdd31caf5e459a04fb65d74ccbccfff670c3789",
    1990: "bc58a4dbc1302fe6e835f1545d0645763a65b3685084a7e7fef6c03c33f21ff4",
    1991: "d9b647e604858b0624339388f85dc4c6f897c93bd22667589f11904c9ce31c93",
    1992: "43d4139ae446866660441ffe00e88cdc98618bd12b8bf883867f024b3b3f37ec",
    1993: "288c90340446a36153cca3d7e3a8054593d0c39ea6e17719ecf5e50b87de4de9",
    1994: "7ed2c14824d42c7adf70b393f11dec7ec9341a8b7740957ece723d18c940797e",
    1995: "b2c352dbd0c678c960266a4b93bf1a4983040d965eded2e51c6185822a788969",
    1996: "a00f29e61aad108f8a51751a6785d4d369dab98ca8563d66a862095560a0705d",
    1997: "64bf3f7542dab1255dc2a9bcc3133fe3d4ee528af987eddd8e9410c9739ffcd4",
    1998: "4920ffd29ef414d40799035e7d09ba3cacf06d85255450b280e5a6d5278d6939",
    1999: "08b2eb2547e0461cd414a407827c99446b5a9362108cf2fe3873d5d721e0028f",
    2000: "1dd0f11663938f016e194986c64041e90f877b4385a03b252e077452093ae3c7",
    2001: "8be90dd748c9496fa61259afca4e667c28c7dfd9362c0b070c668e5f2c10f2e0",
    2002: "025a59293773f521ae6ecfb322b6128b0d7b743fb783fac893380413b649836b",
    2003: "6491e15909655d6af0a56065a524ad76cee231b4e180e06d644a84edd2436186",
    2004: "1184ea332fa07df8170d29ab7fbff08fe0b6bff534484288845ff525d8bd41b0",
    2005: "6157d86807f0a23f18fcd1352eb76fa011b8036aa328c22615fba1f1a05c3d18",
    2006: "d129ee43c6d7ad10b6bd2914c8b2a1e18e91162f4426c733eb09233d64bea792",
    2007: "88775118adf12706244569d8046afae755a4b8546f865a536feab8820316d1ea",
    2008: "4d7b55bb983c0eda6e7e3f89ce27a52b60d1fec41fc4b7f6c170380f7dbd63c0",
    2009: "869bc0b9e72b28bb1862a57606a14449f114a450dc4b54b2b3ed499cdadb6767",
    2010: "fec40f699b455c131690ea3f3c6625a8405dd5e598830d436dbb863dbac81604",
    2011: "32ab3c3528fb74dad7b45e10f52abac94bae5d8c65538be7abd188c0d26ab6fa",
    2012: "4ccd58b8eb24b01d9a8946031caacacd3d9f9a1d15669fe311187137d11a7bbc",
}
_CLASSES = ("charged off", "paid in full")
_STATES = (
    "AK AL AR AZ CA CO CT DC DE FL GA HI IA ID IL IN KS KY LA MA MD ME MI MN MO MS MT NC ND NE NH NJ NM NV NY OH OK OR"
    " PA RI SC SD TN TX UT VA VT WA WI WV WY"
).split()
# Words for published codes. What is undefined there, or not documented, is unknown.
_WORDS: dict[str, dict[Any, str]] = {
    "NewExist": {1: "existing", 2: "new", 0: "unknown"},
    "UrbanRural": {1: "urban", 2: "rural", 0: "unknown"},
    "LowDoc": {"Y": "yes", "N": "no", **dict.fromkeys("0ACRS", "unknown")},
    "Sector_Points": {**{points: str(points) for points in range(1, 6)}, 0: "unknown"},
}


def _path(year: int) -> str:
    return f"sba/{year}.csv"


def _dollars(logarithms: pd.Series[float]) -> NDArray[np.int64]:
    return np.rint(np.exp(logarithms.to_numpy())).astype(np.int64)


def _read(read_file: ReadFile, year: int) -> tuple[pd.DataFrame, NDArray[Any]]:
    published = pd.read_csv(io.BytesIO(read_file(_path(year))), keep_default_na=False)
    approved, guaranteed = _dollars(published["GrAppv"]), _dollars(published["SBA_Appv"])
    X = pd.DataFrame(
        {
            "State": pd.Categorical(published["State"], _STATES),
            "Sector_Points": _in_words(published, "Sector_Points"),
            "NewExist": _in_words(published, "NewExist"),
            "UrbanRural": _in_words(published, "UrbanRural"),
            "NoEmp": published["NoEmp"],
            "CreateJob": published["CreateJob"],
            "RetainedJob": published["RetainedJob"],
            "LowDoc": _in_words(published, "LowDoc"),
            "Term": published["Term"],
            "GrAppv": approved,
            "guaranteed_share": (guaranteed / approved).round(4),
        }
    )
    return X, np.array(_CLASSES, object)[published["Approve"].to_numpy()]


def _in_words(published: pd.DataFrame, column: str) -> pd.Categorical[Any]:
    words = _WORDS[column]
    return pd.Categorical(published[column].map(words), list(dict.fromkeys(words.values())))


def _schema(X: pd.DataFrame) -> Schema:
    return (
        Schema.infer(X, kinds={"guaranteed_share": "continuous"})
        .freeze("State", "Sector_Points", "NewExist", "UrbanRural", "guaranteed_share")
        .allow("LowDoc", ["no"])
        .step("GrAppv", 100)
    )


SPECIFICATION = Specification(
    name="sba",
    title="SBA loans",
    rows=514850,
    classes=_CLASSES,
    citation="Li, M., Mickel, A. and Taylor, S. (2018). Should This Loan be Approved or Denied?: A Large Dataset with"
    " Class Assignment Guidelines. Journal of Statistics Education 26(1), 55-66."
    " https://doi.org/10.1080/10691898.2018.1434342. Files by year: Guo, H., Jia, F., Chen, J., Squicciarini, A. and"
    " Yadav, A. (2023). RoCourseNet: Robust Training of a Prediction Aware Recourse Model. CIKM 2023."
    " https://doi.org/10.1145/3583780.3615040",
    licence="public domain",
    note="A cohort is a year of approval, 1988 to 2012. Every loan here was granted, and its label was known only"
    " years later. Amounts are in dollars (published as logarithms), Term in whole years. DisbursementGross is"
    " left out: it is known only after approval. guaranteed_share is SBA_Appv / GrAppv to four decimals and takes"
    " the place of SBA_Appv, which is the product of the two and so follows GrAppv. It is frozen, and so are"
    " state, sector, NewExist (age of the business) and UrbanRural. LowDoc, the short application for small loans,"
    " may be left but not entered: whether a loan is eligible cannot be told from a row. Codes that are undefined"
    " or not documented read 'unknown', and no answer moves to them. Two columns carry later knowledge."
    " Sector_Points seems to grade sectors by their share of loans paid, 1 the lowest. Term seems to be revised"
    " when a loan ends: of the loans of 2004, 98 % of those of 7 years were paid, but 61 % of those of 6 or 8."
    " Models of these data learn mostly from Term.",
    read={year: partial(_read, year=year) for year in _SHA256},
    schema=_schema,
    sources=tuple(
        Source(path=_path(year), sha256=sha256, url=f"{_URL}/year={year}.csv") for year, sha256 in _SHA256.items()
    ),
)
