# SPDX-License-Identifier: Apache-2.0
"""Pipelines of scikit-learn for tables with numbers and strings, exported by skl2onnx: each column an input of its own,
or one matrix for all of one type."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Feeds = dict[str, np.ndarray]
ROWS = 200
SMALL = {"hidden_layer_sizes": (8, 5), "max_iter": 3, "random_state": 0}
NUMBERS, WORDS = ["age", "income"], ["city", "job"]
TYPES = {
    "age": "float",
    "income": "float",
    "city": "string",
    "job": "string",
    "code": "int64",
    "flag": "bool",
}


def table() -> Any:
    """A frame of columns; NaN is in none of them."""
    import pandas

    rng = np.random.default_rng(0)
    columns = {
        "age": rng.normal(40, 10, ROWS).astype(np.float32),
        "income": rng.lognormal(3, 1, ROWS).astype(np.float32),
        "city": rng.choice(["rome", "paris", "oslo", "bonn"], ROWS, p=[0.4, 0.3, 0.25, 0.05]),
        "job": rng.choice(["cook", "clerk"], ROWS),
        "code": rng.integers(1, 6, ROWS).astype(np.int64),
        "flag": rng.integers(0, 2, ROWS).astype(bool),
    }
    return pandas.DataFrame(columns)


def classes(frame: Any, count: int = 3) -> np.ndarray:
    return np.array(["no", "maybe", "yes"])[
        ((frame.age > 40).astype(int) + (frame.city == "oslo")).to_numpy() % count
    ]


def exported(
    pipeline: Any,
    columns: list[str],
    *,
    target: Any = None,
    unknown: bool = False,
    missing: bool = False,
    zipmap: bool = True,
) -> tuple[Any, Feeds]:
    """Each column is an input. `unknown`: words and codes that were not in training; `missing`: NaN in numbers."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import (
        BooleanTensorType,
        FloatTensorType,
        Int64TensorType,
        StringTensorType,
    )  # fmt: skip

    kinds = {
        "float": FloatTensorType,
        "string": StringTensorType,
        "int64": Int64TensorType,
        "bool": BooleanTensorType,
    }
    frame = table()
    fitted = frame[columns]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that three rounds of training are few
        pipeline.fit(fitted, classes(frame) if target is None else target(frame))
        types = [(name, kinds[TYPES[name]]([None, 1])) for name in columns]
        options = (
            None if zipmap or not hasattr(pipeline, "predict_proba") else {id(pipeline): {"zipmap": False}}
        )
        model = to_onnx(pipeline, initial_types=types, options=options)
    feeds = {}
    for name in columns:
        values = fitted[name].to_numpy()
        values = values.astype(object) if TYPES[name] == "string" else values.copy()
        if unknown and TYPES[name] in ("string", "int64"):
            values[::7] = "elsewhere" if TYPES[name] == "string" else 99
        if missing and TYPES[name] == "float":
            values[::5] = np.nan
        feeds[name] = values.reshape(-1, 1)
    return model, feeds


def of_matrix(
    pipeline: Any, columns: list[str], *, unknown: bool = False, missing: bool = False
) -> tuple[Any, Feeds]:
    """All columns are one input."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    frame = table()
    words = TYPES[columns[0]] == "string"
    x = frame[columns].to_numpy().astype(object if words else np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline.fit(x, classes(frame))
        kind = (StringTensorType if words else FloatTensorType)([None, len(columns)])
        model = to_onnx(pipeline, initial_types=[("x", kind)])
    if unknown:
        x[::7] = "elsewhere"
    if missing:
        x[::5, 0] = np.nan
    return model, {"x": x}


def _pipeline(*parts: Any, last: Any = None) -> Any:
    from sklearn.compose import ColumnTransformer
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline

    named = [(str(at), step, columns) for at, (step, columns) in enumerate(parts)]
    return make_pipeline(ColumnTransformer(named), last or MLPClassifier(**SMALL))


def _of_everything() -> tuple[Any, Feeds]:
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    pipeline = _pipeline(
        (make_pipeline(SimpleImputer(), StandardScaler()), NUMBERS),
        (OneHotEncoder(handle_unknown="ignore"), WORDS),
        (OneHotEncoder(handle_unknown="ignore"), ["code"]),
    )
    return exported(pipeline, [*NUMBERS, *WORDS, "code"], unknown=True, missing=True)


def _one_hot(zipmap: bool = True, **options: Any) -> tuple[Any, Feeds]:
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    pipeline = _pipeline((StandardScaler(), NUMBERS), (OneHotEncoder(**options), WORDS))
    return exported(
        pipeline, [*NUMBERS, *WORDS], unknown=options.get("handle_unknown") == "ignore", zipmap=zipmap
    )


def _ordinal(unknown: bool) -> tuple[Any, Feeds]:
    from sklearn.neural_network import MLPRegressor
    from sklearn.preprocessing import OrdinalEncoder, StandardScaler

    options = {"handle_unknown": "use_encoded_value", "unknown_value": -1} if unknown else {}
    pipeline = _pipeline(
        (StandardScaler(), NUMBERS), (OrdinalEncoder(**options), WORDS), last=MLPRegressor(**SMALL)
    )
    return exported(pipeline, [*NUMBERS, *WORDS], target=lambda frame: frame.age / 10, unknown=unknown)


def _bins(encode: str, last: Any = None) -> tuple[Any, Feeds]:
    from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder

    bins = KBinsDiscretizer(4, encode=encode, quantile_method="averaged_inverted_cdf")
    pipeline = _pipeline((bins, NUMBERS), (OneHotEncoder(), WORDS), last=last)
    return exported(pipeline, [*NUMBERS, *WORDS])


def _logistic(two: bool) -> tuple[Any, Feeds]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    pipeline = _pipeline(
        (StandardScaler(), NUMBERS), (OneHotEncoder(), [*WORDS, "code"]), last=LogisticRegression()
    )
    return exported(
        pipeline, [*NUMBERS, *WORDS, "code"], target=lambda frame: classes(frame, 2 if two else 3)
    )


def _ridge() -> tuple[Any, Feeds]:
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import OneHotEncoder, RobustScaler

    pipeline = _pipeline(
        (RobustScaler(), NUMBERS), (OneHotEncoder(handle_unknown="ignore"), WORDS), last=Ridge()
    )
    return exported(pipeline, [*NUMBERS, *WORDS], target=lambda frame: frame.age, unknown=True)


def _target_encoder() -> tuple[Any, Feeds]:
    from sklearn.preprocessing import TargetEncoder

    pipeline = _pipeline((TargetEncoder(), WORDS), ("passthrough", NUMBERS))
    return exported(
        pipeline, [*NUMBERS, *WORDS], target=lambda frame: (frame.age > 40).astype(int), unknown=True
    )


def _passthrough() -> tuple[Any, Feeds]:
    from sklearn.preprocessing import MinMaxScaler

    pipeline = _pipeline((MinMaxScaler(), NUMBERS), ("passthrough", ["flag", "code"]))
    return exported(pipeline, [*NUMBERS, "flag", "code"])


def _numbers_of_one_matrix(kind: str) -> tuple[Any, Feeds]:
    from sklearn import preprocessing as p
    from sklearn.feature_selection import SelectKBest
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline

    last = MLPClassifier(**SMALL)
    pipeline = {
        "columns": lambda: _pipeline((p.RobustScaler(), [0, 1]), (p.OneHotEncoder(), [2])),
        "imputed": lambda: make_pipeline(SimpleImputer(strategy="median"), p.StandardScaler(), last),
        "polynomial": lambda: make_pipeline(
            p.StandardScaler(), p.PolynomialFeatures(2), LogisticRegression()
        ),
        "binarized": lambda: make_pipeline(p.Binarizer(threshold=20.0), last),
        "selected": lambda: make_pipeline(SelectKBest(k=2), p.StandardScaler(), last),
        "power": lambda: make_pipeline(p.PowerTransformer(), last),
        "bins": lambda: make_pipeline(
            p.KBinsDiscretizer(5, encode="onehot-dense", quantile_method="averaged_inverted_cdf"), last
        ),
        "quantiles": lambda: make_pipeline(p.QuantileTransformer(n_quantiles=10), last),
    }[kind]()
    return of_matrix(pipeline, [*NUMBERS, "code"], missing=kind == "imputed")


def _words_of_one_matrix(encoder: str, unknown: bool) -> tuple[Any, Feeds]:
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

    made = {
        "one hot": OneHotEncoder(handle_unknown="ignore" if unknown else "error"),
        "ordinal": OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=9),
    }[encoder]
    return of_matrix(make_pipeline(made, MLPClassifier(**SMALL)), WORDS, unknown=unknown)


PIPELINES: dict[str, Callable[[], tuple[Any, Feeds]]] = {
    "imputer, scaler, one-hot of words and codes": _of_everything,
    "one-hot": _one_hot,
    "one-hot, unknown words ignored": partial(_one_hot, handle_unknown="ignore"),
    "one-hot without the first": partial(_one_hot, drop="first"),
    "one-hot of frequent words": partial(_one_hot, min_frequency=20, handle_unknown="infrequent_if_exist"),
    "one-hot without ZipMap": partial(_one_hot, zipmap=False),
    "ordinal": partial(_ordinal, False),
    "ordinal with a value for unknown words": partial(_ordinal, True),
    "bins as one-hot": partial(_bins, "onehot-dense"),
    "bins as numbers": partial(_bins, "ordinal"),
    "logistic regression of two classes": partial(_logistic, True),
    "logistic regression of three classes": partial(_logistic, False),
    "ridge": _ridge,
    "target encoder": _target_encoder,
    "flags and codes as numbers": _passthrough,
    "a matrix, columns apart": partial(_numbers_of_one_matrix, "columns"),
    "a matrix, imputed": partial(_numbers_of_one_matrix, "imputed"),
    "a matrix, polynomial": partial(_numbers_of_one_matrix, "polynomial"),
    "a matrix, binarized": partial(_numbers_of_one_matrix, "binarized"),
    "a matrix, the best columns": partial(_numbers_of_one_matrix, "selected"),
    "a matrix, power transform": partial(_numbers_of_one_matrix, "power"),
    "a matrix, bins": partial(_numbers_of_one_matrix, "bins"),
    "a matrix, quantile transform": partial(_numbers_of_one_matrix, "quantiles"),
    "a matrix of words, one-hot": partial(_words_of_one_matrix, "one hot", False),
    "a matrix of words, unknown ones ignored": partial(_words_of_one_matrix, "one hot", True),
    "a matrix of words, ordinal": partial(_words_of_one_matrix, "ordinal", True),
}
